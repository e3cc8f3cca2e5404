"""Statistics of the screens of a run, and the outcomes that qualify.

The outcome of a screen is the number of its right samples, 0 to n_init. Rewards
other than 0 and 1 are continuous: the outcome is then the mean reward, scaled
from the range of all rewards of the run to 0 to n_init, and rounded. The value
of an outcome is the running mean of the signal that it led to. One reward far
from the others makes this range, and with it the outcomes, coarse.
"""

from typing import NamedTuple

import numpy as np

from jaxrl_llm.ops import screening

FORGETTING = 0.98  # factor of all counts in every wave


class Known(NamedTuple):
  """Statistics of the outcomes; counts decay by FORGETTING in every wave.

  Attributes:
    prior: [G] weights of pass rates, see `ops.screening`; without meaning for
      continuous rewards.
    screened: [n_init + 1] groups that were not continued, by outcome c.
    continued: [n_init + 1, n_cont + 1] finished groups, by c and the right
      samples d of the continuation.
    every: [n_init + 1] all groups that were screened, by outcome.
    gains: [n_init + 1] finished groups with a gain, by outcome.
    gain: [n_init + 1] sums of their gains, see `types.Curriculum`.
    least: smallest reward seen; infinite before the first.
    most: largest reward seen; -infinite before the first.
    continuous: whether a reward other than 0 and 1 was seen.
  """
  prior: np.ndarray
  screened: np.ndarray
  continued: np.ndarray
  every: np.ndarray
  gains: np.ndarray
  gain: np.ndarray
  least: float
  most: float
  continuous: bool


def init(n_init: int, n_cont: int) -> Known:
  """Returns the statistics before the first wave."""
  none = np.zeros(n_init + 1)
  return Known(
      prior=screening.uniform_prior(), screened=none,
      continued=np.zeros((n_init + 1, n_cont + 1)), every=none, gains=none,
      gain=none, least=np.inf, most=-np.inf, continuous=False)


def with_rewards(known: Known, rewards: np.ndarray) -> Known:
  """Updates the range and the kind of rewards by the valid ones of a wave."""
  return known._replace(
      least=float(rewards.min(initial=known.least)),
      most=float(rewards.max(initial=known.most)),
      continuous=known.continuous or bool(
          ((rewards != 0) & (rewards != 1)).any()))


def scale(known: Known) -> tuple[float, float]:
  """Returns the rewards of the lowest and of the highest outcome."""
  if known.continuous and known.least < known.most:
    return known.least, known.most
  return 0.0, 1.0


def of(known: Known, rate: np.ndarray, samples: int) -> np.ndarray:
  """Returns the outcomes of samples, by their mean reward.

  Args:
    known: it has the range of the rewards.
    rate: [P] mean rewards of the valid samples; NaN without one.
    samples: n_init, or n_cont.

  Returns:
    [P] int32 from 0 to `samples`; -1 without a valid sample.
  """
  low, high = scale(known)
  scaled = np.clip(samples * (rate - low) / (high - low), 0, samples)
  return np.where(
      np.isnan(rate), -1, np.rint(np.nan_to_num(scaled))).astype(np.int32)


def learn(
    known: Known, outcome: np.ndarray, pending: np.ndarray,
    continued: np.ndarray, right: np.ndarray, gain: np.ndarray) -> Known:
  """Learns from a wave.

  Args:
    known: before.
    outcome: [P] outcomes of this wave's screens, -1 for none.
    pending: [A] outcomes of groups that are being continued.
    continued: [F] outcomes of the screens of the groups that were finished.
    right: [F] right samples of their continuations, -1 without a valid sample.
    gain: [F] their gains, NaN for none.

  Returns:
    The updated `Known`. `with_rejected` adds this wave's screens to `screened`
    once it is decided which of them are not continued.
  """
  size = len(known.every)

  def count(values, weights=None):
    return np.bincount(values[values >= 0], weights, size)

  counts = known._replace(**{
      name: FORGETTING * getattr(known, name) for name in (
          'screened', 'continued', 'every', 'gains', 'gain')})
  both = counts.continued.copy()
  there = right >= 0
  np.add.at(both, (continued[there], right[there]), 1)
  measured = ~np.isnan(gain)
  counts = counts._replace(
      screened=counts.screened + count(continued[~there]), continued=both,
      every=counts.every + count(outcome),
      gains=counts.gains + count(continued[measured]),
      gain=counts.gain + count(continued[measured], gain[measured]))
  return counts._replace(prior=screening.prior_update(
      known.prior, counts.screened + count(outcome) + count(pending), both))


def with_rejected(known: Known, outcome: np.ndarray) -> Known:
  """Counts screens [P] that are not continued."""
  return known._replace(screened=known.screened + np.bincount(
      outcome[outcome >= 0], minlength=len(known.every)))


def worth(known: Known, signal: np.ndarray) -> np.ndarray:
  """Returns [n_init + 1] bool, the outcomes that the rule "signal" continues.

  Args:
    known: statistics of the screens.
    signal: [n + 1], see `types.Curriculum`; not used for continuous rewards.
  """
  n_init, n_cont = np.array(known.continued.shape) - 1
  if not known.continuous:
    return screening.best_outcomes(
        *screening.outcome_values(known.prior, signal, n_init), n_cont)
  # An outcome without a group counts as the best one, and forgetting brings
  # others back to it slowly.
  means = np.divide(
      known.gain, known.gains, out=np.zeros(n_init + 1), where=known.gains > 0)
  best = means.max() or 1.0
  return screening.best_outcomes(
      (known.gain + best) / (known.gains + 1),
      known.every / max(known.every.sum(), 1.0), n_cont)
