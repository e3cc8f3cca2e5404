"""AdamW with a global-norm clip and a learning-rate schedule."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_llm.learner.options import OptimizerConfig


class Optimizer(NamedTuple):
  """A gradient transformation and its learning-rate schedule.

  Attributes:
    transform: optax transformation from gradients to updates.
    schedule: (optimiser steps taken so far) -> learning rate of the next step.
  """
  transform: optax.GradientTransformation
  schedule: optax.Schedule


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
  return jax.tree_util.tree_map_with_path(
      lambda path, _: not path[-1].key.endswith(('norm', 'bias')), params)


def _clip(most: float) -> optax.GradientTransformation:
  """Returns `optax.clip_by_global_norm`, but with one factor for all arrays.

  XLA would keep optax's quotients of all gradients in memory.
  """
  return optax.stateless(lambda grads, _: optax.tree.scale(
      jnp.minimum(most / optax.tree.norm(grads), 1.0), grads))


def make_optimizer(cfg: OptimizerConfig, steps: int) -> Optimizer:
  """Makes AdamW with a clip of the gradient's global norm before it.

  Moments are float32, like the parameters. Weight decay is decoupled, scaled by
  the learning rate, and not applied to norms and biases.

  Args:
    cfg: choices.
    steps: total optimiser steps, at least 1.

  Returns:
    The transformation and its schedule.

  Raises:
    ValueError: the schedule is unknown.
  """
  rate = make_schedule(
      cfg.schedule, cfg.learning_rate, warmup_steps=cfg.warmup_steps,
      steps=cfg.decay_steps or steps)
  adamw = optax.adamw(
      rate, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay,
      mask=decayed)
  if cfg.max_grad_norm is None:
    return Optimizer(adamw, rate)
  return Optimizer(optax.chain(_clip(cfg.max_grad_norm), adamw), rate)
