"""Simulation of the decode slots: steps whose responses have given lengths.

A step serves its responses in their order, each in the slot of its shard that
is free first, until all are finished, or with `sampling.carry_over` until
`sampling.wave_steps` decode steps have run; see loop/carry.py. Waits of slots
for refills are left out. The turns of a trajectory count as one response.
"""

import collections
import heapq
import math
from typing import Callable, NamedTuple, Optional

import numpy as np
from scipy import special

from jaxrl_llm.loop import carry

# Steps that are simulated, in groups of a step that have left: before the count
# begins, so that as many rows are unfinished as later; and counted.
_BEFORE, _COUNTED = 4, 16


class Lengths(NamedTuple):
  """Distribution of the lengths of responses.

  Attributes:
    name: for messages.
    quantile: (shares [R] between 0 and 1, most tokens) -> tokens [R].
  """
  name: str
  quantile: Callable[[np.ndarray, int], np.ndarray]

  def draw(
      self, rows: int, limit: int, rng: np.random.Generator | None = None,
  ) -> np.ndarray:
    """Draws lengths: evenly spread quantiles, in a random order.

    Args:
      rows: R.
      limit: most tokens.
      rng: for the order; None gives always the same.

    Returns:
      [R] int, from 1 to the limit.
    """
    spread = (rng or np.random.default_rng(0)).permutation(
        np.arange(rows) + 0.5) / rows
    return np.ceil(np.clip(self.quantile(spread, limit), 1, limit)).astype(int)


def power(mean: float) -> Lengths:
  """Returns powers of evenly spread numbers, with a mean share of the limit.

  With a mean of a quarter, half of them are shorter than an eighth, and some
  reach the limit. A mean of 1 makes all of them full.
  """
  return Lengths(
      f'power:{mean}', lambda spread, limit: limit * spread ** (1 / mean - 1))


def parse(text: str) -> Lengths:
  """Reads `lognormal:MEAN,SIGMA`, of which the limit cuts what is longer.

  The mean is that before the cut, in tokens; sigma is the standard deviation of
  the logarithm.

  Raises:
    ValueError: it is something else.
  """
  try:
    name, numbers = text.split(':')
    mean, sigma = map(float, numbers.split(','))
    if name != 'lognormal' or not (
        0 < mean < math.inf and 0 <= sigma < math.inf):
      raise ValueError(name)
  except ValueError:
    raise ValueError(
        f'lengths={text} is not lognormal:MEAN,SIGMA with a mean above 0 in '
        'tokens, such as lognormal:1200,1.') from None
  median = math.log(mean) - sigma ** 2 / 2
  return Lengths(text, lambda spread, _: np.exp(
      median + sigma * special.ndtri(spread)))


class Sizes(NamedTuple):
  """Sizes of a step.

  Attributes:
    groups: that it begins.
    requests: samples of these groups.
    shards: data shards.
    slots: decode slots of each.
    limit: most tokens of a response.
    chunk: columns of a chunk of keys and values.
    wave_steps: decode steps after which it ends; None if it waits for all.
    most: groups that may be begun and have not left.
  """
  groups: int
  requests: int
  shards: int
  slots: int
  limit: int
  chunk: int = 1
  wave_steps: Optional[int] = None
  most: int = 0


class Use(NamedTuple):
  """Means over simulated steps, of a shard where nothing else is said.

  Attributes:
    waves: steps until as many groups have left as one begins.
    steps: decode steps of the busiest shard.
    chunks: chunks that the longest response in the slots has filled, mean over
      decode steps.
    requests: that slots take.
    prompts: different ones of these requests.
    continued: share of the requests taken that have tokens already.
    existing: tokens of such a request.
    again: such tokens of a step, on all shards.
    unfinished: requests in slots at the end.
    lengths: tokens so far of all rows of one step that have new ones, on all
      shards.
  """
  waves: float
  steps: float
  chunks: float
  requests: float
  prompts: float
  continued: float
  existing: float
  again: float
  unfinished: float
  lengths: np.ndarray


