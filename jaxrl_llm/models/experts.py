"""Routed experts: a token goes through a few of a layer's many gated MLPs.

`route` chooses a token's experts and their weights. `apply` computes the
weighted sum of their results: pairs of a token and one of its experts are
sorted by expert, so that each product with the experts' matrices is one
`jax.lax.ragged_dot`. Over the mesh axis `tensor` the experts are split. Each
device computes the pairs of its own experts for all of its tokens, and the
sums are added over `tensor`.

A token's result does not depend on the other tokens of its batch: each pair is
a row of the products, and a token's pairs are added in the order of its
choices, not in that of the sorted list.

An auxiliary loss that balances the experts is left out: it would train the
router away from the choices that rewards favour. The learner reports the load
of the experts.

Metrics:
  update/experts_load_max [ratio]: tokens of the expert with most, to an even
    spread; mean over layers
  update/experts_load_min [ratio]: tokens of the expert with fewest, to an even
    spread
  update/experts_unused [share]: experts without a token
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm.models.config import ModelConfig

MATRICES = ('experts_gate', 'experts_up', 'experts_down')  # Of each layer.

# Name of the chosen experts for the policies of `jax.checkpoint`. A backward
# pass must not choose again: rounding could differ, and with it the choice.
CHOSEN = 'chosen experts'

# Products [M, K] x [M, N] -> [E, K, N], sums over the rows of each expert; and
# [M, N] x [E, K, N] -> [M, K].
_OF_WEIGHTS = jax.lax.RaggedDotDimensionNumbers(
    (((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[])
_OF_ROWS = jax.lax.RaggedDotDimensionNumbers(
    (((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0])
_TILE = 512  # Rows of a tile of `_of_weights_tpu`.


def route(
    x: jax.Array, router: jax.Array, *, count: int, normalise: bool,
    chosen: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
  """Chooses the experts of tokens.

  Args:
    x: [N, D] of any type.
    router: [D, E].
    count: k, experts of a token.
    normalise: whether the weights of a token's experts sum to 1.
    chosen: [N, k] int32, experts to use; None for the k most probable ones.

  Returns:
    [N, k] float32, the weights: probabilities among all experts, normalised if
    so asked; and [N, k] int32, the experts.
  """
  logits = jnp.einsum(
      'nd,de->ne', x.astype(jnp.float32), router.astype(jnp.float32),
      precision='highest')
  probs = jax.nn.softmax(logits, -1)
  if chosen is None:
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(probs), count)
  chosen = checkpoint_name(chosen, CHOSEN)
  weights = jnp.take_along_axis(probs, chosen, -1)
  if normalise:
    weights /= jnp.sum(weights, -1, keepdims=True)
  return weights, chosen


def apply(
    x: jax.Array, layer: dict[str, Any], *, count: int, normalise: bool,
    units: Callable[[jax.Array, jax.Array], jax.Array],
    chosen: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
  """Computes the MLP of a layer with experts.

  Args:
    x: [..., D], in the compute type.
    layer: with 'router' [D, E], 'experts_gate' and 'experts_up' [E, D, F], and
      'experts_down' [E, F, D]. A quantised matrix has its scales beside it.
    count: k, experts of a token.
    normalise: as of `route`.
    units: (gate [M, F], up [M, F]) -> hidden units [M, F].
    chosen: [..., k] int32, experts to use; None for the router's choice.

  Returns:
    [..., D], in x's type; and [..., k] int32, each token's experts.
  """
  mesh = jax.sharding.get_abstract_mesh()
  free = {*mesh.auto_axes} & {'fsdp', 'tensor'}
  split = 'tensor' in free and mesh.shape['tensor'] > 1

  dtype = x.dtype

  def local(x, router, own, chosen):
    tokens = x.reshape(-1, x.shape[-1]).astype(dtype)
    if chosen is not None:
      chosen = chosen.reshape(-1, count)
    weights, chosen = route(
        tokens, router, count=count, normalise=normalise, chosen=chosen)
    first = 0
    if split:
      first = jax.lax.axis_index('tensor') * len(own['experts_gate'])
    out = _mix(tokens, weights, chosen - first, own, units, split)
    if split:
      out = jax.lax.psum(out, 'tensor')
    out = out.astype(dtype)
    return out.reshape(x.shape), chosen.reshape(*x.shape[:-1], count)

  own = {name: value for name, value in layer.items()
         if name.removesuffix('_scale') in MATRICES}
  if free:
    rows = P('fsdp' if 'fsdp' in free else None)
    local = jax.shard_map(
        local, axis_names=free, check_vma=False, out_specs=rows, in_specs=(
            rows, P(), P('tensor' if 'tensor' in free else None), rows))
  # Sums over devices, also that of x's gradient, are of float32.
  x = x.astype(jnp.float32) if split else x
  return local(x, layer['router'], own, chosen)


class Record(NamedTuple):
  """Form in which the experts of tokens are kept, [..., layers * k].

  Attributes:
    layers: layers with experts.
    count: k, experts of a token.
    number: E.
  """
  layers: int
  count: int
  number: int

  @classmethod
  def of(cls, cfg: ModelConfig) -> 'Record':
    """Returns the form for a model with experts."""
    return cls(
        sum(cfg.sparse_layers()), cfg.experts_per_token, cfg.experts)

  @property
  def type(self) -> np.dtype:
    """The smallest type that can number the experts."""
    return np.min_scalar_type(self.number - 1)

  @property
  def width(self) -> int:
    """Numbers of a token."""
    return self.layers * self.count

  def empty(self, *shape: int) -> np.ndarray:
    """Returns zeros [*shape, layers * k]."""
    return np.zeros((*shape, self.width), self.type)

  def pack(self, chosen: jax.Array) -> jax.Array:
    """Returns [..., layers * k] of chosen [layers, ..., k] int32."""
    chosen = jnp.moveaxis(chosen, 0, -2).astype(self.type)
    return chosen.reshape(*chosen.shape[:-2], -1)

  def unpack(self, packed: jax.Array) -> jax.Array:
    """Returns chosen [layers, ..., k] int32 of [..., layers * k]."""
    chosen = packed.reshape(*packed.shape[:-1], self.layers, self.count)
    return jnp.moveaxis(chosen, -2, 0).astype(jnp.int32)


def load(chosen: jax.Array, real: jax.Array, number: int) -> jax.Array:
  """Counts the tokens of each expert.

  Args:
    chosen: [layers, B, S, k] int32, the experts of each token.
    real: [B, S] bool, tokens to count.
    number: E.

  Returns:
    [layers, E] float32.
  """
  of_expert = chosen[..., None] == jnp.arange(number)
  return jnp.sum(of_expert & real[..., None, None], (1, 2, 3), jnp.float32)


def load_metrics(load: jax.Array) -> dict[str, jax.Array]:
  """Computes how evenly tokens are spread over experts.

  Args:
    load: [layers, E], tokens of each expert.

  Returns:
    The module's metrics without their prefix, [] each.
  """
  even = jnp.maximum(jnp.mean(load, -1), 1e-9)
  return dict(
      experts_load_max=jnp.mean(jnp.max(load, -1) / even),
      experts_load_min=jnp.mean(jnp.min(load, -1) / even),
      experts_unused=jnp.mean(load == 0))


def _mix(x, weights, chosen, layer, units, split):
  """Computes the weighted sums of the results of this device's experts.

  Args:
    x: [N, D] tokens.
    weights: [N, k] float32.
    chosen: [N, k] int32, numbers among this device's experts; with `split`,
      others are of another device.
    layer: matrices of this device's experts.
    units: as of `apply`.
    split: whether there are other devices.

  Returns:
    [N, D] float32.
  """
  count, number = chosen.shape[1], len(layer['experts_gate'])
  expert = chosen.ravel()
  if split:
    expert = jnp.where((expert >= 0) & (expert < number), expert, number)
  order = jnp.argsort(expert)  # Those of other devices come last.
  back = jnp.argsort(order)
  sizes = jnp.sum(expert[:, None] == jnp.arange(number), 0, dtype=jnp.int32)
  expert = expert[order]

  def here(rows):
    # Rows behind the last group may hold anything, also in the gradient.
    return jnp.where((expert < number)[:, None], rows, 0) if split else rows

  def product(rows, name):
    scale = layer.get(f'{name}_scale')
    if scale is None:
      return _product(rows, layer[name], sizes)
    # A converted matrix is a copy in memory; TPUs multiply by int8 as it is.
    w = layer[name]
    w = w if w.dtype == jnp.int8 else w.astype(rows.dtype)
    # Without their scale, sums may be too large for float16.
    out = jax.lax.ragged_dot(
        rows, w, sizes,
        preferred_element_type=jnp.promote_types(rows.dtype, jnp.bfloat16))
    return (out * scale[expert]).astype(rows.dtype)

  rows = here(_spread(x, order, back, count))
  rows = units(product(rows, 'experts_gate'), product(rows, 'experts_up'))
  rows = _permuted(here(product(rows, 'experts_down')), back, order)
  rows = rows.reshape(-1, count, x.shape[-1]).astype(jnp.float32)
  return jnp.sum(rows * weights[..., None], 1)


@jax.custom_vjp
def _product(x, w, sizes):
  """Multiplies rows [M, K], sorted by expert, by w [E, K, N] in x's type."""
  return jax.lax.ragged_dot(x, w.astype(x.dtype), sizes)


