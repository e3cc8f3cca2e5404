"""Tests of every curriculum with every selection, advantage and update.

Also with waves in flight, and under rejection.
"""

import ast
import itertools
import pathlib
import re

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, train
from jaxrl_llm.curriculum import CURRICULA
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.prepare import describe, methods
from jaxrl_llm.selection import SELECTIONS
from tests.helpers import stage_runs, tiny

PACKAGE = pathlib.Path(train.__file__).parent
AFTER = 4  # steps after a checkpoint
# The last is the new groups of a step: with more than four there are steps
# with several batches, of which the later ones are a step's second policy.
PAIRS = [*itertools.product(
    ('uniform', 'dynamic', 'speed'),
    ('all_rows', 'random', 'newest', 'replay', 'cbs', 'largest_advantage'),
    ('grpo', 'pkpo'), (1, 2), (4, 10))]
# Covers every value of each of the first four together with every value of each
# other one.
QUICK = [
    ('uniform', 'all_rows', 'grpo', 1, 10), ('uniform', 'random', 'pkpo', 2, 4),
    ('uniform', 'newest', 'grpo', 2, 10), ('uniform', 'replay', 'pkpo', 1, 4),
    ('dynamic', 'all_rows', 'pkpo', 2, 4), ('dynamic', 'random', 'grpo', 1, 10),
    ('dynamic', 'newest', 'pkpo', 1, 4), ('dynamic', 'replay', 'grpo', 2, 4),
    ('speed', 'all_rows', 'grpo', 2, 10), ('speed', 'random', 'pkpo', 1, 4),
    ('speed', 'newest', 'grpo', 1, 10), ('speed', 'replay', 'pkpo', 2, 4),
    ('uniform', 'cbs', 'pkpo', 2, 4), ('dynamic', 'cbs', 'grpo', 1, 4),
    ('speed', 'cbs', 'pkpo', 2, 10),
    ('uniform', 'largest_advantage', 'grpo', 1, 10),
    ('dynamic', 'largest_advantage', 'pkpo', 2, 4),
    ('speed', 'largest_advantage', 'grpo', 2, 4)]


def form(state):
  """Returns the type, shape and kind of every leaf of a state."""
  return jax.tree.map(
      lambda x: (type(x).__name__, np.shape(x), str(np.asarray(x).dtype)),
      jax.device_get(state))


@pytest.mark.parametrize('curriculum, selection, advantage, updates, prompts', [
    pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
    for pair in PAIRS])
def test_a_run_goes_on_from_its_middle_bit_for_bit(
    curriculum, selection, advantage, updates, prompts, tmp_path):
  """Sampler and learner are stubs; the next test has the real ones."""
  rows = goes_on(stage_runs.judged(stage_runs.stubbed(
      curriculum=curriculum, selection=selection, advantage=advantage,
      learner__updates=updates, curriculum_prompts=prompts)), tmp_path)
  if prompts > 4:
    assert max(row['batch/rounds'] for row in rows) > 1
  if selection == 'cbs':
    assert np.isfinite([row['cbs/loss'] for row in rows]).any()
    assert np.nanmax([row['batch/replayed'] for row in rows]) > 0


@pytest.mark.parametrize('fields', [
    dict(actor__lag=2, off_policy='jackpot'),
    stage_runs.ALL_FOUR,
    pytest.param(dict(
        actor__lag=1, off_policy='jackpot', selection='replay',
        curriculum='speed', curriculum_prompts=10), marks=pytest.mark.slow),
    pytest.param(dict(
        actor__lag=1, curriculum='dynamic', learner__updates=2,
        off_policy='jackpot'), marks=pytest.mark.slow),
    pytest.param(
        dict(actor__lag=3, curriculum='speed'), marks=pytest.mark.slow)],
    ids=str)
