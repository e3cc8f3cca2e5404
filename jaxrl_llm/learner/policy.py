"""The policy's parameters: initialisation, layouts, trained and frozen parts.

Either all parameters are trained, in float32, or only LoRA's matrices. In the
second case there is one copy of the frozen parameters, in the compute type and
the sampling layout, for both training and sampling.
"""

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxrl_llm import sharding
from jaxrl_llm.models import hf, lora, transformer
from jaxrl_llm.models.config import ModelConfig

Params = Any


class Policy(NamedTuple):
  """Functions of the policy's parameters.

  Attributes:
    shapes: shapes of the whole model's parameters, float32.
    trained: shapes of the trained parameters.
    init: (PRNG key) -> the whole model's parameters, random or from a
      checkpoint, in the training layout. With LoRA and no warm start they are
      in the compute type and the sampling layout.
    split: (whole model's parameters, PRNG key) -> (trained, frozen). Trained
      parameters have the training layout, frozen ones the sampling layout;
      frozen is None if all are trained.
    compose: (trained, frozen) -> all parameters, types unchanged.
    to_sampling: (trained, frozen) -> all parameters for sampling.
    lower_to_sampling: () -> lowered program of `to_sampling`; needs only
      shapes.
  """
  shapes: Params
  trained: Params
  init: Callable[[jax.Array], Params]
  split: Callable[[Params, jax.Array], tuple[Params, Params]]
  compose: Callable[[Params, Params], Params]
  to_sampling: Callable[..., Params]
  lower_to_sampling: Callable[[], Any]


def make(
    config: ConfigDict, model: ModelConfig, mesh: jax.sharding.Mesh,
    checkpoint: hf.Checkpoint | None = None) -> Policy:
  """Makes the functions of a policy's parameters; nothing is compiled yet.

  Args:
    config: config of the run.
    model: the architecture.
    mesh: see `sharding`.
    checkpoint: source of the weights; None for random ones.

  Returns:
    The functions.

  Raises:
    ValueError: the mesh does not divide a parameter, or lora.targets matches
      none.
  """
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  whole = sharding.to_sampling(shapes, mesh, jnp.dtype(model.dtype))
  in_training = sharding.abstract_params(shapes, sharding.TRAIN_RULES, mesh)
  if not config.lora.rank:
    return Policy(
        shapes=shapes, trained=shapes,
        init=_init(model, checkpoint, in_training),
        split=lambda params, key: (params, None),
        compose=lambda trained, frozen: trained,
        to_sampling=lambda trained, frozen=None: whole.apply(trained),
        lower_to_sampling=whole.lower)

  rank, targets = config.lora.rank, config.lora.targets
  scale = config.lora.alpha / rank

  def init_adapters(key):
    return lora.init(key, shapes, rank, targets)

  trained = jax.eval_shape(init_adapters, jax.random.key(0))
  layout = sharding.shardings(trained, sharding.TRAIN_RULES, mesh)
  new_adapters = jax.jit(init_adapters, out_shardings=layout)
  scaled = jax.jit(lambda x: lora.scaled(x, scale), out_shardings=layout)
  adapters = sharding.to_sampling(trained, mesh, jnp.dtype(model.dtype))
  if config.warm_start.steps:  # The warm start trains all parameters.
    init, freeze = _init(model, checkpoint, in_training), whole.apply
  else:
    init, freeze = _init(model, checkpoint, sharding.abstract_params(
        shapes, sharding.SAMPLE_RULES, mesh, model.dtype)), lambda x: x
  return Policy(
      shapes=shapes, trained=trained, init=init,
      split=lambda params, key: (new_adapters(key), freeze(params)),
      compose=lambda params, frozen: lora.join(
          frozen, lora.scaled(params, scale)),
      to_sampling=lambda params, frozen: lora.join(
          frozen, adapters.apply(scaled(params))),
      lower_to_sampling=adapters.lower)


def _init(
    model: ModelConfig, checkpoint: hf.Checkpoint | None,
    like: Params) -> Callable[[jax.Array], Params]:
  """Makes `Policy.init`; `like` has the shapes, types and shardings."""
  if checkpoint is not None:
    return lambda key: hf.load(checkpoint, like)
  return jax.jit(
      lambda key: jax.tree.map(
          lambda x, want: x.astype(want.dtype), transformer.init(key, model),
          like),
      out_shardings=jax.tree.map(lambda x: x.sharding, like))
