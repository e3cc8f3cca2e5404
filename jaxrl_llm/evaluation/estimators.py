"""What evaluation says of responses: mean@n, pass@k, maj@k, over problems.

All NumPy. A figure is a mean over problems, with its standard error.
"""

import collections
import fractions
import math
from typing import Sequence

import numpy as np


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
  """Mean and its standard error over problems [P].

  The error is 0 for one problem; for none, both are NaN.
  """
  if not len(values):
    return np.nan, np.nan
  error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
  return float(values.mean()), float(error)


def pass_at_k(n: int, c: int, k: int) -> float:
  """Probability that one of k of the n responses is right.

  Args:
    n: responses.
    c: right ones among them.
    k: responses that are looked at, 1 to n.
  """
  # Exact, not `ops.pkpo.pass_at_k` in float32: pass@1 and the mean of the same
  # rewards are to be the same number.
  return 1 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(
    answers: Sequence[str], correct: Sequence[bool], k: int) -> float:
  """Probability that a vote of k of the n responses to a problem is right.

  The mean over all subsets of k responses, exactly: the answer with the most
  votes wins, ties are broken by lot, responses without an answer don't vote,
  and where nobody votes the vote is wrong.

  Args:
    answers: of n responses, in a form that equal ones share; '' for none.
    correct: whether each is right.
    k: voters, 1 to n.

  Returns:
    A probability.

  Raises:
    ValueError: k is not within 1 and n.
  """
  n = len(answers)
  if not 1 <= k <= n:
    raise ValueError(f'maj@k of k={k} needs 1 <= k <= n, but n={n}.')
  # Right answers that are spelled differently are still one answer.
  right = sum(map(bool, correct))
  others = collections.Counter(
      a for a, ok in zip(answers, correct) if a and not ok)
  silent = n - right - sum(others.values())
  total = fractions.Fraction(0)
  for votes in range(1, min(right, k) + 1):
    rivals = [count for count in others.values() if count >= votes]
    # The rest cannot reach so many votes: any choice of them will do.
    rest = silent + sum(others.values()) - sum(rivals)
    # ways[v, t]: choices of v other responses, no rival with more than `votes`
    # of them and t rivals with exactly as many.
    ways = {(v, 0): math.comb(rest, v)
            for v in range(min(rest, k - votes) + 1)}
    for count in rivals:
      new = collections.Counter()
      for (v, t), number in ways.items():
        for more in range(min(votes, k - votes - v) + 1):
          new[v + more, t + (more == votes)] += number * math.comb(count, more)
      ways = new
    total += math.comb(right, votes) * sum(
        fractions.Fraction(number, t + 1)
        for (v, t), number in ways.items() if v == k - votes)
  return float(total / math.comb(n, k))


def estimate(
    score: np.ndarray, ks: Sequence[int], *,
    greedy: np.ndarray | None = None,
    answers: Sequence[Sequence[str]] | None = None) -> dict[str, float]:
  """Figures of a set of problems.

  Args:
    score: [P, N] rewards of the responses; NaN where there is no valid one. A
      response counts as correct when its reward is at least 1.
    ks: of pass@k and maj@k. A problem with fewer than k valid responses is
      left out of it.
    greedy: [P] rewards of greedy responses, NaN where not valid, or None.
    answers: [P][N], see `maj_at_k`; where there is no answer at all, or None,
      maj@k is left out.

  Returns:
    'pass@k' and 'maj@k' for each k, 'mean' (reward) and 'greedy', each with
    its standard error under '<name>_error'.
  """
  out: dict[str, float] = {}

  def put(name, values):
    values = np.asarray(values, np.float64)
    out[name], out[name + '_error'] = mean_and_error(
        values[~np.isnan(values)])

  valid = ~np.isnan(score)
  n, correct = valid.sum(1).tolist(), (score >= 1.0).sum(1).tolist()
  for k in ks:
    put(f'pass@{k}', [pass_at_k(m, c, k) for m, c in zip(n, correct) if m >= k])
  if answers is not None and any(map(any, answers)):
    for k in ks:
      put(f'maj@{k}', [
          maj_at_k([a for a, ok in zip(said, row) if ok],
                   points[row] >= 1.0, k)
          for said, row, points in zip(answers, valid, score)
          if row.sum() >= k])
  if greedy is not None:
    put('greedy', np.where(np.isnan(greedy), np.nan, greedy >= 1.0))
  put('mean', np.nanmean(score[valid.any(1)], axis=1))
  return out