def test_a_run_with_waves_in_flight_goes_on_too(fields, tmp_path):
  """Rows, their GroupRequests and log-probs in flight resume; so does kappa."""
  def check(state):
    assert len(state.in_flight) == fields['actor__lag']
    for wave in state.in_flight:
      assert wave.samples and wave.rows.table.valid[:wave.samples].any()
      assert (wave.rows.table.group[wave.samples:] == -1).all()
      old = wave.rows.tokens.old_logprobs
      assert (old[wave.rows.table.valid] != 0).any(1).all()
    if 'off_policy' in fields:
      assert float(state.learner.calibration.kappa) != 1
    else:
      assert state.learner.calibration is None

  make = stage_runs.parts_of
  if 'sampling__weights' in fields:  # with a sampler of its own
    make = stage_runs.built
  rows = goes_on(stage_runs.judged(make(**fields)), tmp_path, check)
  trained = [row for row in rows if row['batch/rounds']]
  assert trained[-1]['batch/staleness'] >= fields['actor__lag']
  for row in trained:
    found = {name.removeprefix('update/obrs_'): value
             for name, value in row.items() if 'obrs_' in name}
    if 'off_policy' not in fields:
      assert not found
      continue
    assert found.keys() == set(
        'acceptance at_c1 at_c2 empty kappa kept kl_after kl_before '
        'rejected_negative rejected_positive z z_std'.split())
    assert all(np.isfinite(list(found.values())))
    assert 0 < found['acceptance'] <= 1 and 0 < found['z'] <= 1.05
    rejected = found['rejected_negative'] + found['rejected_positive']
    assert 0 <= rejected <= 1 - found['kept'] + 1e-6  # others have no signal
    if 'sampling__weights' not in fields:  # equal weights, computed twice
      assert row['update/behaviour_gap_max'] < 1e-4
  if 'off_policy' in fields:
    assert trained[-1]['update/obrs_acceptance'] < 1


def goes_on(parts, folder, check=lambda state: None):
  """Takes some steps, a checkpoint; then some more steps, and the same again.

  Args:
    parts: of the run.
    folder: for the checkpoint.
    check: of the state at the checkpoint.

  Returns:
    The metrics of all steps.
  """
  holds = parts.stages.curriculum.stale or parts.stages.selection.stale
  names = tiny.compiled()
  last, fixed, _ = tiny.begin(parts)
  rows = []
  # Two steps with a batch, and one after which rows are held.
  while sum(row['batch/rounds'] > 0 for row in rows) < 2 or (
      holds and not rows[-1]['batch/held']):
    (before,), (row,), last = stage_runs.waves(parts, last, fixed, 1)
    rows.append(row)
    assert len(rows) < 20
  saved, known = last.step, len(names)
  check(before)
  saver = checkpoint.Checkpointer(folder, describe.described(parts))
  saver.save(saved, last, {})
  states, later, last = stage_runs.waves(parts, last, fixed, AFTER)
  saver.close()

  # Nothing is compiled once there were batches, but the bandit of CBS, which
  # learns from the first round that is judged.
  assert {*names[known:]} <= {'jit(_train)'}
  compiled = tiny.programs(names)
  # And no program twice, but for lists of several lengths.
  learner = parts.programs.learner
  for name in set(compiled):
    assert compiled.count(name) == 1 or name == 'jit(score)' or (
        name == 'jit(update)' and compiled.count(name) == len(
            learner.plans(methods.minibatch_rows(parts.config)))), name
  trained = [row for row in rows + later if row['batch/rounds']]
  assert all(np.isfinite(row['update/loss']) for row in trained)
  assert trained[-1]['update/skipped'] == 0
  assert any(row['batch/rounds'] for row in later)

  found = checkpoint.restore(
      folder, state_lib.init_state(parts, parts.programs.learner.state))
  assert found.step == found.state.step == saved
  assert tiny.same(found.state, before)
  assert form(found.state) == form(last)
  held = (found.state.buffer.table.group >= 0).sum()
  assert held == rows[-1]['batch/held'] and (held > 0) == holds
  again_states, again, _ = stage_runs.waves(parts, found.state, fixed, AFTER)
  # By their texts, since some are NaN.
  assert list(map(repr, again)) == list(map(repr, later))
  assert tiny.same(again_states, states)
  assert not tiny.same(states[-1].learner.params, before.learner.params)
  return rows + later


