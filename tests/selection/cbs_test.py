"""Tests of the selection of CBS against naive twins that keep names."""

import jax
from jax import flatten_util
import numpy as np
import pytest

from jaxrl_llm.selection import bandit, cbs, replay
from jaxrl_llm.types import Probe, rows_of, RunSizes
from tests.helpers import tables, tiny
from tests.reference import bandit as reference
from tests.reference import stages

B, N = 3, 4
SIZES = RunSizes(problems=5, seed=0, batch=B, samples=N, prompts=B, response=20)
SMALL = dict(width=8, layers=1, learning_rate=1e-2)
NETWORK = bandit.Network(**SMALL)


def create(sizes, **options):
  return cbs.create(sizes, cbs.Options(**options))


@pytest.fixture(autouse=True)
def _explicit_transfers():
  with jax.transfer_guard('disallow'):
    yield


def probe_of(reward, step, entropy=.05):
  return Probe(float(reward), float(entropy), step)


class Rows:
  """Rows of made-up groups by name, and tables of them in any order.

  Attributes:
    facts: {(group, sample): columns of the table}.
    rounds: rounds begun.
  """

  def __init__(self, seed):
    self.rng = np.random.default_rng(seed)
    self.facts, self.rounds, self._groups, self._columns = {}, 0, 0, ()

  def begin(self, failing=0.0):
    """Begins a round with B new groups; returns them and their valid rows."""
    groups = self._groups + np.arange(B)
    self._groups += B
    for g in groups:
      for j in range(N):
        valid = bool(self.rng.random() >= failing)
        self.facts[g, j] = dict(
            valid=valid, round=self.rounds if valid else -1,
            reward=self.rng.integers(0, 2), advantage=self.rng.normal(),
            group_mean=self.rng.random(), group_std=self.rng.random(),
            length=self.rng.integers(1, 21), entropy=self.rng.random(),
            truncated=bool(self.rng.random() < .5),
            clip_share=self.rng.random(), usage=self.rng.integers(0, 3))
        self._columns = tuple(self.facts[g, j])
    self.rounds += 1
    return groups, [(g, j) for g in groups for j in range(N)
                    if self.facts[g, j]['valid']]

  def table(self):
    """Returns the rows in any order, with free rows between."""
    names = [*self.facts, *[(-1, 0)] * int(self.rng.integers(4))]
    names = [names[i] for i in self.rng.permutation(len(names))]
    free = dict.fromkeys(self._columns, 0) | dict(valid=False, round=-1)
    facts = [self.facts.get(name, free) for name in names]
    return tables.table(
        [name[0] for name in names], [name[1] for name in names],
        **{key: [fact[key] for fact in facts] for key in free})

  def keep(self, held):
    self.facts = {k: v for k, v in self.facts.items() if k in held}


def features_of(rows, names, number):
  """Returns the features of rows by name, in the order of Table 1.

  Columns lie side by side, since their sums depend on it in the last bit.
  """
  return np.asfortranarray(np.float32([[
      f['reward'], f['advantage'], f['group_mean'], f['group_std'],
      f['length'] / 20, f['truncated'], f['entropy'], f['clip_share'],
      f['usage'], number - f['round']]
      for f in (rows.facts[name] for name in names)]).reshape(-1, 10))


