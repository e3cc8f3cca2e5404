"""AdamW with a global-norm clip and a learning-rate schedule."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Optimizer(NamedTuple):
  """A gradient transformation and its learning-rate schedule.

  Attributes:
    transform: optax transformation from gradients to updates.
    schedule: (optimiser steps taken so far) -> learning rate of the next step.
  """
  transform: optax.GradientTransformation
  schedule: optax.Schedule


# Of parameters that stay as they are; it keeps no moments.
NONE = Optimizer(optax.set_to_zero(), optax.constant_schedule(0.0))


def make_schedule(
    name: str, learning_rate: float, *, warmup_steps: int, steps: int
) -> optax.Schedule:
  """Makes a learning-rate schedule with linear warm-up.

  The first of `warmup_steps` steps has the rate `learning_rate / warmup_steps`,
  not 0, because a step at rate 0 would be wasted.

  Args:
    name: shape after the warm-up: 'constant'; or 'linear' or 'cosine', which
      decay to 0.
    learning_rate: peak learning rate.
    warmup_steps: steps of the warm-up; 0 for none.
    steps: total steps, warm-up included.

  Returns:
    (optimiser steps taken so far) -> learning rate of the next step.

  Raises:
    ValueError: the name is unknown.
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

  # XLA divides by multiplying with a rounded reciprocal, so that optax's
  # schedules end a rounding away from the peak and from 0. Here both are exact.
  def schedule(count):
    warm = jnp.where(
        count + 1 < warmup_steps, (count + 1) / max(warmup_steps, 1), 1.0)
    rate = warm * after[name](jnp.maximum(count - warmup_steps, 0))
    if name == 'constant':
      return rate
    return jnp.where(count - warmup_steps < decay, rate, 0.0)

  return schedule


def decayed(params: Any) -> Any:
  """Marks the parameters with weight decay: all but norms and biases."""
  # Decay pulls a weight to 0, and at 0 a norm would remove its input.
  def is_matrix(path, _):
    name = path[-1].key
    return not name.endswith(('norm', 'bias'))
  return jax.tree_util.tree_map_with_path(is_matrix, params)


def _clip(most: float) -> optax.GradientTransformation:
  """Returns `optax.clip_by_global_norm`, but with one factor for all arrays.

  XLA would keep optax's quotients of all gradients in memory.
  """
  return optax.stateless(lambda grads, _: optax.tree.scale(
      jnp.minimum(most / optax.tree.norm(grads), 1.0), grads))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Static choices of the optimiser.

  Attributes:
    learning_rate: peak of the schedule.
    steps: total optimiser steps.
    schedule: shape after the warm-up, 'constant', 'linear' or 'cosine'.
    decay_steps: horizon of the schedule in optimiser steps; None for `steps`.
    warmup_steps: steps of the linear warm-up; 0 for none.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: coefficient.
    max_grad_norm: gradients with a larger global norm are scaled down to it;
      None for no clip.
  """
  learning_rate: float
  steps: int
  schedule: str = 'constant'
  decay_steps: int | None = None
  warmup_steps: int = 0
  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8
  weight_decay: float = 0.0
  max_grad_norm: float | None = 1.0

  def __post_init__(self):
    """Raises ValueError if a value is out of range."""
    clip = self.max_grad_norm
    for name, ok, want in (
        ('learning_rate', self.learning_rate >= 0, 'at least 0'),
        ('steps', self.steps >= 1, 'at least 1'),
        ('warmup_steps', self.warmup_steps >= 0, 'at least 0'),
        ('b1', 0 <= self.b1 < 1, 'in [0, 1)'),
        ('b2', 0 <= self.b2 < 1, 'in [0, 1)'),
        ('eps', self.eps > 0, 'positive'),
        ('weight_decay', self.weight_decay >= 0, 'at least 0'),
        ('max_grad_norm', clip is None or clip > 0,
         'positive, or None for no clip'),
    ):
      if not ok:
        raise ValueError(
            f'optimizer.{name}={getattr(self, name)} must be {want}.')


def make_optimizer(cfg: OptimizerConfig) -> Optimizer:
  """Makes AdamW with a clip of the gradient's global norm before it.

  Moments are float32, like the parameters. Weight decay is decoupled, scaled by
  the learning rate, and not applied to norms and biases.

  Args:
    cfg: static choices.

  Returns:
    The transformation and its schedule.

  Raises:
    ValueError: the schedule is unknown.
  """
  rate = make_schedule(
      cfg.schedule, cfg.learning_rate, warmup_steps=cfg.warmup_steps,
      steps=cfg.decay_steps or cfg.steps)
  adamw = optax.adamw(
      rate, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay,
      mask=decayed)
  if cfg.max_grad_norm is None:
    return Optimizer(adamw, rate)
  return Optimizer(optax.chain(_clip(cfg.max_grad_norm), adamw), rate)
