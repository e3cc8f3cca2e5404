"""Tests of the rows of a wave, and of those that are kept for the next one."""

import jax
import numpy as np
import pytest

from jaxrl_llm.loop import rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.prepare import stages
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import GroupRequests, Rollouts, rows_of
from tests.helpers import tables, tiny
from tests.helpers.tolerance import rounding

# Every column is there: old log-probs for replay, an anchor for the penalty.
FIELDS = dict(selection='replay', replay__rounds=2, loss__kl_coef=.1)


def made(**fields):
  """Returns a config and its stages."""
  fields = {**FIELDS, **fields}
  if fields['selection'] != 'replay':
    fields.pop('replay__rounds')
  config = tiny.load(**fields)
  return config, stages.make_stages(config, 40)


@pytest.mark.parametrize('valid', [True, False])
def test_rows_of_groups_as_loops_find_them(valid):
  rng = np.random.default_rng(0)
  missing = 0
  for _ in range(300):
    n, far = int(rng.integers(1, 5)), int(rng.choice([0, 2 ** 40]))
    there = [(g + far, j) for g in range(6) for j in range(n)]
    there = [there[i] for i in rng.permutation(len(there))]
    # Some are missing, others free.
    there = there[:rng.integers(len(there) + 1)]
    there = [(-1, j) if rng.random() < .1 else (g, j) for g, j in there]
    table = tables.table(
        [g for g, _ in there], [j for _, j in there],
        valid=rng.random(len(there)) < .7)
    groups = rng.permutation(8)[:rng.integers(9)] + far
    wanted = np.full((len(groups), n), -1)
    for i, group in enumerate(groups):
      for row, name in enumerate(there):
        if name[0] == group and (table.valid[row] or not valid):
          wanted[i, name[1]] = row
    found = rows_of(table, groups, n, valid=valid)
    np.testing.assert_array_equal(found, wanted)
    missing += (wanted < 0).sum()
  assert missing > 300


def wave(config, tempered=True):
  """Returns requests of groups 7, 8 and 5, whose first sample was asked before,
  with made-up responses and verdicts to it.
  """
  rng = np.random.default_rng(1)
  ask = GroupRequests(
      group=np.array([7, 8, 5]), problem=np.array([3, 0, 9], np.int32),
      first=np.array([0, 0, 1], np.int32), count=np.array([4, 2, 3], np.int32),
      probe=np.array([True, True, False]))
  problems = [Problem(100 + i, f'{i}', 'two') for i in ask.problem]
  prompts = rollout.encode(problems, Digits(), config.max_prompt)
  asked = rollout.SampleCall(problems, prompts, rollout.requests_of(
      ask, problems=40, samples=4, budget=config.max_response))
  rows, width = len(asked.requests.prompt), config.max_response
  length = np.array([1, 10, 3, 0, 5, 2, 9, 10, 4], np.int32)
  real = np.arange(width) < length[:, None]

  def random():
    return rng.random((rows, width)).astype(np.float32)

  rollouts = Rollouts(
      tokens=np.where(real, rng.integers(1, 24, (rows, width)), 0).astype(
          np.int32), length=length, logprobs=np.where(real, -random(), 0),
      # What stands past the end must not count.
      entropy=np.where(real, random(), 99), truncated=length == width,
      problem_id=prompts.problem_id[asked.requests.prompt],
      sample=asked.requests.sample, policy_step=np.full(rows, 6, np.int32),
      tempered_logprobs=np.where(real, -random(), 0) if tempered else None)
  verdicts = [
      Verdict(float('nan'), 'error', valid=False) if i in (2, 7) else
      Verdict(i / 4, 'fine') for i in range(rows)]
  use = dict(steps=1, busy=1, slots=1)
  entropy = np.array([
      row[:count].mean() if count else 0 for row, count in zip(
          rollouts.entropy, length)], np.float32)
  return ask, rollout.Responses(
      asked, rollouts, np.arange(rows), [''] * rows,
      np.arange(rows, dtype=np.int32) // 5, use, policy_step=6), rollout.Judged(
          np.array([v.reward for v in verdicts]), [v.kind for v in verdicts],
          [''] * rows, length, length == width, entropy, use, verdicts)


class Digits:
  """Tokeniser of prompts of one digit; the second token tells them apart."""

  def encode(self, text):
    return [1, 2 + int(text)]


