"""Tests that a run of an earlier version can be evaluated, exported, resumed.

`data/run_before_wings.zip` is from a version in which the fields
`selection.signal_only` and `sampling.prompts_per_round` had these names, and
`loss.dual_clip` was accepted with the objective cispo. It contains two steps of
LoRA on warm-started weights, and an evaluation of the last checkpoint.
"""

import hashlib
import json
import pathlib
import sys
import zipfile

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, config, evaluate, export, train
from jaxrl_llm.monitoring import metrics
from tests.helpers import devices

ARCHIVE = devices.ROOT / 'tests/data/run_before_wings.zip'


@pytest.fixture(name='run')
def _run(tmp_path, monkeypatch):
  """Folder of the run; its config expects the relative path `run`."""
  with zipfile.ZipFile(ARCHIVE) as archive:
    archive.extractall(tmp_path)
  monkeypatch.chdir(tmp_path)
  return pathlib.Path('run')


def files(folder):
  """Returns relative name to digest of every file."""
  return {str(path.relative_to(folder)): hashlib.sha256(
      path.read_bytes()).hexdigest() for path in folder.rglob('*')
          if path.is_file() and path.name != 'lock'}


def test_its_config_loads_with_a_warning_for_each_change(run, caplog):
  c = config.load('run/config.json')
  config.validate(c)
  assert c.drop_zero_advantage is True
  assert c.sampling.prefill_prompts == 2
  assert c.loss.objective == 'cispo' and c.loss.dual_clip is None
  for words in ('selection.signal_only is now called drop_zero_advantage',
                'sampling.prompts_per_round is now called',
                'loss.dual_clip=3.0 had no effect'):
    assert words in caplog.text


def test_its_evaluation_is_done_again(run, monkeypatch):
  """Its name has fields of the learner's layout, which are others now.

  The former one stays, and the responses are the same.
  """
  before = files(run)
  monkeypatch.setattr(sys, 'argv', [
      'evaluate', '--config=run/config.json', '--checkpoint=last',
      '--samples=3', '--k=1'])
  evaluate.main()
  after = files(run)
  responses, = (x for x in before if x.endswith('responses.jsonl'))
  again, = (x for x in after.keys() - before.keys()
            if x.endswith('responses.jsonl'))
  assert after[again] == after[responses] == before[responses]
  old, new = (json.loads(text)['mean'] for text in (
      zipfile.ZipFile(ARCHIVE).read('run/evaluation.json'),
      (run / 'evaluation.json').read_text()))
  assert old == new


def test_it_is_exported(run, monkeypatch, tmp_path):
  monkeypatch.setattr(sys, 'argv', [
      'export', '--workdir=run', '--out=out', '--checkpoint=last'])
  export.main()
  saved = json.loads((tmp_path / 'out/config.json').read_text())
  assert saved['hidden_size'] == 16


def test_it_goes_on_from_its_checkpoint(run):
  """Its state comes back to the bit, and two more steps follow."""
  c = config.load('run/config.json', {'steps': 4})
  seen, take_step = [], train.take_step

  def spy(parts, state, *rest):
    seen.append(jax.device_get(state))
    return take_step(parts, state, *rest)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train, 'take_step', spy)
    train.train(c)
  before = seen[0].learner
  # One of its two updates had no token to train on.
  assert (seen[0].step, int(before.step)) == (2, 1)
  # A step was one batch of the problems that came next.
  assert seen[0].rounds == 2
  assert seen[0].curriculum.position == 2 * c.prompts_per_step
  assert seen[1].curriculum.position == 3 * c.prompts_per_step
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(before.params):
    digest.update(np.ascontiguousarray(leaf).tobytes())
  # As the version that wrote it restored it.
  assert digest.hexdigest()[:16] == '2e70df9f4e9dd4b7'
  rows = metrics.read(run / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [0, 1, 2, 3, 4]
  assert checkpoint.steps(run / 'checkpoints')[-1] == 4
  # The base of LoRA is the one it was trained beside, not a new one.
  assert len(list(run.glob('base-*'))) == 1
