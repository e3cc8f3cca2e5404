"""Schedules of whole numbers: '8', or '0:8,1500:1' (step:value)."""

from typing import Any, Callable

_LARGEST = 2 ** 31 - 1  # a step is an int32


class Steps(str):
  """Type of a config field that holds a schedule, as `canonical` writes it."""


def pieces(text: Any) -> tuple[tuple[int, int], ...]:
  """Reads a schedule.

  Args:
    text: a whole number, its text, or 'step:value' pairs with commas between
      them. Each value holds from its step on; steps count from 0.

  Returns:
    (step, value) pairs; the first step is 0 and they ascend.

  Raises:
    ValueError, TypeError: the text is not a schedule.
  """
  if isinstance(text, bool) or not isinstance(text, (int, str)):
    raise TypeError
  text = str(text).strip('\'" ')
  if ':' not in text:
    return ((0, int(text)),)
  pairs = tuple(
      tuple(int(x) for x in pair.split(':')) for pair in text.split(','))
  steps = [step for step, _ in pairs]
  if steps[0] or any(
      a >= b for a, b in zip(steps, [*steps[1:], _LARGEST + 1])):
    raise ValueError
  return pairs


def canonical(text: Any) -> str:
  """Returns a schedule in its normal spelling; raises as `pieces` does."""
  pairs = pieces(text)
  if len(pairs) == 1:
    return str(pairs[0][1])
  return ','.join(f'{step}:{value}' for step, value in pairs)


def make(text: Any) -> Callable[..., Any]:
  """Makes the jittable function (steps done []) -> value [] int32."""
  import jax.numpy as jnp  # here, so that --help need not wait for it
  steps, values = zip(*pieces(text))

  def value(step):
    past = jnp.sum(jnp.asarray(steps) <= step) - 1
    return jnp.asarray(values, jnp.int32)[past]

  return value


def due(step: int, every: int, last: int) -> bool:
  """Returns whether a periodic action is due after a step.

  Args:
    step: steps done.
    every: steps between two actions; 0 is never.
    last: number of the last step, after which it is always due.
  """
  return step == last or (every > 0 and step % every == 0)
