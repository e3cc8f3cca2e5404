"""AdamW with a global-norm clip and a warm-up schedule, from config values."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Optimizer(NamedTuple):
  """A gradient transformation, and the learning rate at each of its steps.

  Attributes:
    transform: what turns gradients into updates.
    schedule: optimiser steps taken so far to the next step's learning rate.
  """
  transform: optax.GradientTransformation
  schedule: optax.Schedule


def make_schedule(
    name: str, learning_rate: float, *, warmup_steps: int, steps: int
) -> optax.Schedule:
  """Linear warm-up from 0, then 'constant', or 'linear' or 'cosine' down to 0.

  The first of `warmup_steps` steps already has the rate
  `learning_rate / warmup_steps`: a step at rate 0 would be wasted.

  Args:
    name: the shape after the warm-up.
    learning_rate: the peak.
    warmup_steps: steps of the warm-up; 0 is none.
    steps: total steps, warm-up included.

  Returns:
    Steps taken so far to learning rate.
  """
  decay = max(steps - warmup_steps, 1)
  after = {
      'constant': optax.constant_schedule(learning_rate),
      'linear': optax.linear_schedule(learning_rate, 0.0, decay),
      'cosine': optax.cosine_decay_schedule(learning_rate, decay),
  }
  if name not in after:
    raise ValueError(
        f'optimizer.schedule={name!r} is not known: use one of '
        f'{", ".join(sorted(after))}.')

  def schedule(count):
    warm = (count + 1) / max(warmup_steps, 1)
    return jnp.minimum(warm, 1.0) * after[name](
        jnp.maximum(count - warmup_steps, 0))

  return schedule


def decayed(params: Any) -> Any:
  """Which parameters weight decay applies to: not norms, not biases."""
  def is_matrix(path, _):
    name = path[-1].key
    return not name.endswith(('norm', 'bias'))
  return jax.tree_util.tree_map_with_path(is_matrix, params)


def make(
    *,
    learning_rate: float,
    steps: int,
    schedule: str = 'constant',
    warmup_steps: int = 0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = 1.0,
) -> Optimizer:
  """AdamW after a clip of the gradient's global norm.

  Moments are float32, as the parameters are. Weight decay is decoupled,
  scaled by the learning rate, and leaves norms and biases alone.

  Args:
    learning_rate: peak of the schedule.
    steps: total optimiser steps, that the schedule decays over.
    schedule: 'constant', 'linear' or 'cosine'.
    warmup_steps: linear warm-up.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: coefficient.
    max_grad_norm: longest gradient let through unscaled; None is no clip.

  Returns:
    The transformation and its schedule.

  Raises:
    ValueError: a value that no run can have meant.
  """
  clips = max_grad_norm is not None
  for name, value, ok, want in (
      ('learning_rate', learning_rate, learning_rate >= 0, 'at least 0'),
      ('steps', steps, steps >= 1, 'at least 1'),
      ('warmup_steps', warmup_steps, warmup_steps >= 0, 'at least 0'),
      ('b1', b1, 0 <= b1 < 1, 'in [0, 1)'),
      ('b2', b2, 0 <= b2 < 1, 'in [0, 1)'),
      ('eps', eps, eps > 0, 'positive'),
      ('weight_decay', weight_decay, weight_decay >= 0, 'at least 0'),
      ('max_grad_norm', max_grad_norm, not clips or max_grad_norm > 0,
       'positive, or None for no clip'),
  ):
    if not ok:
      raise ValueError(f'optimizer.{name}={value} must be {want}.')
  rate = make_schedule(
      schedule, learning_rate, warmup_steps=warmup_steps, steps=steps)
  adamw = optax.adamw(
      rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decayed)
  if not clips:
    return Optimizer(adamw, rate)
  clip = optax.clip_by_global_norm(max_grad_norm)
  return Optimizer(optax.chain(clip, adamw), rate)