class Twin:
  """The selection with names in lists, one pick at a time.

  It uses the bandit's own moments, scores and steps, which have their own
  tests.
  """

  def __init__(self, made, epsilon, *, groups, share):
    self._share, self._groups, self._epsilon = share, groups, epsilon
    self._count = made.rows
    self.scheduler = made.init((7,)).scheduler

  def select(self, rows, candidates, number, key):
    """Returns the names that a round picks."""
    rng = np.random.default_rng(key)
    features = features_of(rows, candidates, number)
    self.scheduler = self.scheduler._replace(
        moments=bandit.observe(self.scheduler.moments, features))
    scores = bandit.scores(NETWORK, self.scheduler, features, size=64)
    newest = rng.random(self._count) < self._epsilon(number + 1)
    pools = [range(len(candidates))]
    if self._groups:
      known = sorted({name[0] for name in candidates})
      pools = [[i for i, name in enumerate(candidates) if name[0] == g]
               for g in known]
    picked = []
    for i, pool in enumerate(pools):
      pool = list(pool)
      draws = newest[i * self._share:(i + 1) * self._share][:len(pool)]
      found = reference.pick(
          scores[pool], features[pool, -1], draws, rng.permutation(len(pool)))
      picked += [pool[j] for j in found]
    return [candidates[i] for i in picked], features[picked]

  def train(self, features, weight, reward):
    self.scheduler, _ = bandit.train(
        NETWORK, self.scheduler, features, weight * reward, size=self._count)


def schedule(number):
  return bandit.epsilon(number, warmup=3, start=.9, decay=.05, least=.3)


OPTIONS = dict(SMALL, warmup=3, epsilon=.9, epsilon_decay=.05, epsilon_min=.3)


@pytest.mark.parametrize('fields, share, lag', [
    (dict(rounds=1), 12, 0), (dict(rounds=3), 12, 1),
    (dict(scope='intra_group', keep=.5), 2, 2),
    (dict(scope='intra_group', keep=.42, pool=True), 5, 0)], ids=str)
def test_as_the_naive_twin(fields, share, lag):
  """200 waves of up to three rounds: picks, feedback, training, rows held."""
  replays = 'scope' not in fields
  length = fields.get('rounds', 1)
  groups = not replays and 'pool' not in fields
  made = create(SIZES._replace(lag=lag, rounds=3), **OPTIONS, **fields)
  assert made.rows == (share * B if groups else share)
  assert made.capacity == (length - 1) * B * N
  assert made.stale == (length > 1)
  rows, buffer = Rows(1), stages.Replay(length)
  twin = Twin(made, schedule, groups=groups, share=share)
  naive = reference.Bandit(
      lag=lag, room=(lag + 1) * 3, alpha=.9, weight=100.0, least=.1)
  state, step, steps = made.init((7,)), 0, [0] * lag
  judged = replayed = 0
  for wave in range(200):
    # Without a valid row, and all updates skipped, now and then.
    steps.append(step)
    arrived = steps[wave] if wave >= lag else None
    missing = wave < lag or rows.rng.random() < .1
    probe = probe_of(
        np.nan if missing else rows.rng.random(), arrived or 0,
        rows.rng.random() * .2)
    state = made.feedback(state, probe)
    done = len(naive.trained)
    reward = naive.feedback(probe)
    for _, (features, weight), value in naive.trained[done:]:
      assert value == reward
      # They agree to 1e-9, see below; this compares the steps to the bit.
      twin.train(features, weight, state.measured.reward.total)
      judged += 1
    assert np.isnan(state.measured.reward.total) == (reward is None)
    if reward is not None:
      assert state.measured.reward.total == pytest.approx(reward, rel=1e-9)
    for _ in range(int(rows.rng.integers(4))):
      number = rows.rounds
      taken, names = rows.begin(failing=.3 if wave % 3 == 0 else 0.0)
      buffer.begin(names)
      candidates = list(buffer.buffer()) if replays else sorted(names)
      table = rows.table()
      before = jax.tree.map(np.copy, (state, table)) if wave < 9 else None
      after, picked = made.select(
          state, table, rows_of(table, taken, N), (0, number))
      assert before is None or tiny.same(before, (state, table))
      state = after
      wanted, features = twin.select(rows, candidates, number, (0, number))
      found = tables.names(table, picked)
      assert picked.shape == (made.rows,)
      assert found[:len(wanted)] == wanted
      assert not any(found[len(wanted):])  # filler at the end
      assert len({*wanted}) == len(wanted)
      naive.selected((features, np.abs([
          rows.facts[name]['advantage'] for name in wanted], dtype=np.float32)))
      replayed += sum(rows.facts[x]['round'] < number for x in wanted)
      step += rows.rng.random() < .9
    table = rows.table()
    held = tables.names(table, np.flatnonzero(made.holds(state, table)))
    assert set(held) == buffer.held() and len(held) == len(buffer.held())
    rows.keep(buffer.held())
  assert judged > 100 and (replayed > 0) == (length > 1)
  assert tiny.same(state.scheduler, twin.scheduler)


