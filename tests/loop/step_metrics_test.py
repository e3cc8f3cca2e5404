"""Tests of a step's metrics against numbers computed by hand."""

import itertools
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import train
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.loop import step_metrics
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import GroupRequests, Picked, Table
from tests.helpers import stage_runs, tables, tiny
from tests.helpers.tolerance import rounding

USE = dict(busy=8, slots=10, steps=5)


def wave(rewards, valid, count=(2, 2), probe=True):
  """Returns rows of a table, and requests of `count` samples of each group."""
  rewards, valid = np.ravel(rewards), np.ravel(valid).astype(bool)
  rows = len(rewards)
  blank = dict.fromkeys(Table.declared, np.zeros(rows, np.int32))
  zero = np.zeros(len(count), np.int32)
  return Table(**{
      **blank, 'reward': rewards.astype(np.float32), 'valid': valid,
      'probe': np.broadcast_to(probe, rows),
      'generated': np.array([1, 4, 2, 1], np.int32)[:rows],
      'truncated': np.array([False, True, False, False])[:rows],
      'entropy': np.arange(rows, dtype=np.float32)}), GroupRequests(
          zero, zero, zero, np.array(count), zero)


def of_rollouts(rewards, valid, gain, verdicts, use=USE, **changes):
  table, ask = wave(rewards, valid, **changes)
  return {**step_metrics.of_rewards(table, ask, np.array(gain, np.float32)),
          **step_metrics.of_rollouts(table, verdicts, use)}


def test_of_rollouts():
  got = of_rollouts(
      [[1, 0], [3, 7]], [[1, 1], [1, 0]], [1, 0],
      ['right', 'wrong', 'right', 'error'])
  assert got == pytest.approx({
      'reward/mean': 4 / 3, 'reward/std': np.std([1, 0, 3]),
      'reward/group_std': np.mean([.5, 0]),
      'reward/no_signal': .5, 'reward/signal': 1, 'response/count': 4,
      'response/length': 2, 'response/length_max': 4,
      'response/truncated': .25,
      'response/entropy': (4 * 1 + 2 * 2 + 1 * 3) / 8, 'sampler/slot_use': .8,
      'sampler/steps': 5, 'verdict/error': .25, 'verdict/right': .5,
      'verdict/wrong': .25},
      rel=rounding(8, 4))  # float32 means of 8 numbers at most
  assert all(type(value) is float for value in got.values())


def test_rewards_are_those_of_probe_rows_and_signals_of_complete_groups():
  """Groups of 1, 2 and 1 samples, of which the last is no probe."""
  got = of_rollouts(
      [1, 0, 4, 9], np.ones(4), [np.nan, 0, 2], ['x'] * 4, count=(1, 2, 1),
      probe=np.array([True, True, True, False]))
  assert got['reward/mean'] == pytest.approx(5 / 3, rel=rounding(4))
  assert got['reward/group_std'] == 1  # of 0 and 2
  assert got['reward/no_signal'] == .5 and got['reward/signal'] == 2
  assert got['response/length'] == 2 and got['verdict/x'] == 1  # all of them


def test_nothing_verified_is_not_a_reward_of_0(recwarn):
  got = of_rollouts(
      np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2), ['error'] * 4,
      dict(busy=0, slots=0, steps=0))
  for name in ('mean', 'std', 'group_std'):
    assert np.isnan(got[f'reward/{name}'])
  assert got['verdict/error'] == got['reward/no_signal'] == 1
  assert got['sampler/slot_use'] == 0
  assert not recwarn.list


def test_a_wave_without_a_request_has_no_figures(recwarn):
  table, ask = wave([], [], count=())
  got = {**step_metrics.of_rewards(table, ask, np.zeros(0)),
         **step_metrics.of_rollouts(table, [], USE)}
  assert got.pop('sampler/slot_use') == .8
  assert got.pop('sampler/steps') == 5
  for name in ('response/length_max', 'response/count', 'reward/signal'):
    assert got.pop(name) == 0
  assert got and all(np.isnan(value) for value in got.values())
  assert not recwarn.list


