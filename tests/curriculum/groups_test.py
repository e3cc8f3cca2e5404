"""Tests of `uniform` and `dynamic` against a naive twin with made-up rewards.
"""

import functools

import jax
import numpy as np
import pytest

from jaxrl_llm.curriculum import dynamic, groups, uniform
from jaxrl_llm.types import RunSizes
from tests.helpers import tables, tiny
from tests.reference import stages as reference

WAVES = 300
NOTHING = np.float32(np.nan)  # signal and gain, which both must ignore
# Two of them are neighbours: rewards that hardly differ do differ.
REWARDS = 0.0, 1.0, -.5, np.float32(.1), np.nextafter(np.float32(.1), 1)
CREATE = {
    'uniform': uniform.create, 'dynamic': dynamic.create,
    'dynamic_1': functools.partial(dynamic.create, max_rounds=1)}
# B, P, n, D: P below B, equal, above, a multiple, and without common divisor.
SIZES = [(4, 4, 3, 11), (4, 2, 2, 5), (6, 4, 2, 40), (3, 5, 4, 7),
         (2, 9, 2, 4), (1, 3, 2, 2)]


def outcomes(rng, groups, samples):
  """Returns {group: [reward, None where the verification failed]}.

  In some waves all groups qualify for both curricula.
  """
  if rng.random() < .1:
    return {int(g): [1.0] + [0.0] * (samples - 1) for g in groups}
  found = {}
  for group in groups:
    values = rng.choice(REWARDS, samples)
    if rng.random() < .4:
      values[:] = values[0]
    failed = rng.random(samples) < rng.choice([0, .3, .9])
    found[int(group)] = [
        None if bad else value for value, bad in zip(values, failed)]
  return found


def check_ask(ask, wanted, sizes):
  """Compares requests with groups and problems; every group is asked whole."""
  prompts = len(wanted)
  assert list(zip(ask.group.tolist(), ask.problem.tolist())) == wanted
  np.testing.assert_array_equal(ask.first, np.zeros(prompts))
  np.testing.assert_array_equal(ask.count, np.full(prompts, sizes.samples))
  assert ask.probe.all() and ask.probe.shape == (prompts,)
  assert ask.group.dtype == np.int64
  assert {x.dtype for x in (ask.problem, ask.first, ask.count)} == {
      np.dtype(np.int32)}


@pytest.mark.parametrize('sizes', SIZES, ids=str)
@pytest.mark.parametrize('name', CREATE)
def test_as_the_naive_twin(name, sizes):
  sizes = tables.sizes_of(*sizes)
  made = CREATE[name](sizes)
  twin = reference.Groups(
      sizes, must_differ=name != 'uniform',
      max_rounds=1 if name == 'dynamic_1' else None)
  rng = np.random.default_rng(sizes.batch * 10 + sizes.prompts)
  state = made.init()
  shape, held, begun, taken_in = tables.form(state), {}, {}, {}
  most_held = most_taken = 0
  for wave in range(WAVES):
    state, ask = made.propose(state)
    check_ask(ask, twin.propose(), sizes)
    rewards = outcomes(rng, ask.group, sizes.samples)
    begun.update(dict.fromkeys(rewards, wave))

    table = tables.of_rewards(rng, {**held, **rewards})
    before = wave % 10 == 0 and jax.tree.map(np.copy, (state, table))
    after = made.update(
        state, ask, table, np.full(sizes.samples + 1, NOTHING),
        np.full(sizes.prompts, NOTHING))
    # Functions are pure.
    assert not before or tiny.same(before, (state, table))
    state, taken = made.take(after)
    twin.update(rewards)
    batches = twin.take()
    assert [batch.tolist() for batch in taken] == batches
    assert made.holds(state).tolist() == twin.waiting
    assert tables.form(state) == shape

    for batch in batches:
      assert not set(batch) & taken_in.keys()  # no group is trained twice
      taken_in.update(dict.fromkeys(batch, wave))
    held = {g: {**held, **rewards}[g] for g in twin.waiting}
    most_held = max(most_held, len(held))
    most_taken = max(most_taken, len(batches))

  # None that qualifies is lost.
  if name == 'uniform':
    assert begun.keys() == taken_in.keys() | held.keys()
  assert most_held == made.capacity and most_taken == made.max_rounds
  assert made.stale == any(taken_in[g] > begun[g] for g in taken_in)
  assert made.max_prompts == sizes.prompts
  assert made.max_requests == sizes.prompts * sizes.samples
  assert made.min_count == sizes.samples


