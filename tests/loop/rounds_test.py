"""Tests of the host's part of a round, with programs that record their input.
"""

import types

import jax
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner.advantages import BatchAdvantages, WaveSignal
from jaxrl_llm.loop import parts, scores, step
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.sharding import processes
from jaxrl_llm.types import AdvantageError, GroupRequests, RolloutTokens
from tests.helpers import tables
from tests.helpers.tolerance import rounding

# Two groups of three samples. Sample 2 of group 7 failed; group 9 has two.
TABLE = tables.table(
    [7, 9, 7, 9, 7], [0, 0, 1, 1, 2], reward=[1, .5, 3, 2, 9],
    valid=[True, True, True, True, False], length=[1, 4, 3, 8, 5],
    generated=[1, 2, 3, 4, 5],  # programs get the model's tokens alone
    probe=[True, True, True, False, True])
ROWS = np.array([[0, 2, -1], [1, 3, -1]])


def with_program(name='', **program):
  """Returns parts of a run with a program of the advantages.

  Args:
    name: of the user's advantage.
    **program: of_batch or of_wave.
  """
  return types.SimpleNamespace(
      advantages=types.SimpleNamespace(columns=(), **program),
      stages=types.SimpleNamespace(
          curriculum=types.SimpleNamespace(max_prompts=3),
          settings=types.SimpleNamespace(samples=3, advantage=name)),
      replicate=lambda x: x)


def test_pass_rates_are_of_this_wave_and_gains_of_complete_groups():
  """Rows 0 and 1 are of an earlier wave, and row 3 is no probe."""
  seen = []

  def of_wave(*args):
    seen.extend(args)
    return WaveSignal(np.zeros(4), np.arange(3.0), {})

  two = np.zeros(2, np.int32)
  ask = GroupRequests(np.array([7, 9]), two, two, two, np.ones(2, bool))
  wave = lambda a, b: TABLE.replace(**{
      name: x[a:b] for name, x in TABLE.columns.items()})
  got = rows_lib.signal(
      with_program(of_wave=of_wave), wave(0, 2), wave(2, 5), ask, 7)
  rewards, valid, length, probe, complete, step, columns = seen
  nothing = [0, 0, 0]
  assert rewards.tolist() == [[1, 3, 9], [.5, 2, 0], nothing]
  assert valid.tolist() == [[1, 1, 0], [1, 1, 0], nothing]
  assert length.tolist() == [[1, 3, 5], [2, 4, 0], nothing]
  assert probe.tolist() == [[0, 1, 0], nothing, nothing]
  assert complete.tolist() == [True, False, False] and step == np.uint32(7)
  assert columns == {}
  assert got.gain.tolist() == [0, 1]


def test_advantages_and_moments_of_a_batch_are_in_the_table():
  def of_batch(rewards, valid, length, truncated, step, columns):
    assert rewards.tolist() == [[1, 3, 0], [.5, 0, 0]]
    assert valid.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert length.tolist() == [[1, 3, 0], [2, 0, 0]] and not truncated.any()
    return BatchAdvantages(
        10 * rewards, None, valid & (length > 1), {'m': step})

  rows = np.array([[0, 2, -1], [1, -1, -1]])  # groups of two and of one
  parts_ = with_program(of_batch=of_batch)
  got, metrics = rows_lib.with_advantages(parts_, TABLE, [rows], 4)
  assert metrics == {'m': 4}
  none = np.nan
  np.testing.assert_array_equal(got.advantage, [10, 5, 30, none, none])
  assert got.trained.tolist() == [False, True, True, False, False]
  np.testing.assert_array_equal(got.group_mean, [2, .5, 2, none, none])
  np.testing.assert_allclose(
      got.group_std, [1, 0, 1, none, none], rtol=rounding(8))
  assert np.isnan(TABLE.advantage).all()  # the one given is left as it was
  same, metrics = rows_lib.with_advantages(parts_, TABLE, [], 0)
  assert metrics == {} and tables_equal(same, TABLE)


def tables_equal(a, b):
  return all(jax.tree.leaves(jax.tree.map(
      lambda x, y: np.array_equal(x, y, equal_nan=x.dtype.kind == 'f'), a, b)))


def test_an_advantage_that_is_not_finite_is_named():
  values = np.array([1, 0, -1, .5, np.nan], np.float32)  # row 4 is not trained
  batch = np.array([[0, 2, -1], [1, -1, 3]])

  def of_batch(rewards, valid, *_):
    return BatchAdvantages(values[batch], None, valid, {})

  made = with_program('mine', of_batch=of_batch)
  rows_lib.with_advantages(made, TABLE, [batch], 0)
  values[3] = np.inf
  with pytest.raises(
      AdvantageError, match=r'advantage=mine is inf .* rewards \[0.5, 2.0\]'):
    rows_lib.with_advantages(made, TABLE, [batch], 0)


