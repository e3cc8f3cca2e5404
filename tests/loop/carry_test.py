"""Waves that end early against a twin of single responses, and whole runs."""

import types
import zlib

import numpy as np
import pytest

from jaxrl_llm.learner.advantages import WaveSignal
from jaxrl_llm.loop import carry, rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.prepare import stages
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import Rollouts
from tests.helpers import tiny
from tests.reference import carried

_T, _PROBLEMS, _SHARDS = 10, 7, 3


class _Home:
  """Processes of a run, seen from one home, and what the others would say."""

  mesh = types.SimpleNamespace(shape={'data': _SHARDS, 'fsdp': 1})
  truth: list = []

  def __init__(self, number, count):
    self.number, self.count = number, count

  def here(self, shard):
    return shard % self.count == self.number

  def gather_rows(self, shard, mine, extra=None):
    assert mine == [x for x, here in zip(self.truth, self.here(shard)) if here]
    return self.truth, [extra]


class _Letters:
  """A tokeniser of digits."""

  def encode(self, text):
    return [int(x) for x in text]


def _parts(home, **fields):
  """Returns the parts of a run that the bookkeeping reads."""
  made = stages.make_stages(tiny.load(**dict(
      sampling__carry_over=True, sampling__wave_steps=4) | fields), _PROBLEMS)

  def of_wave(rewards, valid, length, probe, complete, step, columns):
    gain = np.where(complete, np.abs(rewards).sum(1), np.nan)
    return WaveSignal(np.arange(5.0), gain, {})

  return types.SimpleNamespace(
      stages=made, processes=home, replicate=lambda x: x,
      advantages=types.SimpleNamespace(of_wave=of_wave, columns=()),
      task=types.SimpleNamespace(tokenizer=_Letters(), train=[
          Problem(i, str(i), '') for i in range(_PROBLEMS)]),
      programs=types.SimpleNamespace(rollout_sampler=types.SimpleNamespace(
          sampler=types.SimpleNamespace(sampler=types.SimpleNamespace(
              tempered=False, stop_texts=None)))))


def _token(group, sample, t):
  return zlib.crc32(f'{group} {sample} {t}'.encode()) % 9 + 1


def _length(group, sample):
  """Returns the tokens of a whole response, and whether the budget ends it."""
  most = zlib.crc32(f'{group} {sample}'.encode()) % 14 + 1
  return min(most, _T), most > _T


def _progress(rng, rows, prompts):
  """Draws tokens for unfinished rows: some first ones of each shard go on."""
  served = rng.integers(0, 7, _SHARDS)
  out = []
  for row in rows:
    served[row.shard] -= 1
    whole = _length(row.group, row.sample)[0]
    now = int(rng.integers(1, _T)) if served[row.shard] >= 0 else 0
    now = min(now, whole - len(row.wrote))
    out.append((now, len(row.wrote) + now == whole))
  return out


def _rollouts(home, rows, progress):
  """Returns what the sampler of a home gives for these responses."""
  n = len(rows)
  got = Rollouts(**{
      name: np.zeros((n, *[_T] * ('T' in column.axes)), column.type)
      for name, column in Rollouts.declared.items() if not column.maker})
  truth = []
  for i, (row, (now, done)) in enumerate(zip(rows, progress)):
    before = len(row.wrote)
    cut = now > 0 and not (done and not _length(row.group, row.sample)[1])
    truth.append([before + now if now else 0, cut])
    if home.here(np.array(row.shard)) and now:
      got.length[i], got.truncated[i] = before + now, cut
      for t in range(before, before + now):
        got.tokens[i, t] = _token(row.group, row.sample, t)
        got.logprobs[i, t] = -_token(row.group, row.sample, t)
  home.truth = truth
  return got


def _judged(begun, done, use):
  table, n = begun.table.at(done), len(done)
  reward = (table.sample + table.group) % 3 / 2.0
  return rollout.Judged(
      reward, ['x'] * n, [''] * n, begun.rollouts.length[done],
      begun.rollouts.truncated[done], np.ones(n, np.float32), use, [])


@pytest.mark.parametrize('shards', [1, 2, 5])
def test_rows_of_another_mesh_are_spread_over_this_one(shards):
  """No shard has more unfinished rows than there are places for."""
  parts = _parts(_Home(0, 1))
  begun = carry.begin(
      carry.empty(parts), parts.stages.curriculum.propose(
          parts.stages.curriculum.init())[1], parts)
  rng = np.random.default_rng(shards)
  finished = rng.random(begun.samples) < .4
  begun = carry._padded(begun._replace(finished=finished), parts)
  moved = carry.moved(begun, shards)
  count = np.bincount(
      moved.table.shard[:begun.samples][~finished], minlength=shards)
  assert len(count) == shards and count.max() - count.min() <= 1
  assert moved.table.shard.max() < shards
  before = begun.table.shard[:begun.samples]
  assert {*before.tolist()} == {*range(_SHARDS)}  # of the old mesh, in place


@pytest.mark.parametrize('fields, waves, home', [
    ({}, 1000, (0, 1)),
    (dict(curriculum_prompts=6, sampling__carry_groups=8), 200, (0, 2)),
    (dict(curriculum='dynamic', sampling__wave_steps=9), 200, (1, 2)),
    (dict(curriculum='speed', speed__n_init=1, curriculum_prompts=5), 200,
     (1, 2))])
