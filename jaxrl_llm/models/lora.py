"""LoRA (arXiv:2106.09685): small matrices that are trained beside frozen ones.

A weight W [D, F] becomes W + alpha / rank * A B with A [D, rank] and B
[rank, F]. A and B of all layers form a tree of their own, `{'layers':
{'q_lora_a': [layers, D, rank], ...}}`; `join` puts it beside the frozen tree,
where `transformer.block` finds it.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


def targets(shapes: Params, pattern: str) -> list[str]:
  """Names of the matrices of a layer that a pattern matches whole.

  Raises:
    ValueError: it matches none, or is no regular expression.
  """
  known = [n for n, x in shapes['layers'].items() if len(x.shape) == 3]
  try:
    found = [name for name in known if re.fullmatch(pattern, name)]
  except re.error as error:
    raise ValueError(
        f'lora.targets={pattern} is no regular expression ({error}).') from None
  if not found:
    raise ValueError(
        f'lora.targets={pattern} matches none of {", ".join(known)}.')
  return found


def init(key: jax.Array, shapes: Params, rank: int, pattern: str) -> Params:
  """Matrices whose product is 0: the model begins as it is.

  Args:
    key: PRNG key.
    shapes: parameter tree of the model, anything with shapes.
    rank: inner size.
    pattern: regular expression of the matrices that get them.

  Returns:
    A float32 uniform in +-D ** -0.5, as in PEFT; B zeros.
  """
  layers, names = {}, targets(shapes, pattern)
  keys = jax.random.split(key, len(names))
  for i, name in enumerate(names):
    n, d, f = shapes['layers'][name].shape
    layers[f'{name}_lora_a'] = jax.random.uniform(
        keys[i], (n, d, rank), jnp.float32, -d ** -0.5, d ** -0.5)
    layers[f'{name}_lora_b'] = jnp.zeros((n, rank, f), jnp.float32)
  return {'layers': layers}


def scaled(adapters: Params, scale: float) -> Params:
  """The matrices with `scale`, alpha / rank, multiplied into B."""
  return {'layers': {
      name: x * scale if name.endswith('_lora_b') else x
      for name, x in adapters['layers'].items()}}


def join(frozen: Params, adapters: Params) -> Params:
  """Frozen parameters with scaled matrices beside them; nothing is copied."""
  return {**frozen, 'layers': {**frozen['layers'], **adapters['layers']}}


def merge(joined: Params) -> Params:
  """Parameters of the plain model that computes what `join`'s do.

  Args:
    joined: of `join`.

  Returns:
    The parameter tree without A and B, sums taken in float32.
  """
  layers = joined['layers']

  def one(name, weight):
    a, b = (layers.get(f'{name}_lora_{part}') for part in 'ab')
    if a is None:
      return weight
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return weight.astype(jnp.float32) + jnp.einsum(
        'ndr,nrf->ndf', a, b, precision='highest')

  return {**joined, 'layers': {
      name: one(name, weight) for name, weight in layers.items()
      if '_lora_' not in name}}