@pytest.mark.parametrize('batch, samples, keep, pool, rows', [
    (128, 8, .3, False, 256), (128, 8, .3, True, 307), (5, 10, .3, False, 15),
    (4, 8, 1.0, False, 32), (2, 8, .125, False, 2), (25, 4, .29, True, 29)])
def test_shares_are_rounded_down(batch, samples, keep, pool, rows):
  """floor(.3 x 8) = 2 and floor(.3 x 1024) = 307; in floats .29 x 100 < 29."""
  sizes = SIZES._replace(batch=batch, samples=samples)
  made = create(sizes, scope='intra_group', keep=keep, pool=pool, **SMALL)
  assert (made.rows, made.capacity, made.stale) == (rows, 0, False)


@pytest.mark.parametrize('made_by, name', [
    (create, 'cbs'), (replay.largest_advantage, 'largest_advantage')])
def test_a_share_of_nothing_is_one_sentence(made_by, name):
  with pytest.raises(ValueError, match=(
      f'{name}.keep=0.2 of 4 .*use at least 0.25')) as error:
    made_by(SIZES, scope='intra_group', keep=.2)
  assert '\n' not in str(error.value)
  assert made_by(SIZES, scope='intra_group', keep=.2, pool=True).rows == 2


@pytest.mark.parametrize('fields', [
    dict(rounds=1), dict(rounds=3), dict(scope='intra_group', keep=.5),
    dict(scope='intra_group', keep=.42, pool=True)], ids=str)
def test_the_largest_advantage_is_cbs_with_that_score(fields, monkeypatch):
  """The same buffer, numbers of rows and rows; advantages here all differ."""
  advantage = bandit.FEATURES.index('advantage')
  monkeypatch.setattr(
      bandit, 'scores',
      lambda network, state, rows, size: np.abs(rows[:, advantage]))
  twin = create(SIZES, **SMALL, warmup=0, epsilon=0.0, epsilon_min=0.0,
                **fields)
  made = replay.largest_advantage(SIZES, **fields)
  assert (made.rows, made.capacity, made.stale) == (
      twin.rows, twin.capacity, twin.stale)
  states, rows, old = [twin.init((1,)), made.init((1,))], Rows(3), 0
  for number in range(50):
    taken, _ = rows.begin(failing=.3 if number % 3 == 0 else 0.0)
    table = rows.table()
    batch, found = rows_of(table, taken, N), []
    for i, selection in enumerate((twin, made)):
      states[i], picked = selection.select(states[i], table, batch, (number,))
      found.append(tables.names(table, picked))
    assert sorted(filter(None, found[0])) == sorted(filter(None, found[1]))
    assert len(found[1]) == made.rows
    old += sum(
        rows.facts[name]['round'] < number for name in found[1] if name)
    held = made.holds(states[1], table)
    np.testing.assert_array_equal(held, twin.holds(states[0], table))
    rows.keep(set(tables.names(table, np.flatnonzero(held))))
  assert (old > 0) == (fields.get('rounds', 1) > 1)


def first_rounds(made, rounds=3, seed=0):
  """Returns the rows, and the names that each of the first rounds picks."""
  rows, buffer, state = Rows(seed), stages.Replay(99), made.init((1,))
  found = []
  for number in range(rounds):
    state = made.feedback(
        state, probe_of(.5 + .1 * number, number, .2 + .02 * number))
    taken, names = rows.begin()
    buffer.begin(names)
    table = rows.table()
    state, picked = made.select(
        state, table, rows_of(table, taken, N), (number,))
    found.append(tables.names(table, picked))
  return rows, found, state


