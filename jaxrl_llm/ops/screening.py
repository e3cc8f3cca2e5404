"""Values of screening outcomes: which ones to continue.

SPEED (Zhang et al., 2025, arXiv:2506.09016, withdrawn in 2026) screens a prompt
with n_init samples and pays for n_cont more if it qualifies. Its rule is
0 < pass rate < 1, which fits advantages whose signal is largest at a pass rate
of 1/2. Under PKPO the signal of a group ends at c = n - k + 1 right samples.
The functions here find the outcomes that give the most signal per generated
sample for any advantage, under a prior over pass rates that is learned from the
screens:

  prior = prior_update(prior, screened, continued)
  values, probability = outcome_values(prior, signal, n_init)
  accepted = best_outcomes(values, probability, n_cont)

All but `signal_table` work in NumPy, in float64: a curriculum calls them on the
host. Letters: G points of the grid, n = n_init + n_cont samples of a group, c
right samples of a screen, d right samples of a continuation. A prior is [G]
weights of the pass rates `grid(G)`.
"""

import functools
from typing import Callable

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

POINTS = 41  # G
_FLOOR = 1e-6  # least weight before an update: EM never revives a weight of 0


def grid(points: int = POINTS) -> np.ndarray:
  """Returns the pass rates [G] of a prior, from 0 to 1, both included."""
  return np.linspace(0.0, 1.0, points)


def uniform_prior(points: int = POINTS) -> np.ndarray:
  """Returns the prior [G] before any screen."""
  return np.full(points, 1 / points)


def binomial(samples: int, rates: np.ndarray) -> np.ndarray:
  """Returns [G, samples + 1], the probability of each number of successes.

  Args:
    samples: number of samples.
    rates: [G] pass rates.
  """
  table = np.ones((len(rates), 1))
  rates = np.asarray(rates, np.float64)[:, None]
  for _ in range(samples):
    table = (np.pad(table, ((0, 0), (0, 1))) * (1 - rates)
             + np.pad(table, ((0, 0), (1, 0))) * rates)
  return table


def signal_table(
    advantage: Callable[[Array], Array], samples: int) -> Array:
  """Computes the signal of a group for each number of right samples.

    signal(c) = sum_i |A_i| of a group with c rewards of 1 and n - c of 0

  It is proportional to c (n - c) for RLOO, and c C(n-c, k-1) / C(n, k) for PKPO
  with k > 1.

  Args:
    advantage: (rewards [..., n]) -> advantages [..., n].
    samples: n.

  Returns:
    [n + 1] signal. Jittable.
  """
  rewards = jnp.tri(samples + 1, samples, -1)  # row c has c ones
  return jnp.abs(advantage(rewards)).sum(-1)


def prior_update(
    prior: np.ndarray, screened: np.ndarray, continued: np.ndarray, *,
    steps: int = 50) -> np.ndarray:
  """Updates a prior over pass rates by EM, from counts of outcomes.

  A step multiplies each weight by the mean, over the observed groups, of the
  outcome's likelihood at that pass rate over its likelihood under the prior.

  Args:
    prior: [G] weights before; they sum to 1.
    screened: [n_init + 1] number of groups of which only the screen is known,
      by c.
    continued: [n_init + 1, n_cont + 1] number of groups by c and d.
    steps: EM steps.

  Returns:
    [G] weights, which sum to 1; `prior` if nothing was observed.
  """
  counts = np.concatenate([screened, np.ravel(continued)])
  seen = counts > 0
  if not seen.any():
    return prior
  likelihood = _likelihood(*np.array(continued.shape) - 1, len(prior))[:, seen]
  share = counts[seen] / counts.sum()
  weights = np.maximum(prior, _FLOOR)
  weights /= weights.sum()
  for _ in range(steps):
    weights = weights * (likelihood @ (share / (weights @ likelihood)))
  return weights / weights.sum()


@functools.lru_cache(maxsize=8)
def _binomial(samples: int, points: int) -> np.ndarray:
  """Returns `binomial` on the grid."""
  return binomial(samples, grid(points))


@functools.lru_cache(maxsize=8)
def _likelihood(n_init: int, n_cont: int, points: int) -> np.ndarray:
  """Returns [G, ...] probabilities of the outcomes c, and then (c, d)."""
  of_c, of_d = _binomial(n_init, points), _binomial(n_cont, points)
  both = of_c[:, :, None] * of_d[:, None, :]
  return np.concatenate([of_c, both.reshape(points, -1)], 1)


