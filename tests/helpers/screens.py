"""Made-up answers to the screens and continuations of SPEED."""

from typing import Any, Callable

import numpy as np

from jaxrl_llm.types import GroupRequests, Table
from tests.helpers import tables

# Signal of RLOO with 6 samples.
SIGNAL = np.float32([2 * c * (6 - c) / 5 for c in range(7)])


def gain_of(values: list[float | None]) -> float:
  """Returns the sum of |RLOO|, by its definition; None is not valid."""
  valid = [value for value in values if value is not None]
  return sum(abs(
      value - (sum(valid) - value) / (len(valid) - 1)) for value in valid) if (
          len(valid) > 1) else 0.0


def answer(
    rng: np.random.Generator, ask: GroupRequests, held: dict[int, list[Any]],
    rates: Callable[[int], float], failures: float = 0.0,
) -> tuple[Table, np.ndarray, list[Any]]:
  """Answers requests with right and wrong samples.

  Args:
    rng: draws.
    ask: of the curriculum.
    held: {group: rewards}, which gets the answers.
    rates: (problem) -> pass rate.
    failures: share of verifications that fail.

  Returns:
    Table of all in `held`, gain [P], and [(group, first sample, rewards)].
  """
  wave, gain = [], []
  for group, problem, first, count in zip(
      ask.group.tolist(), ask.problem, ask.first.tolist(), ask.count):
    right = rng.random(count) < rates(problem)
    values = [None if rng.random() < failures else float(x) for x in right]
    assert len(held.get(group, [])) == first
    held[group] = held.get(group, []) + values
    wave.append((group, first, values))
    gain.append(gain_of(held[group]) if first else np.nan)
  return tables.of_rewards(rng, held), np.array(gain), wave
