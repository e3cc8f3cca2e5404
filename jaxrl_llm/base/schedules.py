"""Schedules of numbers: '8', or '0:8,1500:1' (step:value)."""

from typing import Any, Callable

_LARGEST = 2 ** 31 - 1  # a step is an int32


class Steps(str):
  """Type of a config field that holds a schedule, as `canonical` writes it."""


class Floats(str):
  """Type of a config field that holds a float, or a schedule of floats."""


def pieces(text: Any, kind: type = int) -> tuple[tuple[int, Any], ...]:
  """Reads a schedule.

  Args:
    text: a number, its text, or 'step:value' pairs with commas between them.
      Each value holds from its step on; steps count from 0.
    kind: int or float, of the values.

  Returns:
    (step, value) pairs; the first step is 0 and they ascend.

  Raises:
    ValueError, TypeError: the text is not a schedule.
  """
  if isinstance(text, bool) or not isinstance(text, (int, kind, str)):
    raise TypeError
  text = str(text).strip('\'" ')
  pairs = [pair.split(':') for pair in (
      text if ':' in text else f'0:{text}').split(',')]
  steps, values = zip(*((int(step), kind(value)) for step, value in pairs))
  if steps[0] or any(
      a >= b for a, b in zip(steps, [*steps[1:], _LARGEST + 1])) or any(
          value != value for value in values):
    raise ValueError
  return tuple(zip(steps, values))


def at(text: Any, step: int = _LARGEST) -> float:
  """Returns the value of a schedule of floats after some steps: the last one,
  where they are not given.
  """
  return [value for begin, value in pieces(text, float) if begin <= step][-1]


def canonical(text: Any, kind: type = int) -> str:
  """Returns a schedule in its normal spelling; raises as `pieces` does."""
  pairs = pieces(text, kind)
  if len(pairs) == 1:
    return str(pairs[0][1])
  return ','.join(f'{step}:{value}' for step, value in pairs)


def make_schedule(text: Any) -> Callable[..., Any]:
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