def outcome_values(
    prior: np.ndarray, signal: np.ndarray, n_init: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Computes the value and the probability of each screening outcome.

    probability_c = sum_p prior(p) Binom(c; n_init, p)
    value_c = E[signal(c + d) | c], with d ~ Binom(n_cont, p)

  Args:
    prior: [G] weights of the pass rates.
    signal: [n + 1], sum of |advantage| of a group with c of n right.
    n_init: samples of a screen, fewer than n.

  Returns:
    values [n_init + 1], 0 for an outcome that cannot be, and probabilities
    [n_init + 1].
  """
  n_cont = len(signal) - 1 - n_init
  windows = np.lib.stride_tricks.sliding_window_view(
      np.asarray(signal, np.float64), n_cont + 1)  # [c, d] is signal(c + d)
  expected = _binomial(n_cont, len(prior)) @ windows.T  # [G, n_init + 1]
  joint = prior[:, None] * _binomial(n_init, len(prior))
  probability = joint.sum(0)
  return (np.divide((joint * expected).sum(0), probability,
                    out=np.zeros(n_init + 1), where=probability > 0),
          probability)


def mean_signal(prior: np.ndarray, signal: np.ndarray) -> float:
  """Returns E[signal] of a group of n samples without a screen.

  Args:
    prior: [G] weights of the pass rates.
    signal: [n + 1], sum of |advantage| of a group with c of n right.
  """
  return float(prior @ _binomial(len(signal) - 1, len(prior)) @ signal)


def best_outcomes(
    values: np.ndarray, probability: np.ndarray, n_cont: int) -> np.ndarray:
  """Finds the outcomes to continue, for the most signal per generated sample.

    max over sets A of  sum_A pi_c v_c / (n_init + n_cont sum_A pi_c)

  By renewal-reward, the best A holds the outcomes whose value exceeds n_cont
  times the optimum: one of the prefixes in the order of the values.

  Args:
    values: [n_init + 1] v.
    probability: [n_init + 1] pi.
    n_cont: samples of a continuation.

  Returns:
    [n_init + 1] bool, the smallest best set; nothing if no value is positive.
  """
  order = np.argsort(-values, kind='stable')
  rates = signal_per_sample(values, probability, n_cont, np.tri(
      len(values), dtype=bool)[:, np.argsort(order, kind='stable')])
  last = int(np.argmax(rates))
  accepted = np.zeros(len(values), bool)
  if rates[last] > 0:
    accepted[order[:last + 1]] = True
  return accepted


def signal_per_sample(
    values: np.ndarray, probability: np.ndarray, n_cont: int,
    accepted: np.ndarray) -> np.ndarray:
  """Computes the expected signal per generated sample of sets of outcomes.

  Args:
    values: [n_init + 1], from `outcome_values`.
    probability: [n_init + 1].
    n_cont: samples of a continuation.
    accepted: [..., n_init + 1] bool, sets of outcomes that are continued.

  Returns:
    [...] signal per sample.
  """
  n_init = len(values) - 1
  return (accepted * (probability * values)).sum(-1) / (
      n_init + n_cont * (accepted * probability).sum(-1))


def objective_slope(
    rates: np.ndarray, *, n_init: int, n_cont: int) -> np.ndarray:
  """Computes Phi'(p), the weight that screening gives a prompt's gradient.

  With RLOO on the n samples of accepted groups, screened by 0 < rate < 1, the
  expected gradient is Phi'(p) grad p, that of Phi(p) in place of p (Theorem
  4.1):

    Phi'(p) = 1 - n_cont/n (p^n_init + (1-p)^n_init)
              - n_init n_cont / (n (n-1)) (p (1-p)^(n_init-1)
                                           + (1-p) p^(n_init-1))

  The objective differs under GRPO's standard deviation and under PKPO.

  Args:
    rates: [...] pass rates p.
    n_init: samples of a screen.
    n_cont: samples of a continuation.

  Returns:
    [...] Phi'(p), between 0 and 1.
  """
  p, n = np.asarray(rates, np.float64), n_init + n_cont
  q = 1 - p
  return (1 - n_cont / n * (p ** n_init + q ** n_init)
          - n_init * n_cont / (n * (n - 1))
          * (p * q ** (n_init - 1) + q * p ** (n_init - 1)))