def test_a_group_without_a_verdict_leaves_the_spread_of_the_others():
  got = of_rollouts(
      [[1, 0], [0, 0]], [[1, 1], [0, 0]], np.zeros(2), ['x'] * 4)
  assert got['reward/group_std'] == .5


def test_the_probe_is_a_mean_over_responses():
  table, _ = wave([1, 0, 4, 9], [1, 1, 0, 1],
                  probe=np.array([True, True, True, False]))
  table = table.replace(policy_step=np.full(4, 7))
  got = step_metrics.probe(table, 9)
  # Rows 0 and 1 have 1 and 4 tokens and the entropies 0 and 1.
  assert got == (.5, .5, 7, -1)
  assert step_metrics.probe(table, 9, 3).first_wave == 3
  table = table.replace(valid=np.zeros(4, bool))
  assert np.isnan(step_metrics.probe(table, 9)[:2]).all()
  nothing, _ = wave([], [])
  assert step_metrics.probe(nothing, 9).policy_step == 9


def test_metrics_of_rounds():
  table = tables.table([0] * 7, range(7), reward=[9, 1, 0, .5, 9, 9, 1])
  got = step_metrics.of_rounds([
      Picked(*map(np.array, ([3, 1], [0, 4], [0, 2], [0, 1]))),
      Picked(*map(np.array, ([2, 6], [2, 2], [0, 1], [5, 0])))], table, 5)
  assert got == {
      'batch/rounds': 2, 'batch/rows': 4, 'batch/reward': .625,
      'batch/staleness': 2, 'batch/staleness_max': 4,
      'batch/age': .75, 'batch/usage': 1.5,
      'batch/replayed': .5, 'batch/held': 5}
  nothing = step_metrics.of_rounds([], table, 0)
  for name in (
      'reward', 'staleness', 'staleness_max', 'age', 'usage', 'replayed'):
    assert np.isnan(nothing.pop(f'batch/{name}'))
  assert nothing == {'batch/rounds': 0, 'batch/rows': 0, 'batch/held': 0}


def test_chosen_groups_are_whole_and_drawn_anew():
  _, ask = wave([0] * 4, [1] * 4, count=(2, 1, 3, 2, 2))
  rows = [[0, 1], [2], [3, 4, 5], [6, 7], [8, 9]]
  pairs = [a + b for a, b in itertools.combinations(rows, 2)]
  drawn = [step_metrics.chosen(ask, 2, step).tolist() for step in range(60)]
  assert sorted({tuple(x) for x in drawn}) == sorted(map(tuple, pairs))
  assert step_metrics.chosen(ask, 2, 7).tolist() == drawn[7]
  assert step_metrics.chosen(ask, 9, 0).tolist() == [*range(10)]
  assert not len(step_metrics.chosen(ask, 0, 0))


def test_of_solved():
  solved = np.array([True, False, False, True, True])
  one, two = (
      build.by_kind([Problem(i, '', kind) for i, kind in enumerate(kinds)])
      for kinds in ('aaaaa', 'abbab'))
  assert step_metrics.of_solved(solved, one) == {'solve_rate': .6}
  assert step_metrics.of_solved(solved, two) == {
      'solve_rate': .6, 'solve_rate/a': 1.0, 'solve_rate/b': 1 / 3}