def test_epsilon_1_takes_the_newest_and_0_the_best_scored():
  newest = create(SIZES, rounds=3, warmup=99, epsilon_min=0.0, **SMALL)
  rows, found, _ = first_rounds(newest)
  for number, names in enumerate(found):
    assert {rows.facts[name]['round'] for name in names} == {number}
  best = create(SIZES, rounds=3, warmup=0, epsilon=0.0, epsilon_min=0.0,
                    **SMALL)
  # A scheduler whose score is the age alone.
  init = best.init

  def by_age(key):
    state = init(key)
    with jax.transfer_guard('allow'):
      params = jax.tree.map(
          lambda x: np.zeros(x.shape, x.dtype),
          NETWORK.tree(state.scheduler.params))
      params['params']['Dense_0']['kernel'][-1, 0] = 1
      params['params']['Dense_0']['bias'][0] = 20
      params['params']['Dense_1']['kernel'][0] = 1
      params, _ = flatten_util.ravel_pytree(params)
      return state._replace(scheduler=state.scheduler._replace(
          params=np.asarray(params)))

  rows, found, state = first_rounds(best._replace(init=by_age))
  assert {rows.facts[name]['round'] for name in found[1]} == {0}
  assert {rows.facts[name]['round'] for name in found[2]} == {0}
  age = state.measured.correlations[bandit.FEATURES.index('age')]
  assert age > .99  # it has taken two steps since


@pytest.mark.parametrize('changed', [
    dict(learning_rate=1e-3), dict(width=9), dict(layers=2),
    dict(epsilon_decay=.4), dict(epsilon_min=.9), dict(warmup=1),
    dict(epsilon=.1), dict(alpha=.5), dict(entropy_weight=1.0),
    dict(entropy_min=.3), dict(ablate='raw_gain'), dict(ablate='no_entropy'),
    dict(rounds=2)], ids=str)
def test_every_hyperparameter_counts(changed):
  plain = dict(SMALL, rounds=3, warmup=0, epsilon=.6, epsilon_decay=.2,
               epsilon_min=0.0)

  def run(**fields):
    _, found, state = first_rounds(
        create(SIZES, **{**plain, **fields}), rounds=6)
    return found, jax.tree.leaves(state.scheduler)

  (names, leaves), (others, changes) = run(), run(**changed)
  same = [a.shape == b.shape and np.array_equal(a, b) for a, b in zip(
      map(np.asarray, leaves), map(np.asarray, changes))]
  assert names != others or not all(same)
  assert run()[0] == names


def test_feedback_waits_for_the_first_probe_after_the_update():
  """Two rounds of wave 0 share dV; the moving averages move once."""
  made = create(SIZES._replace(rounds=2), warmup=0, entropy_min=9.0,
                    **SMALL)
  rows, state = Rows(0), made.feedback(made.init((0,)), probe_of(.4, 0))
  for key in range(2):
    taken, _ = rows.begin()
    table = rows.table()
    state, _ = made.select(state, table, rows_of(table, taken, N), (key,))
  before = state.scheduler
  waiting = made.feedback(state, probe_of(np.nan, 2))
  assert tiny.same(waiting.scheduler, before) and waiting.averages == (0, 0)
  after = made.feedback(waiting, probe_of(.5, 2))
  # dV = .1: mu = .09, sigma = .9 * .01^2; sigmoid(1.0541) = .74156.
  assert after.averages == pytest.approx((.09, 9e-5))
  assert after.measured.reward.gain == pytest.approx(.74156, rel=1e-4)
  assert int(after.scheduler.optimizer[0].count) == 2  # a step for each round
  assert (after.pending.wave == -1).all()
  # Skipped updates, and a wave without a round, are not judged.
  for later in (made.feedback(state, probe_of(.5, 0)),
                made.feedback(after, probe_of(.9, 3))):
    assert np.isnan(later.measured.reward).all()
    assert later.averages in ((0, 0), after.averages)
  assert made.feedback(state, probe_of(.5, 0)).pending.wave.max() == -1


