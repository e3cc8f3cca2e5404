"""The policy's parameters: initialisation, layouts, trained and frozen parts.

Either all parameters are trained, in float32, or only LoRA's matrices. In the
second case there is one copy of the frozen parameters, in the compute type and
the sampling layout, for both training and sampling.
"""

import dataclasses
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_llm import sharding
from jaxrl_llm.learner.options import LoraOptions
from jaxrl_llm.models import hf, lora, transformer
from jaxrl_llm.models.config import ModelConfig

Params = Any


class Policy(NamedTuple):
  """Functions of the policy's parameters.

  Attributes:
    shapes: shapes of the whole model's parameters, float32.
    stored: the same with layouts, and the types that a player that is not
      trained has.
    trained: shapes of the trained parameters.
    init: (PRNG key) -> the whole model's parameters, random or from a
      checkpoint, in the training layout. With LoRA, unless SFT trains all of
      them first, they are in the compute type and the sampling layout.
    split: (whole model's parameters, PRNG key) -> (trained, frozen). Trained
      parameters have the training layout, frozen ones the sampling layout;
      frozen is None if all are trained.
    compose: (trained, frozen) -> all parameters, types unchanged.
    sampling: (key of `quantise.TYPES`, or None for the compute type) ->
      sharding.Resharder, whose `apply` is (trained, frozen) -> all parameters
      for sampling. With LoRA, `lower` is of the adapters' program if the frozen
      parameters are not converted, else of the program that converts these.
      Nothing is compiled yet.
    to_sampling: (trained, frozen) -> all parameters for sampling, in the
      compute type.
  """
  shapes: Params
  stored: Params
  trained: Params
  init: Callable[[jax.Array], Params]
  split: Callable[[Params, jax.Array], tuple[Params, Params]]
  compose: Callable[[Params, Params], Params]
  sampling: Callable[[str | None], sharding.Resharder]
  to_sampling: Callable[..., Params]


@dataclasses.dataclass(frozen=True)
class Adapters(LoraOptions):
  """LoRA of a policy.

  Attributes:
    warm: whether SFT trains all parameters first.
  """
  warm: bool = False


def make_policy(
    model: ModelConfig, mesh: jax.sharding.Mesh,
    adapters: Adapters | None = None,
    checkpoint: hf.Checkpoint | None = None,
    learner_mesh: jax.sharding.Mesh | None = None, *,
    frozen: bool = False) -> Policy:
  """Makes the functions of a policy's parameters; nothing is compiled yet.

  Args:
    model: the architecture.
    mesh: the sampler's, with axes data, fsdp and tensor.
    adapters: LoRA's matrices; None trains all parameters.
    checkpoint: source of the weights; None for random ones.
    learner_mesh: of the parameters in training; None for `mesh`. With LoRA it
      is `mesh`: both use the same frozen parameters.
    frozen: whether the player is not trained: its parameters then have the
      compute type.

  Returns:
    The functions.

  Raises:
    ValueError: the mesh does not divide a parameter, or lora.targets matches
      none.
  """
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  learner = mesh if learner_mesh is None else learner_mesh
  try:
    in_training = sharding.abstract_params(
        shapes, sharding.TRAIN_RULES, learner,
        jnp.dtype(model.dtype) if frozen else None)
  except ValueError as error:
    if learner is mesh:
      raise
    sizes = ', '.join(map(str, learner.shape.values()))
    raise ValueError(
        f'{str(error)[:-1]}; with mesh.learner_tensor='
        f'{learner.shape["tensor"]} the mesh (data, fsdp, tensor) is {sizes}.'
    ) from None
  if adapters:
    return _with_adapters(adapters, model, mesh, checkpoint, in_training)
  dtype = jnp.dtype(model.dtype)

  def sampling(kind):
    made = sharding.to_sampling(shapes, mesh, dtype, kind=kind, learner=learner)
    return made._replace(apply=lambda trained, frozen=None: made.apply(trained))

  return Policy(
      shapes=shapes, stored=in_training, trained=shapes,
      init=_init(model, checkpoint, in_training),
      split=lambda params, key: (params, None),
      compose=lambda trained, frozen: trained,
      sampling=sampling, to_sampling=sampling(None).apply)


def _with_adapters(choice, model, mesh, checkpoint, in_training) -> Policy:
  """Makes the functions of a policy of which LoRA's matrices are trained.

  Args:
    choice: LoRA's matrices.
    model: the architecture.
    mesh: the sampler's and the learner's.
    checkpoint: source of the weights; None for random ones.
    in_training: abstract parameters of the whole model in the training layout.
  """
  scale, dtype = choice.alpha / choice.rank, jnp.dtype(model.dtype)
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))

  def init_adapters(key):
    return lora.init(key, shapes, choice.rank, choice.targets)

  trained = jax.eval_shape(init_adapters, jax.random.key(0))
  layout = sharding.shardings(trained, sharding.TRAIN_RULES, mesh)
  new_adapters = jax.jit(init_adapters, out_shardings=layout)
  scaled = jax.jit(lambda x: lora.scaled(x, scale), out_shardings=layout)
  adapters = sharding.to_sampling(trained, mesh, dtype)
  stored = sharding.abstract_params(shapes, sharding.SAMPLE_RULES, mesh, dtype)
  if choice.warm:
    init = _init(model, checkpoint, in_training)
    freeze = sharding.to_sampling(shapes, mesh, dtype).apply
  else:
    # Frozen weights are never in float32 or split over fsdp: sampling and
    # training read the same arrays.
    init, freeze = _init(model, checkpoint, stored), lambda x: x

  def sampling(kind):
    own = sharding.to_sampling(
        stored, mesh, dtype, kind=kind, train_rules=sharding.SAMPLE_RULES)
    return sharding.Resharder(
        lambda params, frozen: lora.join(
            own.apply(frozen), adapters.apply(scaled(params))),
        own.lower if kind else adapters.lower,
        lora.join(own.result, adapters.result))

  return Policy(
      shapes=shapes, stored=in_training, trained=trained, init=init,
      split=lambda params, key: (new_adapters(key), freeze(params)),
      compose=lambda params, frozen: lora.join(
          frozen, lora.scaled(params, scale)),
      sampling=sampling, to_sampling=sampling(None).apply)


def _init(
    model: ModelConfig, checkpoint: hf.Checkpoint | None,
    like: Params) -> Callable[[jax.Array], Params]:
  """Makes `Policy.init`; `like` has the shapes, types and shardings."""
  if checkpoint is not None:
    return lambda key: hf.load(checkpoint, like)

  def initial_params(key):
    return jax.tree.map(
        lambda x, want: x.astype(want.dtype), transformer.init(key, model),
        like)

  # Made in their layout, so that no device need hold the whole model.
  return jax.jit(
      initial_params, out_shardings=jax.tree.map(lambda x: x.sharding, like))