def _product_fwd(x, w, sizes):
  # Not a call of `_product`, which would hide it from `jax.checkpoint`.
  return jax.lax.ragged_dot(x, w.astype(x.dtype), sizes), (x, w, sizes)


def _product_bwd(residuals, grad):
  # As of `transformer.matmul`: the gradient of w is summed in float32.
  x, w, sizes = residuals
  d_w = jax.lax.platform_dependent(
      x, grad, sizes, tpu=_of_weights_tpu, default=_of_weights)
  d_x = jax.lax.ragged_dot_general(
      grad, w.astype(grad.dtype), sizes, _OF_ROWS)
  return d_x, d_w.astype(w.dtype), None


_product.defvjp(_product_fwd, _product_bwd)


def _of_weights(x, grad, sizes):
  """Computes x.T grad [E, K, N] over the rows of each expert, in float32."""
  return jax.lax.ragged_dot_general(
      x, grad, sizes, _OF_WEIGHTS, preferred_element_type=jnp.float32)


def _of_weights_tpu(x, grad, sizes, interpret=False):
  """Computes the same by a kernel.

  XLA has none for it on TPUs: it multiplies all rows for each expert, which is
  E times the arithmetic.
  """
  # Importing Pallas takes time.
  from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm
  rest = -len(x) % _TILE
  x, grad = (jnp.pad(rows, ((0, rest), (0, 0))) for rows in (x, grad))
  tiling = (_TILE, *(min(1024, rows.shape[1]) for rows in (x, grad)))
  return tgmm(
      x.T, grad, sizes, jnp.float32, tiling, interpret=interpret)


# Autodiff does not know that an order has each row once, and would add rows one
# by one.
@jax.custom_vjp
def _permuted(x, order, back):
  """Returns x[order]; `back` is the inverse of the order."""
  return x[order]


_permuted.defvjp(
    lambda x, order, back: (x[order], back),
    lambda back, grad: (grad[back], None, None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _spread(x, order, back, count):
  """Returns the token [M, D] of each pair, of x [N, D], in an order."""
  return x[order // count]


def _spread_bwd(count, back, grad):
  grad = grad[back].reshape(-1, count, grad.shape[-1])
  return jnp.sum(grad, 1, dtype=jnp.float32).astype(grad.dtype), None, None


_spread.defvjp(
    lambda x, order, back, count: (x[order // count], back), _spread_bwd)
