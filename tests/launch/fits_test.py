"""Tests of the table of the configs made for pods."""

import json
import re
import subprocess
import types

import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.launch import fits
from jaxrl_llm.launch.aot import check, report
from tests.launch.fits_report_test import made, phase


def found(*phases):
  checked = made(*phases)
  return json.dumps({**report.to_json(checked), 'lengths': {
      way: report.at_lengths(checked) for way in ('waiting', 'carried')}})


def test_a_mesh_of_the_learner_is_named():
  mesh, learner = (
      dict(data=4, fsdp=fsdp, tensor=tensor) for fsdp, tensor in (
          (8, 4), (32, 1)))
  assert fits._mesh(dict(mesh=mesh, learner_mesh=mesh)) == '4, 8, 4'
  assert fits._mesh(dict(mesh=mesh, learner_mesh=learner)) == (
      '4, 8, 4 (learner 4, 32, 1)')


def test_every_config_for_a_slice_is_there_with_its_variants():
  jobs = list(fits.jobs())
  assert 'configs/pkpo/gemma2_2b_math.py' in jobs
  assert 'configs/pkpo/gemma2_2b_math.py:4k' in jobs
  assert not [job for job in jobs if 'countdown' in job]


def test_rows(monkeypatch, tmp_path, capsys):
  """One that fits, one that does not, and one that breaks."""
  sample = phase('sample', decode_cache=3)
  monkeypatch.setattr(fits.aot, 'load', lambda spec, _: config_lib.load(
      'configs/countdown.py', {'steps': int(spec != 'b.py:4k')}))
  answers = {
      'a.py': found(sample, phase(parameters=6.3)),
      'b.py:4k': found(sample, phase(needs='21.3GiB', parameters=1)),
      'c.py': 'Traceback: no such thing'}
  monkeypatch.setattr(fits, 'jobs', lambda: iter(answers))
  monkeypatch.setattr(fits, 'RESULT', tmp_path / 'FITS.md')
  asked = []

  def run(argv, **_):
    asked.append(argv[2].removeprefix('--config='))
    # A mean of .2716 of 23 tokens. Without steps there are no responses.
    assert argv[4:] == ['--lengths=lognormal:6,1'] * (asked[-1] != 'b.py:4k')
    return types.SimpleNamespace(stdout=answers[asked[-1]], stderr='broke')

  monkeypatch.setattr(subprocess, 'run', run)
  assert fits.main() == 1
  lines = fits.RESULT.read_text().splitlines()
  a, b = (next(x for x in lines if x.startswith(f'| {name}'))
          for name in ('a.py', 'b.py'))
  # 6.3 of 15.75 GiB are 40%; two phases take 2.5 s each, in the cases 2, 3, 4.
  for text in ('6.3', '60%', 'update', '5.0 / 8.0', '2.5', '12.0 / 16.0',
               '20.0 / 24.0, 20.0 / 24.0'):
    assert f'| {text} |' in a
  assert '| 21.3GiB | none |' in b
  assert a.count('|') == b.count('|') == len(fits.COLUMNS) + 1
  assert any(x.startswith('b.py:4k: The job does not fit') for x in lines)
  assert 'c.py: broke' in lines
  # Rows stay, with their reasons. One that was never compiled is, unasked.
  asked.clear()
  answers['a.py'] = found(phase('sample', decode_cache=4), phase(parameters=9))
  assert fits.main(['a.']) == 1
  assert asked == ['a.py', 'c.py']
  again = fits.RESULT.read_text().splitlines()
  assert [(x, y) for x, y in zip(lines, again, strict=True) if x != y] == [
      (a, next(x for x in again if x.startswith('| a.py')))]
  fits.RESULT.write_text('| config | seconds |')
  with pytest.raises(SystemExit, match='other columns'):
    fits.main(['a.'])
  with pytest.raises(SystemExit, match='^d.py is in the name of no config'):
    fits.main(['a.', 'd.py'])


def test_the_table_speaks_of_the_configs_as_they_are():
  """Each has a row of its size, and one that is nearly full a sentence."""
  lines = fits.RESULT.read_text().splitlines()
  rows = [line.strip('| ').split(' | ') for line in lines if '.py' in line
          and line.startswith('| ')]
  assert [f'configs/{cells[0]}' for cells in rows] == list(fits.jobs())
  for name, topology, mesh, slots, _, free, *_ in rows:
    spec = f'configs/{name}'
    config = check.load(spec, {})
    data, fsdp, tensor = map(int, re.findall(r'\d+', mesh)[:3])
    rows = config.prompts_per_step * config.samples_per_prompt
    assert topology == check.topology_of(spec), name
    # Fewer if there are fewer rows; some curricula have more.
    assert int(slots) in (config.sampling.slots, min(
        config.sampling.slots, -(-rows // (data * fsdp)))), name
    assert all(config.mesh[axis] in (-1, size) for axis, size in zip(
        sharding.AXES, (data, fsdp, tensor))), name
    learner = config.mesh.learner_tensor
    assert ('learner' in mesh) == (learner not in (None, tensor)), name
    fit = free != 'none' and int(free.rstrip('%')) >= 10
    assert fit != any(line.startswith(f'{spec}: ') for line in lines), name


def test_tools_run_while_other_rows_decode():
  """Slots are filled twice at least."""
  for spec in fits.jobs():
    config = check.load(spec, {})
    if config.task.name == 'tools':
      rows = config.prompts_per_step * config.samples_per_prompt
      shards = config.mesh.data * config.mesh.fsdp
      assert rows >= 2 * config.sampling.slots * shards, spec
