"""Slow reference versions of `ops.pkpo` in float64, for one group."""

import itertools
from math import comb

import numpy as np


def _subsets(n, k, among=None):
  items = range(n) if among is None else among
  return list(itertools.combinations(items, k))


def pass_at_k(n, c, k):
  """Computes Eq. 3 with integers."""
  return 1 - comb(n - c, k) / comb(n, k)


def max_at_k(g, k):
  """Computes the mean over all subsets of their largest reward."""
  return np.mean([max(g[j] for j in sub) for sub in _subsets(len(g), k)])


def s(g, k):
  """Computes Eq. 27, over the subsets that contain i."""
  n = len(g)
  out = np.zeros(n)
  for sub in _subsets(n, k):
    out[list(sub)] += max(g[j] for j in sub)
  return out / comb(n, k)


def sloo(g, k):
  """Computes Eq. 29: subtracts the mean s of the others, without i."""
  n = len(g)
  g = np.asarray(g, float)
  return s(g, k) - np.array(
      [s(np.delete(g, i), k).sum() / (n - 1) for i in range(n)])


def sloo_minus_one(g, k):
  """Computes Eq. 33; at k = 1 leave-one-out, as in the paper's experiments."""
  n = len(g)
  g = np.asarray(g, float)
  if k == 1:
    return (g - (g.sum() - g) / max(n - 1, 1)) / n * (n > 1)
  out = np.zeros(n)
  for sub in _subsets(n, k):
    for i in sub:
      out[i] += max(g[j] for j in sub) - max(g[j] for j in sub if j != i)
  return out / comb(n, k)


def matrix_s(g, k):
  """Computes Eq. 19 to 21 with the matrix m written out, for any n."""
  order = np.argsort(g, kind='stable')
  x, n = np.asarray(g, float)[order], len(g)
  out = np.zeros(n)
  for i in range(1, n + 1):
    total = comb(i - 1, k - 1) / comb(n, k) * x[i - 1]
    for j in range(i + 1, n + 1):
      if j >= k >= 2:
        total += comb(j - 2, k - 2) / comb(n, k) * x[j - 1]
    out[order[i - 1]] = total
  return out


def _baseline(g, k):
  """Computes Eq. 30: the sum of s over the others, without i."""
  g = np.asarray(g, float)
  return np.array([matrix_s(np.delete(g, i), k).sum() for i in range(len(g))])


def matrix_sloo(g, k):
  """Computes s - b(k) / (n-1), as the paper's listing does."""
  return matrix_s(g, k) - _baseline(g, k) / (len(g) - 1)


def matrix_sloo_minus_one(g, k):
  """Computes s - b(k-1) k / (n (k-1)), as the paper's listing does; k >= 2."""
  return matrix_s(g, k) - _baseline(g, k - 1) * k / (k - 1) / len(g)
