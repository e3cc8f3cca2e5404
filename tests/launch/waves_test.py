"""Tests of the simulation of decode slots."""

import collections

import numpy as np
import pytest

from jaxrl_llm.launch.aot import waves
from jaxrl_llm.loop import carry


def test_powers():
  lengths = waves.power(.25).draw(4000, 32)
  assert abs(lengths.mean() - 8) < 1  # rounded up, on average by a half
  assert (lengths.min(), lengths.max()) == (1, 32)
  assert 4 <= np.median(lengths) <= 5
  assert (lengths == waves.power(.25).draw(4000, 32)).all()
  assert (waves.power(1.).draw(5, 32) == 32).all()


def test_lognormal():
  """The mean is exp(mu + sigma^2 / 2), before the limit cuts."""
  lengths = waves.parse('lognormal:1200,1').draw(100_000, 10 ** 6)
  assert lengths.mean() == pytest.approx(1200, rel=.01)
  assert np.log(lengths).std() == pytest.approx(1, rel=.01)
  cut = waves.parse('lognormal:1200,1').draw(100_000, 4096)
  assert (cut == np.minimum(lengths, 4096)).all()
  assert set(waves.parse('lognormal:7,0').draw(9, 32)) == {7}


@pytest.mark.parametrize('text', [
    'lognormal', 'lognormal:1200', 'lognormal:1200,1,2', 'normal:1200,1',
    'lognormal:0,1', 'lognormal:-3,1', 'lognormal:nan,1', 'lognormal:9,inf',
    'lognormal:1200,-1', '', '1200,1'])
def test_other_lengths(text):
  with pytest.raises(ValueError, match=f'lengths={text} is not lognormal:MEAN'):
    waves.parse(text)


def test_slots_that_are_free_first_serve_next():
  # One slot has 5, then 2. The other has 1, 3 from step 1, and 4 from step 4.
  served = waves.serve(
      np.array([5, 1, 3, 4, 2]), np.zeros(5, int), 2, np.inf, 2)
  # The first is the longest until its end, then that of 4.
  assert served.steps == 8 and served.tokens.tolist() == [5, 1, 3, 4, 2]
  assert served.chunks == np.mean([1, 1, 2, 2, 3, 1, 2, 2])


def test_a_wave_that_ends():
  """After 5 steps, the third has 4 of 6 tokens; 3 existed. Nobody is fourth."""
  served = waves.serve(
      np.array([5, 1, 6, 4]), np.array([0, 0, 3, 0]), 2, 5, 2)
  assert served.tokens.tolist() == [5, 1, 4, 0] and served.steps == 5
  # Positions 0; 1 and 3; 2 and 4; 3 and 5; 4 and 6.
  assert served.chunks == np.mean([1, 2, 3, 3, 4])


def twin(draw, sizes, steps):
  """Decodes token by token; (decode steps, groups that leave) of each step."""
  groups, found = collections.deque(), []
  for _ in range(steps):
    if len(groups) + sizes.groups <= max(sizes.most, sizes.groups):
      load = [0] * sizes.shards
      for group in groups:
        for row in group:
          load[row[0]] += row[1] > 0
      each = sizes.requests // sizes.groups
      lengths = draw()
      shards = carry.spread(np.array(load), sizes.requests).tolist()
      rows = [list(row) for row in zip(shards, lengths)]
      groups += [rows[i:i + each] for i in range(0, len(rows), each)]
    longest = 0
    for shard in range(sizes.shards):
      queue = [row for group in groups for row in group
               if row[0] == shard and row[1] > 0]
      slots, used = [], 0
      while (queue or slots) and used != sizes.wave_steps:
        while queue and len(slots) < sizes.slots:
          slots.append(queue.pop(0))
        for row in slots:
          row[1] -= 1
        slots, used = [row for row in slots if row[1]], used + 1
      longest = max(longest, used)
    gone = 0
    while groups and not any(row[1] for row in groups[0]):
      groups.popleft()
      gone += 1
    found.append((longest, gone))
  return found


@pytest.mark.parametrize('wave_steps, most', [(None, 0), (7, 40), (20, 12)])
def test_a_twin_that_decodes_token_by_token(wave_steps, most):
  sizes = waves.Sizes(4, 12, 3, 2, 30, 1, wave_steps, most)
  lengths = waves.parse('lognormal:8,1')
  got, rng = waves.simulate(lengths, sizes), np.random.default_rng(0)
  want = twin(lambda: lengths.draw(12, 30, rng).tolist(), sizes, 400)
  ends = np.cumsum([gone for _, gone in want])
  first, last = np.searchsorted(ends, (16, 80))  # of 4 and of 20 times 4 groups
  counted = want[first + 1:last + 1]
  assert got.waves == pytest.approx(
      len(counted) * 4 / sum(gone for _, gone in counted))
  assert got.steps == pytest.approx(np.mean([used for used, _ in counted]))
  if wave_steps is None:
    # Each shard has 4 rows of groups of 3, so of 2 groups.
    assert (got.waves, got.requests, got.prompts) == (1, 4, 2)
    assert got.continued == got.again == got.unfinished == 0
  else:
    assert 0 < got.continued < 1 and got.unfinished <= 2
    assert 0 < got.existing < 30 and got.again > 0
