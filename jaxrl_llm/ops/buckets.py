"""Static lengths for rows of different lengths, chosen before a run.

A program is compiled once for each length, and a batch of rows runs at the
shortest one that holds its longest row. A few lengths, chosen by the lengths of
the real prompts, avoid most of the padding.
"""

from typing import Sequence

import numpy as np

MOST = 5  # lengths in addition to the full one
RESPONSES = 7  # of them for responses, whose lengths differ most
LISTS, RATIO = 8, 1.2  # of them for lists of tokens, and between these
WORTH = 0.02  # share of the work that a length must save
_STEPS, _DRAWN = 400, 1 << 20  # most simulated steps, and rows of them all


def choose(
    sizes: np.ndarray, *, full: int, most: int = MOST, worth: float = WORTH,
) -> tuple[int, ...]:
  """Chooses the lengths that make the sum of padded sizes smallest.

  Args:
    sizes: [N] lengths to be padded, each from 1 to `full`.
    full: longest length; it always exists, and is not in the result.
    most: most lengths to choose.
    worth: each additional length must save this share of the padded sum
      without it; saving less ends the choice.

  Returns:
    At most `most` lengths below `full`, ascending. They are multiples of a
    power of two that is about `full` / 32.
  """
  unit = 1 << max((full // 32).bit_length() - 1, 0)
  padded = np.minimum(-(-np.asarray(sizes, int) // unit) * unit, full)
  ends, counts = np.unique(np.append(padded, full), return_counts=True)
  counts[-1] -= 1  # `full` itself
  counts = np.append(0, np.cumsum(counts))
  # best[j]: least sum of the sizes up to ends[j - 1], if that is a length;
  # chosen[j]: the lengths. Each round allows one length more.
  best = np.append(0, ends * counts[1:])
  chosen = [(), *((end,) for end in ends)]
  found = chosen[-1]
  for _ in range(most):
    sums = best[:-1, None] + (counts[1:] - counts[:-1, None]) * ends
    sums[np.tri(*sums.shape, -1, dtype=bool)] = np.iinfo(sums.dtype).max
    last = sums.argmin(0)
    saved = best[-1] - sums[last[-1], -1]
    if saved < worth * best[-1] or not saved:
      break
    best = np.append(0, sums[last, np.arange(len(ends))])
    chosen = [(), *(
        (*chosen[i], end) for i, end in zip(last, ends))]
    found = chosen[-1]
  return tuple(int(end) for end in found[:-1])


def of_prompts(
    lengths: Sequence[int], *, max_prompt: int, together: int,
) -> tuple[int, ...]:
  """Chooses lengths for the prefill of prompts.

  Args:
    lengths: tokens of each prompt of the training set, at most `max_prompt`.
    max_prompt: full length.
    together: prompts in one prefill; all are padded alike.
  """
  drawn = np.random.default_rng(0).choice(
      lengths, (_steps(together), together))
  return choose(drawn.max(1), full=max_prompt)


def of_rows(
    lengths: Sequence[int], *, max_prompt: int, max_response: int,
    prompts: int, samples: int, updates: int, microbatch: int,
) -> tuple[int, ...]:
  """Chooses lengths for the learner's microbatches.

  The lengths of responses are not known before a run. Half of them are taken to
  be truncated, the others to have any length with the same probability.

  Args:
    lengths: tokens of each prompt of the training set, at most `max_prompt`.
    max_prompt: most tokens of a prompt.
    max_response: most tokens of a response.
    prompts: prompts of a batch.
    samples: responses to each.
    updates: mini-batches of a batch.
    microbatch: rows of a microbatch; a mini-batch is sorted by length, then
      split.
  """
  random = np.random.default_rng(0)
  rows = prompts * samples
  steps = _steps(rows)
  drawn = np.repeat(random.choice(lengths, (steps, prompts)), samples, 1)
  response = random.integers(1, max_response, (steps, rows), endpoint=True)
  drawn += np.where(random.random((steps, rows)) < .5, response, max_response)
  drawn = random.permuted(drawn, axis=1).reshape(steps * updates, -1)
  longest = -np.sort(-drawn, axis=1)[:, ::microbatch]
  return choose(longest.ravel(), full=max_prompt + max_response)


def of_responses(
    *, max_response: int, rows: int, microbatch: int, most: int = RESPONSES,
) -> tuple[int, ...]:
  """Chooses lengths for microbatches of responses without their prompts.

  The lengths are as little known as in `of_rows`.

  Args:
    max_response: most tokens of a response.
    rows: rows of a mini-batch.
    microbatch: rows of a microbatch; a mini-batch is sorted by length, then
      split.
    most: most lengths to choose.
  """
  random = np.random.default_rng(0)
  shape = _steps(rows), -(-rows // microbatch) * microbatch
  drawn = random.integers(1, max_response, shape, endpoint=True)
  drawn = np.where(random.random(shape) < .5, drawn, max_response)
  longest = -np.sort(-drawn, axis=1)[:, ::microbatch]
  return choose(longest.ravel(), full=max_response, most=most)


def of_lists(
    *, max_prompt: int, max_response: int, samples: int, each: int,
    most: int = LISTS,
) -> tuple[int, ...]:
  """Chooses lengths for lists of tokens of several rows, see `learner/lists`.

  The sum of a list's lengths varies little within a batch, but its mean is not
  known before a run. So each length is `RATIO` times the next smaller one,
  which wastes at most 1 - 1 / RATIO. The longest holds full responses to full
  prompts, each prompt once in a list.

  Args:
    max_prompt: most tokens of a prompt.
    max_response: most tokens of a response.
    samples: responses to each prompt.
    each: rows of a list.
    most: most lengths to choose.
  """
  common = each * max_response + -(-each // samples) * (max_prompt - 1)
  full = each * (max_response + max_prompt - 1)
  unit = 1 << max((common // 32).bit_length() - 1, 0)
  found = {min(-(-int(common / RATIO ** i) // unit) * unit, full)
           for i in range(most)}
  return tuple(sorted(found))


def _steps(rows: int) -> int:
  """Returns how many steps of some rows to simulate."""
  return min(_STEPS, max(_DRAWN // rows, 1))
