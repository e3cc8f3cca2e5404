"""Tests of selections against naive twins that keep names, not row numbers.

Rows live in a table as the loop keeps them: it loses those that nobody holds,
and has the others in any order.
"""

import jax
import numpy as np
import pytest

from jaxrl_llm.selection import all_rows, replay
from jaxrl_llm.types import Probe, rows_of, RunSizes
from tests.helpers import tables, tiny
from tests.reference import stages as reference

B, N = 3, 4
SIZES = RunSizes(problems=5, seed=0, batch=B, samples=N, prompts=B)
PROBE = Probe(.5, 1.0, 3)
DEFAULT = {'replay': lambda rounds: rounds * B * N,
           'random': lambda rounds: B * N, 'newest': lambda rounds: B * N}


def table_of(rng, rows):
  """Makes a table of {name: (round, valid)} in any order, with free rows."""
  rows = [*rows.items(), *[((-1, 0), (-1, False))] * int(rng.integers(4))]
  rows = [rows[i] for i in rng.permutation(len(rows))]
  return tables.table(
      [name[0] for name, _ in rows], [name[1] for name, _ in rows],
      round=[made for _, (made, _) in rows],
      valid=[valid for _, (_, valid) in rows])


class Loop:
  """Waves of made-up rows, kept for as long as the selection holds them.

  Attributes:
    rows: {(group, sample): (round, valid)}.
    rounds: rounds begun.
  """

  def __init__(self, rng):
    self.rng, self.rows, self.rounds = rng, {}, 0
    self._begun, self._waiting = 0, []

  def sample(self, failing):
    """Adds a wave's groups; a share `failing` of their rows is not valid."""
    for _ in range(self.rng.integers(2 * B)):
      self._waiting.append(self._begun)
      for j in range(N):
        valid = bool(self.rng.random() >= failing)
        self.rows[self._begun, j] = -1, valid
      self._begun += 1

  def begin(self):
    """Begins a round if B groups wait, not always in their order."""
    if len(self._waiting) < B or self.rng.random() < .3:
      return None
    groups = [self._waiting.pop(int(self.rng.integers(len(self._waiting))))
              for _ in range(B)]
    names = [(g, j) for g in groups for j in range(N) if self.rows[g, j][1]]
    for name in names:
      self.rows[name] = self.rounds, True
    self.rounds += 1
    return groups, names

  def drop(self, held):
    """Removes rows that are neither held nor waiting."""
    self.rows = {
        name: row for name, row in self.rows.items()
        if name in held or name[0] in self._waiting}


def check_pick(name, table, picked, count, buffer):
  """Checks the names of the rows of a round against the whole buffer."""
  found = [x for x in tables.names(table, picked) if x]
  assert len(picked) == count
  assert (picked[:len(found)] >= 0).all()  # filler at the end
  assert len(found) == len(set(found)) == min(count, len(buffer))
  assert set(found) <= buffer.keys()
  if name == 'replay':
    assert found == list(buffer)[:count]
  if name == 'newest':
    ages = [buffer[x] for x in found]
    assert ages == sorted(buffer.values())[:count]


@pytest.mark.parametrize('rounds, rows', [
    (1, None), (2, None), (3, None), (1, 5), (2, 17), (3, 200)])
@pytest.mark.parametrize('name', DEFAULT)
def test_as_the_naive_twin(name, rounds, rows):
  """300 waves with up to three rounds each."""
  made = getattr(replay, name)(SIZES, rounds=rounds, rows=rows)
  count = min(rows or DEFAULT[name](rounds), DEFAULT['replay'](rounds))
  assert made.rows == count
  twin, rng = reference.Replay(rounds), np.random.default_rng(rounds)
  loop, state, most, orders = Loop(rng), made.init((0,)), 0, set()
  for wave in range(300):
    loop.sample(failing=0.0 if wave % 100 < 50 else .4)
    state = made.feedback(state, PROBE)
    while begun := loop.begin():
      groups, names = begun
      twin.begin(names)
      table = table_of(rng, loop.rows)
      batch = rows_of(table, groups, N)
      key = 0, loop.rounds, 1
      before = jax.tree.map(np.copy, (state, table)) if wave < 20 else None
      after, picked = made.select(state, table, batch, key)
      assert before is None or tiny.same(before, (state, table))
      check_pick(name, table, picked, count, twin.buffer())
      # The rows' places in the table do not matter, the key alone does.
      other = table_of(rng, loop.rows)
      _, again = made.select(state, other, rows_of(other, groups, N), key)
      chosen = tables.names(table, picked)
      assert chosen == tables.names(other, again)
      _, third = made.select(state, table, batch, (0, loop.rounds, 2))
      orders.add(chosen == tables.names(table, third))
      state = after
    table = table_of(rng, loop.rows)
    there = made.holds(state, table)
    assert there.shape == table.group.shape and there.dtype == bool
    held = tables.names(table, np.flatnonzero(there))
    assert set(held) == twin.held() and len(held) == len(twin.held())
    most = max(most, len(held))
    loop.drop(twin.held())
  assert loop.rounds > 100
  assert most == made.capacity == (rounds - 1) * B * N
  assert made.stale == (rounds > 1)
  # The others draw lots: `newest` among the rows of one round.
  assert (False in orders) == (name != 'replay')


