"""The policy's parameters: where they come from, where they lie, what trains.

Either all of them are trained, in float32, or LoRA's matrices beside frozen
ones. Those are kept once, in the compute type and in the layout that sampling
wants, and serve training and sampling alike.
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
  """What to do with parameters.

  Attributes:
    shapes: of the whole model's parameters, float32.
    trained: of those that are trained.
    init: PRNG key to the whole model's parameters: random ones, or those of a
      checkpoint. They lie as in training; if they are to be frozen at once,
      as in sampling.
    split: (those, PRNG key) to what is trained, laid out for training, and
      what is frozen, laid out for sampling; None if nothing is.
    compose: (trained, frozen) to all parameters, in the types they have.
    to_sampling: (trained, frozen) to all parameters for sampling.
    lower_to_sampling: lowers the program that does that, from shapes alone.
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
  """Makes the functions; nothing is compiled yet.

  Args:
    config: of the run.
    model: the architecture.
    mesh: see `sharding`.
    checkpoint: that the model's weights come from.

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
  if config.warm_start.steps:  # which trains all of them
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
  """See `Policy.init`; `like` has shapes, types and shardings."""
  if checkpoint is not None:
    return lambda key: hf.load(checkpoint, like)
  return jax.jit(
      lambda key: jax.tree.map(
          lambda x, want: x.astype(want.dtype), transformer.init(key, model),
          like),
      out_shardings=jax.tree.map(lambda x: x.sharding, like))