@pytest.mark.parametrize('rewards, qualifies', [
    ([0, 1, 0], True), ([1, 1, 1], False), ([0, 0, 0], False),
    ([.5, .25, .5], True), ([1, None, 1], False), ([1, None, 0], True),
    ([None, None, 1], False), ([None, None, None], False),
    ([-1, -1, -2], True), ([0.0, -0.0, 0.0], False)], ids=str)
def test_dynamic_trains_on_groups_whose_valid_rewards_differ(
    rewards, qualifies):
  sizes = tables.sizes_of(2, 2, 3, 5)
  for create, wanted in ((dynamic.create, [1] if qualifies else []),
                         (uniform.create, [0, 1])):
    made = create(sizes)
    state, ask = made.propose(made.init())
    state = made.update(
        state, ask, tables.of_rewards(np.random.default_rng(0), {
            0: [1, 1, 1], 1: rewards}), None, None)
    state, taken = made.take(state)
    assert [*made.holds(state), *np.ravel(taken)] == wanted


@pytest.mark.parametrize('name', CREATE)
def test_every_epoch_visits_every_problem_once(name):
  sizes = tables.sizes_of(4, 3, 2, 7)
  made = CREATE[name](sizes)
  state, groups, problems = made.init(), [], []
  for _ in range(7 * 5):
    state, ask = made.propose(state)
    groups += ask.group.tolist()
    problems += ask.problem.tolist()
  assert groups == list(range(3 * 7 * 5))
  epochs = np.reshape(problems, (-1, 7))
  assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
  assert len(set(map(tuple, epochs))) > 10  # each is shuffled anew
  other = CREATE[name](sizes._replace(seed=4))
  assert other.propose(other.init())[1].problem.tolist() != problems[:3]


@pytest.mark.parametrize('name', CREATE)
def test_waves_may_be_in_flight(name):
  """Proposals come up to three waves before their rewards."""
  sizes = tables.sizes_of(4, 3, 2, 9)
  made = CREATE[name](sizes)
  twin = reference.Groups(
      sizes, must_differ=name != 'uniform',
      max_rounds=1 if name == 'dynamic_1' else None)
  rng = np.random.default_rng(7)
  state, held, flying, batches = made.init(), {}, [], 0
  for _ in range(300):
    while len(flying) <= rng.integers(4):
      state, ask = made.propose(state)
      check_ask(ask, twin.propose(), sizes)
      flying.append(ask)
    ask = flying.pop(0)
    rewards = outcomes(rng, ask.group, 2)
    state = made.update(
        state, ask, tables.of_rewards(rng, {**held, **rewards}), None, None)
    state, taken = made.take(state)
    twin.update(rewards)
    assert [batch.tolist() for batch in taken] == twin.take()
    assert made.holds(state).tolist() == twin.waiting
    held = {g: {**held, **rewards}[g] for g in twin.waiting}
    batches += len(taken)
  assert batches > 30


@pytest.mark.parametrize('good', [
    np.ones((2, 3), bool), np.ones(2), np.full(2, np.nan)])
def test_what_qualifies_is_a_bool_for_each_group(good):
  made = groups.make(
      RunSizes(5, 0, 2, 3, 2), lambda table, rows: good, always=False)
  state, ask = made.propose(made.init())
  table = tables.table([0, 0, 0, 1, 1, 1], [0, 1, 2] * 2)
  with pytest.raises(ValueError, match='for 2 groups: return a bool for each'):
    made.update(state, ask, table, NOTHING, NOTHING)