def test_rows_of_several_waves_judge_the_rounds_before_all_of_them():
  """Takes the probe's first wave in place of the lag, as with carry_over."""
  made = create(SIZES._replace(lag=5), warmup=0, **SMALL)
  rows, state = Rows(0), made.feedback(made.init((0,)), probe_of(.4, 0))
  for key in range(3):
    taken, _ = rows.begin()
    table = rows.table()
    state, _ = made.select(state, table, rows_of(table, taken, N), (key,))
    state = made.feedback(state, probe_of(np.nan, key))
  assert state.pending.wave[:3].tolist() == [0, 1, 2]
  for wave, left in (0, [0, 1, 2]), (2, [2]), (3, []):
    after = made.feedback(state, probe_of(.5, 3)._replace(first_wave=wave))
    assert after.pending.wave[after.pending.wave >= 0].tolist() == left
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_the_oldest_waiting_round_goes_if_there_is_no_room():
  made = create(SIZES, warmup=0, **SMALL)
  state, rows = made.feedback(made.init((0,)), probe_of(.4, 0)), Rows(0)
  picked = []
  for number in range(3):
    taken, _ = rows.begin()
    table = rows.table()
    state, some = made.select(
        state, table, rows_of(table, taken, N), (number,))
    picked.append(features_of(rows, tables.names(table, some), number))
    state = made.feedback(state, probe_of(np.nan, number + 1))
  assert state.pending.wave.tolist() == [2]
  np.testing.assert_array_equal(state.pending.features[0], picked[2])


@pytest.mark.parametrize('fields', [
    dict(), dict(scope='intra_group', keep=.5)], ids=str)
def test_states_have_fixed_shapes_and_metrics_the_same_names(fields):
  made = create(SIZES._replace(lag=1, rounds=2), **SMALL, **fields)
  start = made.init((0, 7))
  state = made.feedback(start, probe_of(.5, 3))
  rows = Rows(0)
  taken, _ = rows.begin()
  table = rows.table()
  state, _ = made.select(state, table, rows_of(table, taken, N), (1,))
  assert tables.form(start) == tables.form(state)
  later = made.feedback(made.feedback(state, probe_of(.6, 4)),
                        probe_of(.6, 5))
  assert tables.form(start) == tables.form(later)
  names = {*made.metrics(start)}
  assert names == {*made.metrics(later)} == {
      f'cbs/{name}' for name in (
          'gain', 'entropy_penalty', 'reward', 'loss', 'epsilon',
          *(f'correlation/{x}' for x in bandit.FEATURES))}
  assert np.isnan([*made.metrics(start).values()]).all()
  assert made.metrics(state)['cbs/epsilon'] == 1  # in the warm-up
  found = made.metrics(later)
  assert np.isfinite([found[f'cbs/{x}'] for x in ('gain', 'loss')]).all()
  assert np.isnan(found['cbs/epsilon'])  # no round in that wave


def test_a_batch_without_a_valid_row_picks_nothing():
  for fields in (dict(rounds=1), dict(scope='intra_group', keep=.5)):
    made = create(SIZES, **SMALL, **fields)
    state = made.feedback(made.init((0,)), probe_of(.5, 0))
    table = tables.table([0] * N, [*range(N)], valid=False)
    state, picked = made.select(state, table, np.full((B, N), -1), (0,))
    assert (picked == -1).all() and state.rounds == 1
    state = made.feedback(state, probe_of(.6, 1))
    assert np.isnan(state.measured.loss)