def test_the_columns_of_a_wave():
  config, parts = made()
  ask, responses, judged = wave(config)
  table, tokens = rows_lib.of_wave(ask, responses, judged, parts)
  rollouts = responses.rollouts
  row = 0
  for p, group in enumerate(ask.group):
    for j in range(ask.first[p], ask.first[p] + ask.count[p]):
      length, verdict = rollouts.length[row], judged.verdicts[row]
      got = {name: column[row] for name, column in table.columns.items()}
      mean = sum(map(float, rollouts.entropy[row, :length])) / max(length, 1)
      assert got.pop('entropy') == pytest.approx(
          mean, rel=rounding(config.max_response, 1))
      for name in ('advantage', 'group_mean', 'group_std'):
        assert np.isnan(got.pop(name))
      assert got == dict(
          group=group, sample=j, problem=ask.problem[p], policy_step=6,
          reward=verdict.reward if verdict.valid else 0, valid=verdict.valid,
          length=length, generated=length, prompt_length=2,
          truncated=length == config.max_response, trained=False,
          clip_share=0, usage=0, round=-1, probe=ask.probe[p],
          shard=row // 5)
      prompt = responses.call.prompts
      np.testing.assert_array_equal(tokens.prompt[row], prompt.tokens[p])
      assert tokens.prompt[row, 1] == 2 + ask.problem[p]
      assert tokens.prompt_length[row] == prompt.length[p] == 2
      row += 1
  assert table.separate is None and len(table.group) == row == 9
  np.testing.assert_array_equal(tokens.response, rollouts.tokens)
  np.testing.assert_array_equal(tokens.length, rollouts.length)
  assert not tokens.old_logprobs.any() and not tokens.anchor_logprobs.any()
  assert tokens.old_logprobs.shape == tokens.response.shape
  # The types are those of a buffer, so that both can be joined.
  free = rows_lib.empty(1, parts)
  assert jax.tree.map(lambda x: (x.dtype, x.shape[1:]), free) == jax.tree.map(
      lambda x: (x.dtype, x.shape[1:]), rows_lib.Buffer(table, tokens))


@pytest.mark.parametrize('advantage', ['gdpo', 'grpo'])
def test_separate_rewards_are_kept_for_an_advantage_that_takes_them(advantage):
  config, parts = made(advantage=advantage)
  with config.unlocked():
    config.task.reward = 'a.py:f', 'a.py:g'
  parts = stages.make_stages(config)
  ask, responses, judged = wave(config)
  separate = np.random.default_rng(0).random((2, 9))
  separate[1, 3] = np.nan  # one that does not count
  judged = judged._replace(rewards=dict(zip('fg', separate)))
  table, _ = rows_lib.of_wave(ask, responses, judged, parts)
  free = rows_lib.empty(2, parts).table
  if advantage == 'grpo':
    assert table.separate is None and free.separate is None
    return
  np.testing.assert_array_equal(table.separate, separate.T.astype(np.float32))
  joined = rows_lib.join(table, free)
  assert joined.separate.shape == (11, 2)
  assert np.isnan(joined.separate[9:]).all()
  # A wave of which no verification came back has none.
  lost, _ = rows_lib.of_wave(
      ask, responses, judged._replace(rewards={}), parts)
  assert np.isnan(lost.separate).all()


@pytest.mark.parametrize('behaviour, tempered, wanted', [
    ('tempered', True, 'tempered_logprobs'), ('sampled', True, 'logprobs'),
    ('tempered', False, 'logprobs'), ('sampled', False, 'logprobs')])
def test_the_behaviour_log_probs(behaviour, tempered, wanted):
  """The sampler records one array for both if nothing truncates."""
  config, parts = made(loss__behaviour=behaviour)
  ask, responses, judged = wave(config, tempered)
  _, tokens = rows_lib.of_wave(ask, responses, judged, parts)
  np.testing.assert_array_equal(
      tokens.behaviour_logprobs, getattr(responses.rollouts, wanted))


@pytest.mark.parametrize('fields, old, anchor', [
    (dict(selection='all_rows', loss__kl_coef=0), False, False),
    (dict(loss__kl_coef=0), True, False),
    (dict(selection='all_rows'), False, True), ({}, True, True),
    (dict(selection='all_rows', curriculum='dynamic'), True, True),
    (dict(selection='all_rows', learner__updates=2), True, True),
    (dict(selection='all_rows', learner__epochs=2), True, True),
    (dict(selection='all_rows', curriculum_prompts=8), True, True),
    (dict(selection='all_rows', curriculum_prompts=2), True, True)], ids=str)
def test_log_probs_that_nothing_needs_are_not_there(fields, old, anchor):
  config, parts = made(**fields)
  tokens = rows_lib.empty(3, parts).tokens
  assert (tokens.old_logprobs is not None) == old
  assert (tokens.anchor_logprobs is not None) == anchor


def filled(groups, samples, config, parts, start=0):
  """Makes a buffer whose rows differ from each other in every column."""
  rows = len(groups)
  free = rows_lib.empty(rows, parts)
  number = iter(range(start, 10 ** 6))

  def distinct(column):
    values = np.array([next(number) for _ in range(column.size)])
    if column.dtype == bool:
      values = values // 2 % 2 == 1
    return values.reshape(column.shape).astype(column.dtype)

  made = jax.tree.map(distinct, free)
  return made._replace(table=made.table.replace(
      group=np.array(groups), sample=np.array(samples, np.int32)))


def rows_in(made):
  """Returns every column of each row, as bytes."""
  columns = jax.tree.leaves(made)
  assert len({len(column) for column in columns}) == 1
  assert len(columns) == 20 + 7
  return [b'|'.join(column[i].tobytes() for column in columns)
          for i in range(len(columns[0]))]


def test_joined_rows_stand_after_those_held():
  config, parts = made()
  held = filled([4, -1, 2], [0, 0, 1], config, parts)
  new = filled([9, 9], [0, 1], config, parts, start=5000)
  assert rows_in(rows_lib.join(held, new)) == rows_in(held) + rows_in(new)
  none = rows_lib.empty(0, parts)
  assert rows_in(rows_lib.join(none, new)) == rows_in(new)
  assert tiny.same(rows_lib.join(none, new), new)


def holding(parts, groups=(), names=(), capacity=(0, 0)):
  """Makes stages that hold certain groups and rows, for any state."""
  def holds(state, table):
    return np.array([
        (g, j) in names for g, j in zip(table.group, table.sample)], bool)

  return parts._replace(
      curriculum=parts.curriculum._replace(
          holds=lambda state: np.array(groups, int), capacity=capacity[0]),
      selection=parts.selection._replace(holds=holds, capacity=capacity[1]))


def test_every_column_of_a_kept_row_moves_with_it():
  config, parts = made()
  rng = np.random.default_rng(2)
  for _ in range(50):
    names = [(g, j) for g in range(7) for j in range(4)]
    names = [names[i] for i in rng.permutation(28)][:20]
    names += [(-1, 0)] * 3
    names = [names[i] for i in rng.permutation(23)]
    full = filled(*np.transpose(names), config, parts)
    groups = rng.permutation(9)[:3]  # some are not there
    picked = {names[i] for i in rng.permutation(23)[:4]}
    stages_of = holding(parts, groups, picked, (3, 4))
    before = rows_in(full)
    kept = rows_lib.keep(full, stages_of, None, None)
    # Rows that failed stay too; a free row never does, nor any row twice.
    stay = [i for i, name in enumerate(names) if name[0] >= 0 and (
        name in picked or name[0] in groups)]
    free = rows_in(rows_lib.empty(1, parts))
    assert rows_in(kept) == [before[i] for i in stay] + free * (
        3 * 4 + 4 - len(stay))
    assert rows_in(full) == before


def test_a_buffer_has_the_room_of_both_stages():
  config, parts = made(curriculum='dynamic')
  # Three groups that wait, and the rows of one round.
  assert rows_lib.capacity(parts) == 3 * 4 + 16
  full = filled([0, 1], [0, 0], config, parts)
  full = full._replace(table=full.table.replace(
      round=np.full(2, -1, np.int32)))
  kept = rows_lib.keep(full, parts, parts.curriculum.init(),
                     parts.selection.init((0,)))
  # Nobody holds a group that did not qualify.
  assert rows_in(kept) == rows_in(rows_lib.empty(28, parts))


def test_rows_in_one_stage_may_use_the_room_of_the_other():
  """The capacities are added; a row that both hold counts once."""
  config, parts = made()
  names = [(g, j) for g in range(2) for j in range(4)]
  full = filled(*np.transpose(names), config, parts)
  for groups, picked in (((0, 1), names), ((0,), names[2:]), ((), names)):
    kept = rows_lib.keep(
        full, holding(parts, groups, picked, (1, 4)), None, None)
    assert rows_in(kept) == rows_in(full)


@pytest.mark.parametrize('groups, picked', [
    ((0, 1), ()), ((), (0, 1, 2, 3, 4)), ((0,), (4,))])
def test_more_rows_than_there_is_room_for_are_one_sentence(groups, picked):
  config, parts = made()
  names = [(g, j) for g in range(2) for j in range(4)]
  full = filled(*np.transpose(names), config, parts)
  stages_of = holding(
      parts, groups, [names[i] for i in picked], (1, 0))
  with pytest.raises(ValueError, match=r'more than the 4 of their') as error:
    rows_lib.keep(full, stages_of, None, None)
  assert f'hold {4 * len(groups) + len(picked)} rollouts' in str(error.value)
  assert '\n' not in str(error.value)


def test_a_batch_of_a_group_that_is_not_there_is_one_sentence():
  table = tables.table([3, 3, 5], [0, 1, 0], valid=[True, False, False])
  rows = rows_lib.batch_rows(table, np.array([5, 3]), 2)
  assert rows.tolist() == [[-1, -1], [0, -1]]
  with pytest.raises(ValueError, match='takes group 4, of which') as error:
    rows_lib.batch_rows(table, np.array([3, 4]), 2)
  assert '\n' not in str(error.value)