def test_a_row_lacks_an_advantage_if_each_token_does():
  by_token = np.float32([[0, 0], [0, 1], [0, 0], [2, 0], [0, 0]])
  table = TABLE.replace(advantage=np.float32([0, 0, -1, 3, np.nan]))
  assert table.without_advantage.tolist() == [1, 1, 0, 0, 0]
  assert table.replace(
      token_advantages=by_token).without_advantage.tolist() == [1, 0, 0, 0, 0]


def run_round(table, drop=False, skips=False, **result):
  """Runs a round of all rows of ROWS in one update.

  Returns:
    The batch, the arguments of its plan, and the outcome.
  """
  tokens = RolloutTokens(
      prompt=np.zeros((5, 1), np.int32), prompt_length=np.ones(5, np.int32),
      response=np.zeros((5, 9), np.int32), length=TABLE.length,
      behaviour_logprobs=np.zeros((5, 9), np.float32))
  batches, plans = [], []

  def plan(prompt, prompt_length, length):
    plans.append((prompt.tolist(), length.tolist()))
    return np.zeros(())

  def update(state, batch, plan, loss, frozen, others):
    assert others is None and plan.shape == ()
    batches.append(batch)
    return state, {'tokens': 1.0, 'skipped_in_row': 0.0, **result}

  stages = types.SimpleNamespace(
      settings=types.SimpleNamespace(
          seed=0, drop_zero_advantage=drop, skips_zero=skips, minibatch=6,
          epochs=1),
      needs=types.SimpleNamespace(behaviour_params=False, updated={}))
  run = types.SimpleNamespace(
      programs=types.SimpleNamespace(
          learner=types.SimpleNamespace(plan=plan, update=update)),
      stages=stages, processes=processes.make_processes(
          sharding.make_mesh(1, 1, 1, jax.devices()[:1])))
  done = step.run_rounds(
      run, parts.Fixed(None, None, {}, {'policy': None}), {'policy': None},
      rows_lib.Buffer(table, tokens), [ROWS],
      lambda state, table, rows, key: (state, rows.reshape(-1)), (),
      step.RunCounts(steps=0, rounds=5, updates=3))
  return *batches, *plans, done


def test_rows_are_skipped_that_have_no_advantage_for_a_token():
  """They stay in the batch, whose denominators count them."""
  table = TABLE.replace(
      advantage=np.float32([0, 2, 0, 0, np.nan]), trained=TABLE.valid)
  by_token = np.zeros((5, 9), np.float32)
  by_token[2, 1] = 1
  for tokens, third in (None, 0), (by_token, 3):
    batch, (_, planned), _ = run_round(
        table if tokens is None else table.replace(token_advantages=tokens),
        skips=True)
    assert batch.response_length.tolist() == [1, 3, 0, 4, 8, 0]
    assert planned == [0, third, 0, 4, 0, 0]


def test_a_skipped_update_says_nothing_of_its_rows():
  table = TABLE.replace(
      advantage=np.float32([1, 2, -1, 1, np.nan]), trained=TABLE.valid)
  facts = dict(rows=dict(entropy=np.full(6, np.nan, np.float32)))
  *_, done = run_round(table, skipped_in_row=1.0, **facts)
  np.testing.assert_array_equal(done.table.entropy, table.entropy)
  facts['rows']['entropy'] = np.arange(6, dtype=np.float32)
  *_, done = run_round(table, **facts)
  assert done.table.entropy.tolist() != table.entropy.tolist()


@pytest.mark.parametrize('drop', [False, True])
def test_rows_without_an_advantage_are_left_out_if_asked(drop):
  """They are neither scored nor trained on, and count in no denominator."""
  table = TABLE.replace(
      advantage=np.float32([0, 2, -1, 0, np.nan]), trained=TABLE.valid)
  batch, (groups, planned), done = run_round(table, drop)
  want = [0, 3, 0, 4, 0, 0] if drop else [1, 3, 0, 4, 8, 0]
  assert batch.response_length.tolist() == want
  assert planned == want and groups[1] == 7 and groups[3] == 9
  assert batch.advantages.tolist() == [0, -1, 0, 2, 0, 0]
  picked, = done.picked
  assert picked.rows.tolist() == ([2, 1] if drop else [0, 2, 1, 3])
  assert done.table.round.tolist() == [5, 5, 5, 5, -1]
  assert done.table.usage.tolist() == (
      [0, 1, 1, 0, 0] if drop else [1, 1, 1, 1, 0])
  assert picked.staleness.tolist() == [3] * len(picked.rows)
  assert not picked.age.any() and not picked.usage.any()
  scored = scores.to_score(
      table, [ROWS], 4, size=6, drop_zero_advantage=drop)
  assert scored.tolist() == (
      [0, 1, -1, -1, -1, -1] if drop else [0, 1, 2, -1, -1, -1])
  # Rows that were in flight have their scores.
  nothing = scores.to_score(
      table, [ROWS], 0, size=6, drop_zero_advantage=drop)
  assert nothing.tolist() == [-1] * 6
