"""Tests of the table of the configs made for pods."""

import json
import subprocess
import types

from jaxrl_llm.launch import fits
from jaxrl_llm.launch.aot import report
from tests.launch.fits_report_test import made, phase


def found(*phases):
  return json.dumps(report.to_json(made(*phases)))


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
  answers = {
      'a.py': found(sample, phase(parameters=6.3)),
      'b.py:4k': found(sample, phase(needs='21.3GiB', parameters=1)),
      'c.py': 'Traceback: no such thing'}
  monkeypatch.setattr(fits, 'jobs', lambda: iter(answers))
  monkeypatch.setattr(fits, 'RESULT', tmp_path / 'FITS.md')
  monkeypatch.setattr(subprocess, 'run', lambda argv, **_: (
      types.SimpleNamespace(
          stdout=answers[argv[2].removeprefix('--config=')], stderr='broke')))
  assert fits.main() == 1
  lines = fits.RESULT.read_text().splitlines()
  a, b = (next(x for x in lines if x.startswith(f'| {name}'))
          for name in ('a.py', 'b.py'))
  # 6.3 of 15.75 GiB are 40%; two phases take 2.5 s each.
  for text in ('6.3', '60%', 'update', '5.00', '2.50'):
    assert f'| {text} |' in a
  assert '| 21.3GiB | none |' in b
  assert a.count('|') == b.count('|') == len(fits.COLUMNS) + 1
  assert any(x.startswith('b.py:4k: The job does not fit') for x in lines)
  assert 'c.py: broke' in lines
