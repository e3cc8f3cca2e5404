"""Static lengths for rows of different lengths, chosen before a run.

A program is compiled once for each length, and a batch of rows runs at the
shortest one that holds its longest row. A few lengths, chosen by the lengths of
the real prompts, avoid most of the padding.
"""

from typing import Sequence

import numpy as np

MAX_EXTRA_LENGTHS = 5  # in addition to the full one; each is a compile
MIN_SAVING = 0.02  # share of the work that a length must save
_STEPS, _DRAWN = 400, 1 << 20  # most simulated steps, and rows of them all


def choose(
    sizes: np.ndarray, *, full: int, max_extra: int = MAX_EXTRA_LENGTHS,
    min_saving: float = MIN_SAVING) -> tuple[int, ...]:
  """Chooses the lengths that make the sum of padded sizes smallest.

  Args:
    sizes: [N] lengths to be padded, each from 1 to `full`.
    full: longest length; it always exists, and is not in the result.
    max_extra: most lengths to choose.
    min_saving: each additional length must save this share of the padded sum
      without it; saving less ends the choice.

  Returns:
    At most `max_extra` lengths below `full`, ascending. They are multiples of a
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
  for _ in range(max_extra):
    sums = best[:-1, None] + (counts[1:] - counts[:-1, None]) * ends
    sums[np.tri(len(ends), k=-1, dtype=bool)] = np.iinfo(sums.dtype).max
    last = sums.argmin(0)
    saved = best[-1] - sums[last[-1], -1]
    if saved < min_saving * best[-1] or not saved:
      break
    best = np.append(0, sums[last, np.arange(len(ends))])
    chosen = [(), *((*chosen[i], end) for i, end in zip(last, ends))]
  return tuple(int(end) for end in chosen[-1][:-1])


def of_prompts(
    lengths: Sequence[int], *, max_prompt: int, together: int,
) -> tuple[int, ...]:
  """Chooses lengths for the prefill of prompts.

  Args:
    lengths: tokens of each prompt of the training set, at most `max_prompt`.
    max_prompt: full length.
    together: prompts in one prefill; all are padded alike.
  """
  steps = min(_STEPS, max(_DRAWN // together, 1))
  drawn = np.random.default_rng(0).choice(lengths, (steps, together))
  return choose(drawn.max(1), full=max_prompt)