def test_of_updates():
  first = dict(
      loss=1.0, ratio_max=3.0, tokens=10, processed=4, skipped=0,
      skipped_in_row=0, learning_rate=.1, grad_norm=np.float32(2), ratio=1.5)
  second = dict(
      loss=2.0, ratio_max=2.0, tokens=6, processed=6, skipped=1,
      skipped_in_row=1, learning_rate=.2, grad_norm=np.float32(4), ratio=1.0)
  empty = dict(
      second, loss=0.0, ratio_max=0.0, tokens=0, processed=0, grad_norm=0.0)
  # (10 * 1 + 6 * 2) / 16 = 1.375 and (10 * 2 + 6 * 4) / 16 = 2.75, and of
  # processed tokens (4 * 1.5 + 6 * 1) / 10 = 1.2.
  assert step_metrics.of_updates([first, second, empty]) == {
      'update/loss': 1.375, 'update/ratio_max': 3.0, 'update/tokens': 16.0,
      'update/processed': 10.0, 'update/skipped': 1.0,
      'update/skipped_in_row': 1.0, 'update/learning_rate': .2,
      'update/grad_norm': 2.75, 'update/ratio': 1.2}
  assert np.isnan(step_metrics.of_updates([empty])['update/loss'])
  all_skipped = step_metrics.of_updates([dict(first, processed=0)])
  assert all_skipped['update/loss'] == 1
  assert np.isnan([all_skipped[f'update/{name}'] for name in (
      'ratio', 'ratio_max')]).all()
  rejected = dict(tokens=5, processed=5, obrs_empty=1)
  assert step_metrics.of_updates([
      rejected, dict(tokens=2, processed=2, obrs_empty=0),
      rejected])['update/obrs_empty'] == 2
  assert step_metrics.of_updates([]) == {}
  own = [dict(tokens=n, processed=n, objective={'mine/x_max': x})
         for n, x in ((10, 1.0), (6, 2.0))]
  assert step_metrics.of_updates(own)['mine/x_max'] == 1.375


def test_a_loss_that_is_not_finite_shows():
  rows = [dict(loss=loss, tokens=3, processed=3) for loss in (1.0, np.nan)]
  assert np.isnan(step_metrics.of_updates(rows)['update/loss'])


@pytest.mark.parametrize('lag', [0, 1])
def test_acceptance_of_the_tokens_of_samples(lag):
  """The stub's log-prob of a token is sin(token + all parameters) - 2."""
  watched = tiny.watch(stage_runs.stubbed(
      off_policy='jackpot', jackpot__target='p_ref', jackpot__lam=1.5,
      actor__lag=lag, log__samples=4))
  parts = watched.parts
  state, fixed, _ = tiny.begin(parts)
  for step in range(2):
    total = sum(np.sum(np.asarray(x, float)) for x in jax.tree.leaves(
        state.learner.params))
    state, report = train.take_step(parts, state, fixed, timing.Timer())
    out = watched.rollouts[step]
    assert len(report.records) == len(out.length) == 16
    for row, record in enumerate(report.records):
      ids = out.tokens[row, :out.length[row]]
      kept = np.minimum(1, np.exp(
          np.sin(total + ids) - 2 - out.logprobs[row, :len(ids)]) / 1.5)
      # Three digits, and the sum of the parameters in float32.
      np.testing.assert_allclose(record['token_acceptance'], kept, atol=2e-3)
      # The wave that is sampled now is trained on after the lag.
      assert (record['advantage'] is None) == bool(lag)


@pytest.mark.parametrize('most, chars', [
    (9, [[1, 1, 0], [1, 0], [1]]), (4, [[1, 1, 0], [1], []])])
def test_each_turn_has_the_values_of_its_tokens(most, chars):
  tok = CharTokenizer('abcdef')
  stop, (a, b, c, d, *_) = tok.stop_ids[0], tok.encode('abcdef')
  # The first observation is 'cd', the second empty; the last turn is cut off.
  ids = [a, b, stop, c, d, c, stop, d, 0, 0]
  wrote = [True] * 3 + [False] * 2 + [True] * 3 + [False] * 2
  log_probs = np.float32([-1, -2, -3, 0, 0, -4, -5, -6, 0, 0])
  of = types.SimpleNamespace
  turns = [dict(text='ab', observation='cd', reward=.5),
           dict(text='c', observation='', reward=0.0),
           dict(text='d', observation='', reward=1.0)]
  told = step_metrics._told(
      of(rows=of(tokens=of(old_logprobs=None)), responses=of(
          rollouts=of(tokens=np.array([ids]), length=np.array([8]),
                      generated=np.array([wrote]), logprobs=log_probs[None]),
          played=of(turns=[turns], starts=[[0, 5, 7]]))),
      0, 0, of(task=of(tokenizer=tok), programs=of(model=of(vocab_size=8))),
      most)
  values = [-1, -2, -3], [-4, -5], [-6]
  assert told == {'turns': [
      {**turn, 'token_chars': mine, 'token_logprobs': [*known[:len(mine)]]}
      for turn, mine, known in zip(turns, chars, values)]}
