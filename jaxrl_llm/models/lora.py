"""LoRA (arXiv:2106.09685): trained low-rank matrices added to frozen weights.

A weight W [D, F] becomes W + alpha / rank * A B with A [D, rank] and B
[rank, F]. A and B of all layers are a separate tree, `{'layers': {'q_lora_a':
[layers, D, rank], ...}}`. `join` merges it with the frozen tree, and
`transformer.block` uses the result.
"""

import functools
import re
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp

from jaxrl_llm.models import experts
from jaxrl_llm.models.transformer import MATRICES
from jaxrl_llm.ops import quantise

Params = dict[str, Any]


def targets(shapes: Params, pattern: str) -> list[str]:
  """Returns the names of a layer's matrices that fully match a pattern.

  Those of experts are left out, with a warning, since they are as many matrices
  as there are experts.

  Raises:
    ValueError: no name matches, or the pattern is not a regular expression.
  """
  matrices = [name for name in shapes['layers'] if name in MATRICES]
  of_experts = [name.removeprefix('experts_') for name in experts.MATRICES
                if name in shapes['layers']]
  try:
    names = [name for name in matrices if re.fullmatch(pattern, name)]
    wanted = [name for name in of_experts if re.fullmatch(pattern, name)]
  except re.error as error:
    raise ValueError(
        f'lora.targets={pattern} is not a valid regular expression ({error}).'
    ) from None
  if not names:
    raise ValueError(
        f'lora.targets={pattern} matches none of {", ".join(matrices)}'
        f'{", and experts get no LoRA" if of_experts else ""}: use a pattern '
        'that matches whole names.')
  if wanted:
    _warn_of_experts(pattern, ', '.join(wanted), ', '.join(names))
  return names


@functools.cache  # once for each model
def _warn_of_experts(pattern: str, wanted: str, names: str) -> None:
  """Warns that a pattern names matrices of experts."""
  logging.warning(
      'Experts get no LoRA: lora.targets=%s names their %s, and trains %s '
      'alone. lora.rank=0 trains all weights.', pattern, wanted, names)


def init(key: jax.Array, shapes: Params, rank: int, pattern: str) -> Params:
  """Initialises A and B so that A B = 0: the model's outputs are unchanged.

  Args:
    key: PRNG key.
    shapes: parameter tree of the model, of anything with a shape.
    rank: inner size.
    pattern: regular expression for the names of the matrices to adapt.

  Returns:
    Float32 tree. A is uniform in +-D ** -0.5, as in PEFT; B is zeros.
  """
  layers, names = {}, targets(shapes, pattern)
  for own, name in zip(jax.random.split(key, len(names)), names):
    n, d, f = shapes['layers'][name].shape
    layers[f'{name}_lora_a'] = jax.random.uniform(
        own, (n, d, rank), jnp.float32, -d ** -0.5, d ** -0.5)
    layers[f'{name}_lora_b'] = jnp.zeros((n, rank, f), jnp.float32)
  return {'layers': layers}


def scaled(adapters: Params, scale: float) -> Params:
  """Multiplies B by `scale`, which is alpha / rank."""
  return {'layers': {
      name: x * scale if name.endswith('_lora_b') else x
      for name, x in adapters['layers'].items()}}


def join(frozen: Params, adapters: Params) -> Params:
  """Merges frozen parameters and scaled A and B into one tree; no copies."""
  return {**frozen, 'layers': {**frozen['layers'], **adapters['layers']}}


def merge(joined: Params) -> Params:
  """Adds A B to the weights, for an equivalent model without adapters.

  Args:
    joined: from `join`.

  Returns:
    The parameter tree without A and B; sums are computed in float32. Quantised
    matrices of layers are dequantised.
  """
  layers = joined['layers']

  def merged(name, weight):
    scale = layers.get(f'{name}_scale')
    if scale is not None:
      weight = quantise.dequantise(weight, scale, axis=-2)
    a, b = (layers.get(f'{name}_lora_{part}') for part in 'ab')
    if a is None:
      return weight
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return weight.astype(jnp.float32) + jnp.einsum(
        'ndr,nrf->ndf', a, b, precision='highest')

  return {**joined, 'layers': {
      name: merged(name, weight) for name, weight in layers.items()
      if '_lora_' not in name and not name.endswith('_scale')}}