class Served(NamedTuple):
  """Work of the slots of a shard in a step.

  Attributes:
    tokens: [R] new tokens of each request.
    steps: decode steps.
    chunks: that of `Use`.
  """
  tokens: np.ndarray
  steps: int
  chunks: float


def serve(
    left: np.ndarray, existing: np.ndarray, slots: int, most: float,
    chunk: int) -> Served:
  """Serves responses in their order, each in the slot that is free first.

  Args:
    left: [R] tokens that are missing.
    existing: [R] tokens that there are.
    slots: number of slots.
    most: decode steps after which nothing is served.
    chunk: columns of a chunk.
  """
  free, tokens = [0] * slots, np.zeros(len(left), int)
  filled = np.zeros(int(min(left.sum(), most)), int)
  for row, missing in enumerate(left.tolist()):
    start = free[0]
    if start >= most:
      break
    tokens[row] = new = int(min(missing, most - start))
    heapq.heapreplace(free, start + new)
    part = filled[start:start + new]
    np.maximum(part, existing[row] + np.arange(new), out=part)
  steps = max(free)
  return Served(tokens, steps, float(np.mean(
      filled[:steps] // chunk + 1)) if steps else 0.0)


def simulate(lengths: Lengths, sizes: Sizes) -> Use:
  """Simulates steps until their means are steady."""
  rng, most = np.random.default_rng(0), sizes.wave_steps or math.inf
  rows = np.zeros((4, 0), int)  # group, shard, length, tokens so far
  begun = gone = start = 0
  sums: collections.Counter = collections.Counter()
  new_groups = np.arange(sizes.requests) * sizes.groups // sizes.requests
  while gone < (_BEFORE + _COUNTED) * sizes.groups:
    counted = gone >= _BEFORE * sizes.groups
    if begun - gone + sizes.groups <= max(sizes.most, sizes.groups):
      load = np.bincount(
          rows[1, rows[3] < rows[2]], minlength=sizes.shards)
      rows = np.concatenate([rows, [
          begun + new_groups, carry.spread(load, sizes.requests),
          lengths.draw(sizes.requests, sizes.limit, rng),
          np.zeros(sizes.requests, int)]], 1)
      begun += sizes.groups
    before = rows[3].copy()
    found, longest = _wave(rows, sizes, most)
    if counted:
      sums.update(found, waves=1, longest=longest)
    group, _, length, tokens = rows
    now = int(group[tokens < length].min(initial=begun))
    last, rows, gone = tokens[tokens > before], rows[:, group >= now], now
    start = start if counted else gone
  per_shard = sums['waves'] * sizes.shards
  return Use(
      waves=sums['waves'] * sizes.groups / (gone - start),
      steps=sums['longest'] / sums['waves'],
      chunks=sums['chunks'] / max(sums['steps'], 1),
      requests=sums['requests'] / per_shard,
      prompts=sums['prompts'] / per_shard,
      continued=sums['continued'] / max(sums['requests'], 1),
      existing=sums['existing'] / max(sums['continued'], 1),
      again=sums['existing'] / sums['waves'],
      unfinished=sums['unfinished'] / per_shard, lengths=last)


def _wave(
    rows: np.ndarray, sizes: Sizes, most: float,
) -> tuple[collections.Counter, int]:
  """Serves the rows of a step on each shard; adds to their tokens in place.

  Returns:
    Sums of `Use` over the shards, and the decode steps of the busiest.
  """
  sums: collections.Counter = collections.Counter()
  longest = 0
  group, shard, length, tokens = rows
  for number in range(sizes.shards):
    queue = np.flatnonzero((shard == number) & (tokens < length))
    before = tokens[queue]
    served = serve(
        length[queue] - before, before, sizes.slots, most, sizes.chunk)
    tokens[queue] += served.tokens
    taken = served.tokens > 0
    sums.update(
        steps=served.steps, chunks=served.chunks * served.steps,
        requests=int(taken.sum()), prompts=len(np.unique(group[queue[taken]])),
        continued=int((taken & (before > 0)).sum()),
        existing=int(before[taken].sum()), unfinished=int(
            (taken & (tokens[queue] < length[queue])).sum()))
    longest = max(longest, served.steps)
  return sums, longest