@pytest.mark.parametrize('name', DEFAULT)
def test_a_row_that_failed_is_never_picked(name):
  """Even if a round is noted for it, and however few are left."""
  made = getattr(replay, name)(SIZES, rounds=2, rows=7)
  table = tables.table(
      [0] * N + [1] * N, [*range(N)] * 2, round=0,
      valid=[True, False, False, True, False, False, False, True])
  batch = np.pad(
      rows_of(table, [0, 1], N), ((0, 1), (0, 0)), constant_values=-1)
  state, picked = made.select(made.init((0,)), table, batch, (1,))
  assert sorted(picked) == [-1] * 4 + [0, 3, 7]
  np.testing.assert_array_equal(made.holds(state, table), table.valid)
  none = tables.table([-1, -1], [0, 0], valid=False)
  _, picked = made.select(
      made.init((0,)), none, np.full((B, N), -1), (1,))
  np.testing.assert_array_equal(picked, np.full(7, -1))


@pytest.mark.parametrize('name, rows, wanted', [
    # 8 rows of the older round, then 4 of the newer: 0 to 7, and 8 to 11.
    ('random', 6, [.5] * 12), ('newest', 6, [.25] * 8 + [1] * 4),
    ('newest', 3, [0] * 8 + [.75] * 4), ('replay', 5, [1] * 5 + [0] * 7)])
def test_ties_are_equally_likely(name, rows, wanted):
  made = getattr(replay, name)(SIZES, rounds=2, rows=rows)
  table = tables.table(
      [0] * 4 + [1] * 4 + [2] * 4, [*range(N)] * 3,
      round=[0] * 8 + [1] * 4)
  batch = np.pad(
      rows_of(table, [2], N), ((0, 2), (0, 0)), constant_values=-1)
  state, _ = made.select(made.init((0,)), table, batch, (0,))
  draws = 2000
  counts, first = np.zeros(12), np.zeros(12)
  for key in range(draws):
    _, picked = made.select(state, table, batch, (key, 5))
    counts[picked] += 1
    first[picked[0]] += 1
  # Five standard deviations of a binomial.
  p = np.array(wanted)
  assert (np.abs(counts - draws * p) <= 5 * np.sqrt(
      draws * p * (1 - p))).all(), counts
  if name == 'random':  # the order too
    p = 1 / 12
    assert (np.abs(first - draws * p) <= 5 * np.sqrt(
        draws * p * (1 - p))).all(), first


@pytest.mark.parametrize('fields, wanted', [
    # Groups 0, 1 are of round 0, group 2 of round 1. By |advantage| and age:
    # 3 rows of 1.0 (2, 4, 9); then of .5 the newer 8 and 10, before 0, 1, 3.
    (dict(), [1/3, 1/3, 1, 1/3, 1, 0, 0, 0, 1, 1, 1, 0]),
    (dict(rounds=1), [0] * 8 + [1] * 4),
    (dict(scope='intra_group', keep=.5), [0] * 8 + [.5, 1, .5, 0])], ids=str)
def test_of_the_largest_advantages_the_newest_then_any_are_picked(
    fields, wanted):
  sizes = SIZES._replace(batch=1 + (fields == {}), samples=3 + (fields != {}))
  table = tables.table(
      [0] * 4 + [1] * 4 + [2] * 4, [*range(N)] * 3, round=[0] * 8 + [1] * 4,
      advantage=[.5, -.5, 1, .5, -1, 0, 0, .25, .5, -1, -.5, 0])
  made = replay.largest_advantage(sizes, **fields)
  state = made.init((0,))._replace(rounds=1)
  counts, draws, batch = np.zeros(12), 2000, np.full((1, N), -1)
  for key in range(draws):
    picked = made.select(state, table, batch, (key, 5))[1]
    counts[picked] += 1
    values = np.abs(table.advantage[picked])
    assert (np.diff(values) <= 0).all()
  p = np.array(wanted)  # five standard deviations of a binomial
  assert (np.abs(counts - draws * p) <= 5 * np.sqrt(
      draws * p * (1 - p))).all(), counts


def test_all_rows_are_the_rows_of_the_batch():
  made = all_rows.create(SIZES)
  assert (made.rows, made.capacity, made.stale) == (B * N, 0, False)
  loop, state = Loop(np.random.default_rng(0)), made.init((0,))
  for _ in range(1000):
    loop.sample(failing=.3)
    while begun := loop.begin():
      groups, _ = begun
      table = table_of(loop.rng, loop.rows)
      state, picked = made.select(
          made.feedback(state, PROBE), table, rows_of(table, groups, N), (1,))
      assert tables.names(table, picked) == [
          (g, j) if loop.rows[g, j][1] else None
          for g in groups for j in range(N)]
    table = table_of(loop.rng, loop.rows)
    held = made.holds(state, table)
    assert held.shape == table.group.shape and not held.any()
    loop.drop(())
  assert loop.rounds > 100


@pytest.mark.parametrize('create', [
    all_rows.create, replay.largest_advantage, *[
        lambda sizes, name=name: getattr(replay, name)(
            sizes, rounds=2, rows=None) for name in DEFAULT]])
def test_states_have_fixed_shapes(create):
  made = create(SIZES)
  table = tables.table([0] * N, [*range(N)], round=0)
  batch = np.pad(
      rows_of(table, [0], N), ((0, 2), (0, 0)), constant_values=-1)
  first = made.init((0, 7))
  state, _ = made.select(made.feedback(first, PROBE), table, batch, (1,))

  def form(x):
    return np.shape(x), np.asarray(x).dtype

  assert jax.tree.map(form, first) == jax.tree.map(form, state)