def test_the_bookkeeping_of_waves_equals_its_twin(fields, waves, home):
  """Requests, noise, homes, ages, order and batches, for random cuts."""
  parts = _parts(_Home(*home), **fields)
  plain = stages.make_stages(tiny.load(**{
      k: v for k, v in fields.items() if 'carry' not in k and 'wave' not in k}))
  sizes, settings = parts.stages.curriculum, parts.stages.settings
  of_wave = plain.curriculum.max_prompts, plain.curriculum.max_requests
  assert settings.carry[2:] == of_wave
  assert sizes.max_prompts == fields.get(
      'sampling__carry_groups', of_wave[0] * (
          1 + -(-_T // settings.carry.steps)))
  twin = carried.Waves(
      _SHARDS, settings.carry.prompts, sizes.max_prompts, sizes.max_requests,
      of_wave)
  rng, state = np.random.default_rng(0), sizes.init()
  begun, buffer = carry.empty(parts), rows_lib.empty(0, parts.stages)
  shapes, left, batches, paused = set(), [], 0, 0
  for step in range(waves):
    shapes.add(str([x.shape for x in rows_lib.jax.tree.leaves(begun.rows)]))
    room = twin.has_room()
    state, ask, begun = carry.propose(parts, state, begun)
    assert room or not len(ask.group)
    paused += not room
    twin.begin([
        (int(group), range(first, first + count))
        for group, first, count in zip(ask.group, ask.first, ask.count)])

    rows, waiting = np.flatnonzero(~begun.finished), twin.unfinished()
    call, table = carry.call_of(parts, begun, rows), begun.table.at(rows)
    assert table.shard.tolist() == [row.shard for row in waiting]
    requests = call.requests
    assert requests.done.tolist() == [len(row.wrote) for row in waiting]
    assert requests.birth.tolist() == [twin.birth(row) for row in waiting]
    problem = [call.problems[i].id for i in requests.prompt]
    for i, row in enumerate(waiting):
      have = [_token(row.group, row.sample, t) for t in range(len(row.wrote))]
      if parts.processes.here(np.array(row.shard)):
        assert requests.tokens[i, :len(have)].tolist() == have
      assert not requests.tokens[i, len(have):].any()
      assert requests.sample[i] == row.group // _PROBLEMS * 4 + row.sample
      assert problem[i] == begun.ask.problem[begun.ask.group == row.group][0]

    progress = _progress(rng, waiting, settings.carry.prompts)
    rollouts = _rollouts(parts.processes, waiting, progress)
    policy = step // 3
    twin.add(step, policy, progress)
    so_far, finished = carry.continued(
        call.requests, rollouts, begun, rows, parts.processes)
    begun = carry.note(
        begun, rows, so_far, finished, call, types.SimpleNamespace(
            policy_step=policy, step=step))
    done = rows[begun.finished[rows]]
    use = dict(steps=4, prefilled=0)
    responses = rollout.Responses(
        carry.call_of(parts, begun, done), begun.rollouts.at(done), done, [],
        begun.table.shard[done], use, policy)
    wave = carry.wave(
        parts, types.SimpleNamespace(step=step, buffer=buffer), begun,
        responses, _judged(begun, done, use))
    gone = [row for entry in twin.leave() for row in entry]
    out = wave.carried.rows.table
    assert [*zip(out.group, out.sample, out.length, out.policy_step)] == [
        (row.group, row.sample, len(row.wrote), row.wrote[0]) for row in gone]
    assert out.valid.all() and (
        out.reward == (out.group + out.sample) % 3 / 2).all()
    tokens = wave.carried.rows.tokens
    for i, row in enumerate(gone):
      n = len(row.wrote)
      assert tokens.token_steps[i].tolist() == row.wrote + [0] * (_T - n)
      if parts.processes.here(np.array(row.shard)):
        want = [_token(row.group, row.sample, t) for t in range(n)]
        assert tokens.response[i].tolist() == want + [0] * (_T - n)
        assert (-tokens.behaviour_logprobs[i, :n]).tolist() == want
    ages = [step - row.first for row in gone]
    if ages:
      metrics = wave.carried.metrics
      assert metrics['carry/age_max'] == max(ages)
      assert metrics['carry/age'] == pytest.approx(np.mean(ages))
      assert metrics['carry/older'] == pytest.approx(np.mean([
          x < policy for row in gone for x in row.wrote]))
    left += [row.group for row in gone]

    held = rows_lib.join(buffer, wave.carried.rows)
    state = sizes.update(
        state, wave.carried.ask, held.table, wave.signal.signal,
        wave.signal.gain)
    state, taken = sizes.take(state)
    for groups in taken:
      rows_lib.batch_rows(held.table, groups, 4)  # all of them are there
    batches += len(taken)
    buffer = rows_lib.keep(held, parts.stages, state, None)
    begun = carry._padded(wave.carried.begun, parts)
  assert len(shapes) == 1 and batches > waves / 20
  assert paused > waves / 20
  if not fields.get('curriculum') == 'speed':
    assert left == sorted(left)
