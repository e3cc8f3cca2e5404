"""Estimators of an evaluation: mean@n, pass@k and maj@k.

All NumPy. Each estimate is a mean over problems and has a standard error.

Training reports these metrics; `evaluate` writes the same figures to a table.

Metrics:
  eval/pass@<k> [probability]: that one of k responses to a held-out problem is
    right
  eval/maj@<k> [probability]: that a vote of k responses is right
  eval/mean [reward]: mean over responses and problems
  eval/rewards/<function> [reward]: mean of one reward function, where there are
    several
  eval/greedy [share]: problems whose greedy response is right
  eval/<estimate>_error [as it]: standard error over problems
  eval/<file>/<estimate> [as it]: the same of one held-out file, where there are
    several
"""

import collections
import fractions
import math
from typing import Mapping, Sequence

import numpy as np


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
  """Returns the mean over problems [P] and its standard error.

  The error is 0 for one problem. Without problems, both are NaN.
  """
  if not len(values):
    return np.nan, np.nan
  error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
  return float(values.mean()), float(error)


def pass_at_k(n: int, c: int, k: int) -> float:
  """Returns the probability that at least one of k of n responses is right.

  Args:
    n: number of responses.
    c: number of right responses.
    k: size of the subset, 1 to n.
  """
  # Exact, unlike `ops.pkpo.pass_at_k` in float32, so that pass@1 equals the
  # mean of the same rewards.
  return 1 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(
    answers: Sequence[str], correct: Sequence[bool], k: int) -> float:
  """Returns the probability that a vote of k of n responses is right.

  This is the exact mean over all subsets of k responses. The answer with the
  most votes wins, and ties are broken at random. Responses without an answer do
  not vote; if no response votes, the vote is wrong.

  Args:
    answers: canonical answers of n responses to one problem; '' for none.
    correct: n flags, True for a right answer.
    k: number of voters, 1 to n.

  Returns:
    The probability.

  Raises:
    ValueError: k is not within 1 and n.
  """
  n = len(answers)
  if not 1 <= k <= n:
    raise ValueError(f'maj@k of k={k} needs 1 <= k <= n, but n={n}.')
  # All right answers count as one answer, even if their texts differ.
  right = sum(map(bool, correct))
  others = collections.Counter(
      a for a, ok in zip(answers, correct) if a and not ok)
  silent = n - right - sum(others.values())
  total = fractions.Fraction(0)
  for votes in range(1, min(right, k) + 1):
    rivals = [count for count in others.values() if count >= votes]
    # The other responses cannot reach `votes`, so any choice of them counts.
    rest = silent + sum(others.values()) - sum(rivals)
    # ways[v, t]: number of choices of v other responses such that no rival gets
    # more than `votes` of them, and t rivals get exactly `votes`.
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
    answers: Sequence[Sequence[str]] | None = None,
    rewards: Mapping[str, np.ndarray] | None = None) -> dict[str, float]:
  """Computes all estimates for a set of problems.

  Args:
    score: [P, N] rewards, NaN for responses that are not valid. A reward of at
      least 1 counts as correct.
    ks: values of k for pass@k and maj@k. A problem with fewer than k valid
      responses is left out of the estimates for this k.
    greedy: [P] rewards of greedy responses, NaN if not valid; or None.
    answers: [P][N] canonical answers, '' for none. If it is None, or all are
      empty, maj@k is left out.
    rewards: name of each of several functions to its rewards [P, N], NaN where
      it gave none.

  Returns:
    Dictionary with 'pass@k' and 'maj@k' for each k, 'greedy', 'mean' (reward)
    and 'rewards/<function>'. Their standard errors are under '<name>_error'.
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
  for name, values in {'mean': score, **{
      f'rewards/{name}': values for name, values in (rewards or {}).items()
  }}.items():
    put(name, np.nanmean(values[~np.isnan(values).all(1)], axis=1))
  return out
