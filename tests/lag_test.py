"""Tests of `actor.lag`: steps between sampling and training."""

import collections
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import train
from jaxrl_llm.loop import lag
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import arguments, build, describe, stages
from jaxrl_llm.types import GroupRequests
from tests.helpers import learners, stage_runs, tiny
from tests.helpers.tolerance import policy_gap


@pytest.fixture(scope='module')
def parts():
  return build.parts(tiny.load(
      actor__lag=1, learner__updates=2, optimizer__learning_rate=.01))


def contents(tokens, length, first):
  """Counts the responses, each with `first`, a number of its row."""
  return collections.Counter(
      (row[:end].tobytes(), float(x))
      for row, end, x in zip(tokens, length, first))


@pytest.mark.parametrize('lag', [1, 2])
def test_the_selection_hears_of_the_wave_that_arrives(parts, lag):
  config = tiny.load(
      actor__lag=lag, learner__updates=2, optimizer__learning_rate=.01)
  watched = tiny.watch(tiny.changed(parts, config=config), tiny.by_length)
  heard = []
  select = watched.parts.stages.selection._replace(
      feedback=lambda state, probe: heard.append(probe) or state)
  run = tiny.changed(
      watched.parts, stages=watched.parts.stages._replace(selection=select))
  state, fixed, _ = tiny.begin(run)
  rows, steps = [], []
  for _ in range(4):
    steps.append(int(state.learner.step))
    state, report = train.take_step(run, state, fixed, timing.Timer())
    rows.append(report.row['reward/mean'])
  assert all(np.isnan(probe.reward) for probe in heard[:lag])
  np.testing.assert_allclose(
      [probe.reward for probe in heard[lag:]], rows[:-lag], rtol=1e-6)
  assert [probe.policy_step for probe in heard[lag:]] == steps[:-lag]


@pytest.mark.parametrize('lag', [1, 2])
def test_updates_train_on_the_rows_of_an_earlier_policy(parts, lag):
  """Each wave once, in order, with the log-probs of the policy that wrote it.
  """
  config = tiny.load(
      actor__lag=lag, learner__updates=2, optimizer__learning_rate=.01)
  watched = tiny.watch(
      tiny.changed(parts, config=config), tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  policies, rows = [], []
  for step in range(5):
    policies.append(jax.device_get(state.learner.params))
    watched.batches.clear()
    with jax.transfer_guard('disallow'):
      state, report = train.take_step(
          watched.parts, state, fixed, timing.Timer())
    rows.append(report.row)
    assert report.row['response/count'] == 16
    assert len(state.in_flight) == lag
    if step < lag:
      assert not watched.batches
      assert tiny.same(state.learner.params, policies[0])
      assert report.row['batch/rounds'] == 0
      continue
    assert len(watched.batches) == 2
    batch = jax.tree.map(lambda *x: np.concatenate(x), *watched.batches)
    written = watched.rollouts[step - lag]
    end = batch.prompt_length + batch.response_length
    responses = np.stack([
        np.pad(row[first:last], (0, 10 - (last - first)))
        for row, first, last in zip(batch.tokens, batch.prompt_length, end)])
    assert contents(
        responses, batch.response_length, batch.behaviour_logprobs[:, 0]
    ) == contents(written.tokens, written.length, written.logprobs[:, 0])
    bare = watched.parts.shard_rows(batch.replace(old_logprobs=None))
    for number, policy in enumerate(policies):
      scores = learners.score(
          watched.parts.programs.learner,
          jax.device_put(policy, describe.param_shardings(watched.parts)), bare,
          fixed.loss, None).logprobs
      wrote = tiny.same(policy, policies[step - lag])
      gap = np.abs(scores - batch.old_logprobs).max()
      assert (gap <= policy_gap(watched.parts.config, scores)) == wrote, number
    # Two updates in each step since it was written, but none in the first.
    assert report.row['batch/staleness'] == 2 * min(step - lag, lag)
  assert rows[-1]['update/kl_old'] > 0


def test_rows_keep_the_temperature_that_they_were_sampled_at():
  """Rows of a lag and of a replay, beside others of the same batch."""
  parts = stage_runs.built(
      actor__lag=2, selection='replay', replay__rounds=3, learner__updates=2,
      sampling__temperature='0:2,1:1,3:.5,4:3')
  watched = tiny.watch(parts, tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  several = 0
  for heat in 2, 1, 1, .5, 3, 3:
    watched.batches.clear()
    state, report = train.take_step(
        watched.parts, state, fixed, timing.Timer())
    assert report.row['sampler/temperature'] == heat
    for batch in watched.batches:
      real = batch.mask.any(1)
      several += len({*batch.temperature[real]}) > 1
      # The scores of the policy that wrote a row are its sampler's log-probs.
      np.testing.assert_allclose(
          batch.old_logprobs[batch.mask], batch.behaviour_logprobs[batch.mask],
          atol=1e-4)
  assert several
  assert jax.tree.map(np.shape, watched.batches[0]) == jax.tree.map(
      np.shape, arguments.abstract(parts.programs).batch)


def test_a_step_reports_the_wave_that_it_sampled(parts):
  """Its rewards, its samples and the solved problems, not those in flight."""
  watched = tiny.watch(
      tiny.changed(parts, config=tiny.load(
          actor__lag=1, learner__updates=2, log__samples=4)), tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  state, report = train.take_step(watched.parts, state, fixed, timing.Timer())
  texts = [record['response'] for record in report.records]
  assert len(texts) == 16
  rewards = np.array([len(text) % 2 for text in texts])
  assert report.row['reward/mean'] == rewards.mean()
  assert report.row['reward/signal'] > 0
  assert state.solved.sum() == len({
      record['problem_id'] for record in report.records
      if record['reward'] == 1})


def test_waves_arrive_whole_and_in_order():
  """Waves of no, some and all of the rows come out three steps later."""
  config = tiny.load(actor__lag=3, off_policy='jackpot')
  made = stages.make_stages(config, 40)
  rng = np.random.default_rng(0)
  flight, sent, forms = lag.no_waves(made), [], set()
  for number in range(12):
    groups, samples = [(0, 0), (1, 3), (2, 8), (4, 16)][number % 4]
    rows = jax.tree.map(
        lambda x: rng.integers(0, 2, x.shape).astype(x.dtype),
        rows_lib.empty(samples, made))
    ask = GroupRequests(*(rng.integers(0, 2, groups).astype(kind) for kind in (
        np.int64, np.int32, np.int32, np.int32, bool)))
    sent.append((ask, rows))
    flight, *arrived = lag.exchange(flight, ask, rows, made)
    if number < 3:
      assert not len(arrived[0].group) and not len(arrived[1].table.group)
    else:
      assert tiny.same(tuple(arrived), sent[number - 3])
    forms.add(str(jax.tree.map(lambda x: np.shape(x), flight)))
  assert len(forms) == 1 and flight[0].rows.tokens.top_ids is not None


def test_without_a_lag_nothing_is_in_flight():
  config = tiny.load()
  made = stages.make_stages(config, 40)
  assert lag.no_waves(made) == ()
  assert lag.exchange((), 'ask', 'rows', made) == (
      (), 'ask', 'rows')


@pytest.mark.parametrize('lag, rows', [(0, 0), (1, 16), (3, 48)])
def test_the_size_of_waves_in_flight_is_said(lag, rows):
  config = tiny.load(actor__lag=lag)
  said = describe.buffer(
      types.SimpleNamespace(stages=stages.make_stages(config, 40)))
  assert (f'{rows} rollouts' in said) if rows else said == ''