@pytest.mark.parametrize('selection', ['all_rows', 'replay'])
def test_a_step_without_a_batch_changes_no_parameter(selection):
  """All rewards are equal: `dynamic` drops every group and goes on."""
  plain = stage_runs.stubbed(
      curriculum='dynamic', selection=selection, learner__updates=2)
  state, fixed, _ = tiny.begin(plain)
  rounds = 0
  for _ in range(20):
    (before,), (row,), state = stage_runs.waves(
        stage_runs.judged(plain), state, fixed, 1)
    rounds += row['batch/rounds']
    if rounds and before.curriculum.waiting[0] >= 0:
      break
  assert rounds and before.curriculum.waiting[0] >= 0  # some wait already
  after, (row,), state = stage_runs.waves(
      stage_runs.judged(plain, stage_runs.equal), state, fixed, 1)
  after = after[-1]
  assert tiny.same(before.learner, after.learner)
  assert tiny.same(before.buffer, after.buffer)
  assert tiny.same(before.curriculum.waiting, after.curriculum.waiting)
  assert (after.step, after.rounds) == (before.step + 1, before.rounds)
  assert after.curriculum.position == before.curriculum.position + 4
  assert not any(name.startswith('update/') for name in row)
  assert row['batch/rounds'] == row['batch/rows'] == 0
  assert np.isnan(row['batch/staleness'])
  assert row['reward/mean'] == row['reward/no_signal'] == 1
  # And the next step is as any other.
  _, rows, _ = stage_runs.waves(stage_runs.judged(plain), state, fixed, 2)
  assert sum(row['batch/rounds'] for row in rows) >= 1


def test_a_run_can_begin_without_a_batch():
  """Before the first update, and with waves too small to fill a batch."""
  plain = stage_runs.stubbed(curriculum='dynamic', learner__updates=2)
  state, fixed, _ = tiny.begin(plain)
  states, rows, _ = stage_runs.waves(
      stage_runs.judged(plain, stage_runs.equal), state, fixed, 2)
  assert [row['batch/rounds'] for row in rows] == [0, 0]
  assert tiny.same(*(state.learner for state in states))
  assert int(states[-1].learner.step) == 0


NAMES = {
    *CURRICULA, *SELECTIONS, 'speed', 'cbs', 'jackpot'}
# What else these words mean in the source.
OTHERS = (r'(np|jax)\.random(\.uniform)?\b|\brandom (or|ones)\b|'
          r'\btiming\.speed\b|\bdynamic_(update_)?(slice|index)')


def mentioned(text):
  """Returns the names of curricula and selections in a source text."""
  text = re.sub(OTHERS, '', text.lower())
  return {name for name in NAMES if re.search(
      rf'(?<![a-z]){name}(?![a-z])', text)}


def test_a_mention_is_found():
  for text in ("config.curriculum == 'random'", 'replay_rounds = 2',
               'from jaxrl_llm.curriculum import dynamic', 'all_rows(x)',
               '# Jackpot', 'pick_all_rows()', 'config.replay.rows'):
    assert mentioned(text), text
  assert not mentioned('np.random.default_rng(x) + timing.speed(x)')


@pytest.mark.parametrize('path', [
    PACKAGE / 'jobs/train.py', *sorted(  # options only declares fields
        {*(PACKAGE / 'learner').glob('*.py')} - {
            PACKAGE / 'learner/options.py'})],
    ids=lambda path: path.stem)
def test_the_loop_and_the_learner_know_no_curriculum_by_name(path):
  assert not mentioned(path.read_text())
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import | ast.ImportFrom):
      said = ast.unparse(node)
      assert not re.search(r'jaxrl_llm\.?(import )?(curr|selec)', said), said
