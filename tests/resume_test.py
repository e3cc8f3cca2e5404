"""Tests that a run that is killed and resumed ends with the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint
from jaxrl_llm.monitoring import metrics
from tests.helpers import devices

pytestmark = pytest.mark.processes  # They start runs.

STEPS = 24
# Shuffled updates, an anchor, scores of the old policy, a signal from the
# first step on; what a checkpoint or an evaluation may disturb, often. No event
# files: where torch is installed, tensorboardX imports it for seconds.
FIELDS = dict(
    steps=STEPS, seed=3, loss__kl_coef=0.1, loss__entropy_bonus=0.05,
    learner__epochs=2, learner__updates=2, overlong__mode='penalty',
    overlong__window=10, optimizer__schedule='cosine',
    optimizer__warmup_steps=5, sft__steps=25, checkpoint__every=3,
    eval__every=4, log__tensorboard=False)
# SPEED, PKPO, CBS and Jackpot, with rows of two earlier batches and of a wave
# in flight. After the warm start a part of the answers is right.
ALL_FOUR = dict(
    FIELDS, loss__kl_coef=0.0, overlong__mode='none', overlong__window=0,
    learner__epochs=1, curriculum='speed', speed__n_init=2,
    curriculum_prompts=10, advantage='pkpo', pkpo__k='0:2,8:1,16:3',
    selection='cbs', cbs__rounds=3, cbs__warmup=2, off_policy='jackpot',
    actor__lag=1, sampling__weights='int8', sft__steps=400)
# Responses that a step has cut go on in the next one.
CARRIED = dict(
    FIELDS, overlong__mode='none', overlong__window=0,
    sampling__carry_over=True, sampling__wave_steps=7)
MEASURED = ('seconds/', 'speed/tokens', 'speed/flops_share', 'memory/')


def start(folder, programs, fields):
  """Starts the program as a user does, but keeps every compiled program."""
  fields = {**fields, 'workdir': folder, 'sft__cache': folder / 'warm',
            'compilation_cache': devices.kept(programs)}
  env = {
      **os.environ, 'JAX_PLATFORMS': 'cpu',
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  env.pop('JAX_COMPILATION_CACHE_DIR', None)
  return subprocess.Popen(
      [sys.executable, '-m', 'jaxrl_llm.train',
       '--config=tests/helpers/tiny.py', *(
          f'--config.{name.replace("__", ".")}={value}'
          for name, value in fields.items())],
      cwd=devices.ROOT, env=env, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True)


def finish(process):
  """Waits for the end of a run that is not killed."""
  said, _ = process.communicate(timeout=600)
  assert process.returncode == 0, said[-4000:]


def wait_for(process, reached):
  """Waits for a condition while a process still runs."""
  end = time.monotonic() + 600
  while not reached():
    assert process.poll() is None, process.communicate()[0][-4000:]
    assert time.monotonic() < end
    time.sleep(0.002)


def kill_at(process, folder, step, delay):
  """Kills a run at some moment after it wrote the metrics of a step.

  Returns:
    The newest checkpoint's step, 0 if there is none.
  """
  def reached():
    rows = metrics.read(folder / 'metrics.jsonl')
    return any(row['step'] >= step for row in rows)

  wait_for(process, reached)
  time.sleep(delay)
  process.send_signal(signal.SIGKILL)
  process.wait()
  return max(checkpoint.steps(folder / 'checkpoints'), default=0)


def lasting(row):
  """Removes the entries of a row that depend on time and speed."""
  return {k: v for k, v in row.items() if not k.startswith(MEASURED)}


def final_state(folder):
  """Returns every array of the last checkpoint, by name, as bytes."""
  root = folder / 'checkpoints'
  step, = checkpoint.steps(root)[-1:]
  tree = json.loads((root / str(step) / 'tree' / 'metadata').read_text())
  like = {
      name: np.zeros(shape, kind) for name, (shape, kind) in tree.items()}
  # Dotted names are what nested dictionaries have.
  nested = {}
  for name, leaf in like.items():
    *path, last = name.split('.')
    at = nested
    for part in path:
      at = at.setdefault(part, {})
    at[last] = leaf
  found = checkpoint.restore(root, nested)
  return step, {
      jax.tree_util.keystr(k, simple=True, separator='.'): leaf.tobytes()
      for k, leaf in jax.tree_util.tree_leaves_with_path(found.state)}


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """Returns a function from fields to a run that was not killed.

  It gives the folder, and the cache of its compiled programs.
  """
  runs = []

  def run(fields):
    root = next((root for known, root in runs if known is fields), None)
    if root is None:
      root = tmp_path_factory.mktemp('whole')
      runs.append((fields, root))
      finish(start(root / 'run', root / 'programs', fields))
    return root / 'run', root / 'programs'

  return run


@pytest.mark.parametrize('fields, kills', [
    (FIELDS, 2), pytest.param(FIELDS, 8, marks=pytest.mark.slow),
    pytest.param(ALL_FOUR, 5, marks=pytest.mark.slow),
    pytest.param(CARRIED, 10, marks=pytest.mark.slow)],
    ids=['plain', 'plain_often', 'all_four', 'carried'])
def test_killed_again_and_again(whole, tmp_path, fields, kills):
  folder, programs = whole(fields)
  here = tmp_path / 'run'
  moments = random.Random(time.time_ns())
  # One moment in the warm start or its evaluation, the others along the run.
  # The last one comes after step 8, when a checkpoint is complete: the save at
  # step 6 waits for the one at step 3.
  process = start(here, programs, fields)
  wait_for(process, (here / 'metrics.jsonl').exists)
  time.sleep(moments.uniform(0, 3))
  process.send_signal(signal.SIGKILL)
  process.wait()
  kept = {}
  for i in range(1, kills):
    step = moments.randrange(
        i * (STEPS - 4) // kills, (i + 1) * (STEPS - 4) // kills)
    last = kill_at(
        start(here, programs, fields), here, step, moments.uniform(0, .1))
    # What was written before the checkpoint is never written again.
    kept = {row['step']: row for row in metrics.read(here / 'metrics.jsonl')
            if row['step'] <= last}
    print(f'killed at step {step} or later, checkpoint of step {last}')
  finish(start(here, programs, fields))

  rows, expected = (
      metrics.read(run / 'metrics.jsonl') for run in (here, folder))
  assert [row['step'] for row in rows] == list(range(STEPS + 1))
  for row, want in zip(rows, expected, strict=True):
    assert lasting(row) == lasting(want)
    assert kept.get(row['step'], row) == row
  assert len(kept) > 3
  if fields is FIELDS:
    assert rows[-1]['update/grad_norm'] > 1e-3 and (
        rows[-1]['update/kl_anchor'] > 0)
  elif fields is CARRIED:
    assert max(row['carry/age_max'] or 0 for row in rows[1:]) > 0
  else:  # the bandit has learned, from rows of earlier batches too
    assert sum((row['cbs/loss'] or 0) > 0 for row in rows[1:]) > 3
    assert sum((row['batch/replayed'] or 0) > 0 for row in rows[1:]) > 3
  assert final_state(here) == final_state(folder)
  for name in ('samples.jsonl',):
    assert (here / name).read_text() == (folder / name).read_text()
  ours, theirs = (
      json.loads((run / 'summary.json').read_text()) for run in (here, folder))
  assert ours.pop('seconds') > 0 and theirs.pop('seconds') > 0
  # Programs of another process, loaded: nothing was different for it.
  assert ours.pop('compiled')['loaded'] > 10 and theirs.pop('compiled')
  assert ours == theirs
