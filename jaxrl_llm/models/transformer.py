"""One decoder for all families of models, as plain functions.

These are Qwen2/2.5, Qwen3, Qwen3-MoE, Llama 3, Gemma 2 and 3.

Parameters are a dictionary of arrays. Layer parameters are stacked on a leading
axis, which `forward` scans over. The stacks of dense MLPs and of experts have
only the layers of that kind, see `runs`. Projections are flat, [D, H * h]: a
separate axis of heads would make TPUs copy the weights into another layout.
Training, prefill and decode run the same `block` with a different `attend`
function.

A matrix may be quantised (`ops/quantise.py`): then a leaf such as 'q_scale'
beside it has the scale of each output channel. Products use the values, and
their results are multiplied by the scales: no dequantised matrix exists.

Left out, because no supported family needs them: dropout, learned positions,
LayerNorm.
"""

import functools
import itertools
import operator
import re
from typing import Any, Callable, NamedTuple, Optional, Sequence

import jax
import jax.numpy as jnp

from jaxrl_llm.models import attention, experts
from jaxrl_llm.models.config import Execution, FULL, ModelConfig

Params = dict[str, Any]
Rope = tuple[jax.Array, jax.Array]  # From `rope_table` or `layer_rope`.

# Of each layer, but those of experts.
MATRICES = ('q', 'k', 'v', 'o', 'gate', 'up', 'down')
_DENSE = ('gate', 'up', 'down')
_SPARSE = ('router', *experts.MATRICES)

_ACTIVATIONS = {
    'silu': jax.nn.silu,
    'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
}

_ATTENTION = jax.checkpoint_policies.save_only_these_names(
    attention.SAVED, experts.CHOSEN)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def _gated(gate, up, activation):
  """Computes an MLP's hidden units; only its arguments are kept for autodiff.

  Otherwise these would be six arrays of the largest size in a layer.
  """
  return _ACTIVATIONS[activation](gate) * up


def _all_but_fetched(primitive, *_, **__):
  """Checkpoint policy: saves the values of autodiff, except fetched weights.

  `matmul` and attention appear here as the operations of their forward rules.
  Only `fetch` still appears as a custom_vjp_call, because its forward rule
  calls it.
  """
  return not primitive.name.startswith('custom_vjp_call')


# Activations of each layer saved for the backward pass; it recomputes the rest.
_KEPT = {
    'none': _all_but_fetched,
    'matmuls': jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _ATTENTION),
    'attention': _ATTENTION,
    'full': jax.checkpoint_policies.save_only_these_names(experts.CHOSEN),
}
REMAT = tuple(_KEPT)


PLAIN = Execution(remat='none', attention='xla', unroll=1)


class Reads(NamedTuple):
  """Functions that read parameters which may be split over devices.

  Attributes:
    lookup: (table [V, D], tokens [B, S]) -> rows of the table [B, S, D].
    fetch: (layer's parameters) -> parameters to use, a `jax.custom_vjp`; None
      for no change.
  """
  lookup: Callable[[jax.Array, jax.Array], jax.Array] = operator.getitem
  fetch: Optional[Callable[[Params], Params]] = None


DIRECT = Reads()


class LayerOutputs(NamedTuple):
  """Values of the layers that `forward` returns.

  Attributes:
    kv: the rotated keys and the values, each [layers, B, S, KV, h], if asked
      for, else None.
    experts: [layers with experts, B, S, k] int32, each token's experts; None
      without such layers.
  """
  kv: Optional[tuple[jax.Array, jax.Array]] = None
  experts: Optional[jax.Array] = None


class LayerGroup(NamedTuple):
  """Consecutive layers of one kind.

  Attributes:
    layers: numbers of them.
    sparse: whether they have experts.
    skipped: layers of the other kind before them.
  """
  layers: range
  sparse: bool
  skipped: int

  def places(self, name: str) -> Optional[range]:
    """Returns the layers' places in a stack of parameters; None without them.

    Args:
      name: of the parameter, such as 'gate' or 'gate_scale'.
    """
    stem = re.sub(r'_(t|scale|lora_[ab])$', '', name)
    if stem not in _DENSE + _SPARSE:
      return self.layers
    if (stem in _SPARSE) != self.sparse:
      return None
    return range(self.layers.start - self.skipped,
                 self.layers.stop - self.skipped)

  def of(self, layers: Params, place: Callable[[Any, range], Any]) -> Params:
    """Applies `place` to the stack of each parameter of these layers.

    Args:
      layers: `params['layers']`.
      place: (stack, places of the layers in it) -> anything.
    """
    return {name: place(stack, places) for name, stack in layers.items()
            if (places := self.places(name)) is not None}


def runs(cfg: ModelConfig) -> list[LayerGroup]:
  """Returns the runs of layers of one kind, in their order."""
  found, sparse = [], cfg.sparse_layers()
  for kind, run in itertools.groupby(range(cfg.layers), sparse.__getitem__):
    numbers = [*run]
    found.append(LayerGroup(range(numbers[0], numbers[-1] + 1), kind, sum(
        other != kind for other in sparse[:numbers[0]])))
  return found


def init(key: jax.Array, cfg: ModelConfig) -> Params:
  """Initialises random float32 parameters.

  Matrices are normal with standard deviation fan_in ** -0.5, divided by
  sqrt(2 * layers) if they write to the residual stream. Embeddings have
  standard deviation width ** -0.5, so that the logits of a tied unembedding
  start near 1.

  Args:
    key: PRNG key.
    cfg: the model.

  Returns:
    The parameter tree.
  """
  n, d, f = cfg.layers, cfg.width, cfg.mlp_width
  sparse = sum(cfg.sparse_layers())
  dense = n - sparse
  q, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
  keys = iter(jax.random.split(key, 13 if sparse else 9))
  residual = (2 * n) ** -0.5

  def matrix(*shape, scale=1.0):
    std = scale * shape[-2] ** -0.5
    return std * jax.random.normal(next(keys), shape, jnp.float32)

  def table():
    return d ** -0.5 * jax.random.normal(
        next(keys), (cfg.vocab_size, d), jnp.float32)

  def norm(*shape):
    fill = jnp.zeros if cfg.norm_plus_one else jnp.ones
    return fill(shape, jnp.float32)

  layers = dict(
      attn_norm=norm(n, d), mlp_norm=norm(n, d),
      q=matrix(n, d, q), k=matrix(n, d, kv), v=matrix(n, d, kv),
      o=matrix(n, q, d, scale=residual))
  if dense:
    layers.update(
        gate=matrix(dense, d, f), up=matrix(dense, d, f),
        down=matrix(dense, f, d, scale=residual))
  if sparse:
    e, f = cfg.experts, cfg.expert_width
    layers.update(
        router=matrix(sparse, d, e), experts_gate=matrix(sparse, e, d, f),
        experts_up=matrix(sparse, e, d, f),
        experts_down=matrix(sparse, e, f, d, scale=residual))
  if cfg.qkv_bias:
    layers.update(
        q_bias=jnp.zeros((n, q)), k_bias=jnp.zeros((n, kv)),
        v_bias=jnp.zeros((n, kv)))
  if cfg.qk_norm:
    layers.update(q_norm=norm(n, cfg.head_dim), k_norm=norm(n, cfg.head_dim))
  if cfg.post_norms:
    layers.update(attn_post_norm=norm(n, d), mlp_post_norm=norm(n, d))
  params = dict(embed=table(), layers=layers, norm=norm(d))
  if cfg.scores:
    params['score'] = matrix(d, 1).T
  elif not cfg.tie_embeddings:
    params['unembed'] = table()
  return params


def rms_norm(x: jax.Array, weight: jax.Array, cfg: ModelConfig) -> jax.Array:
  """Applies RMSNorm over the last axis, in float32; returns x's type."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + cfg.norm_eps)
  w = weight.astype(jnp.float32)
  if cfg.norm_plus_one:
    w = 1.0 + w
  # Without the axis of 1, XLA sums w's gradient three times as fast on CPUs.
  y = (y[0] * w)[None] if len(y) == 1 else y * w
  return y.astype(x.dtype)


def rope_table(positions: jax.Array, cfg: ModelConfig) -> Rope:
  """Computes the cosines and signed sines of the rotary angles.

  Args:
    positions: [...] int, position of each token in its sequence.
    cfg: the model.

  Returns:
    Two float32 arrays [..., head_dim]: the factor of a head, and the factor of
    the head with its halves swapped. With `window_rope_theta` they are
    [..., 2, head_dim]: for full attention, and for a window.
  """
  def powers(theta):
    half = cfg.head_dim // 2
    return theta ** (-jnp.arange(half, dtype=jnp.float32) / half)

  freq = powers(cfg.rope_theta)
  if cfg.rope_scaling is not None:
    s = cfg.rope_scaling
    rotations = s.original_length * freq / (2 * jnp.pi)
    smooth = (rotations - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor)
    smooth = jnp.clip(smooth, 0.0, 1.0)
    freq = freq * (smooth + (1.0 - smooth) / s.factor)
  if cfg.rope_divisor != 1:
    freq /= cfg.rope_divisor
  if cfg.window_rope_theta is not None:
    freq = jnp.stack([freq, powers(cfg.window_rope_theta)])
    positions = positions[..., None]
  angle = positions[..., None].astype(jnp.float32) * freq
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  return jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)


def layer_rope(
    rope: Rope, windowed: jax.Array | bool, cfg: ModelConfig) -> Rope:
  """Returns the tables [..., head_dim] of one layer.

  Args:
    rope: from `rope_table`.
    windowed: [] bool, whether the layer has a window.
    cfg: the model.
  """
  if cfg.window_rope_theta is None:
    return rope
  cos, sin = (jnp.where(windowed, t[..., 1, :], t[..., 0, :]) for t in rope)
  return cos, sin


def _rotate(x, rope):
  """Rotates the two halves (a, b) of each head of x [..., heads, h].

  (a cos - b sin, b cos + a sin) is computed as one product with the head and
  one with its halves swapped. On CPUs this takes half the time of separate
  products of the halves.
  """
  cos, sin = (t[..., None, :] for t in rope)
  y = x.astype(jnp.float32)
  swapped = jnp.roll(y, y.shape[-1] // 2, axis=-1)
  return (y * cos + swapped * sin).astype(x.dtype)


@jax.custom_vjp
def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
  """Multiplies x [..., D] by w [D, F] in x's type."""
  return x @ w.astype(x.dtype)


def _matmul_fwd(x, w):
  # Not a call of `matmul`, which would hide the product from `jax.checkpoint`.
  return x @ w.astype(x.dtype), (x, w)


def _matmul_bwd(residuals, grad):
  # Two differences from autodiff: the gradient of w is accumulated in float32
  # and never rounded to x's type, and x is its left operand. With `grad` on the
  # left, CPUs transpose it, which doubled the time of a backward pass.
  x, w = residuals
  d_w = jnp.einsum('...d,...f->df', x, grad,
                   preferred_element_type=jnp.float32)
  return grad @ w.astype(grad.dtype).T, d_w.astype(w.dtype)


matmul.defvjp(_matmul_fwd, _matmul_bwd)


def _rows_product(x, w):
  """Multiplies x [..., D] by the transpose of w [F, D]; no gradient.

  On CPUs this takes about half the time of `x @ w.T` or `x @ w` if x has few
  rows and w is large: as the left operand, w is read in place, while a right
  operand is first copied into tiles. The barrier keeps XLA from swapping them.
  """
  out = jnp.einsum('fd,...d->f...', w, x, preferred_element_type=jnp.float32)
  return jnp.moveaxis(jax.lax.optimization_barrier(out), 0, -1)


def _dense(x, layer, name):
  """Multiplies x [..., D] by a layer's matrix, in whichever form it is."""
  transposed = layer.get(f'{name}_t')
  if transposed is not None:
    return _rows_product(x, transposed.astype(x.dtype)).astype(x.dtype)
  scale = layer.get(f'{name}_scale')
  if scale is None:
    return matmul(x, layer[name])
  # Without their scale, sums may be too large for float16.
  kind = jnp.promote_types(x.dtype, jnp.bfloat16)
  out = jnp.einsum('...d,df->...f', x, layer[name].astype(x.dtype),
                   preferred_element_type=kind)
  return (out * scale).astype(x.dtype)


def block(
    x: jax.Array,
    layer: Params,
    rope: Rope,
    attend: Callable[..., tuple[jax.Array, Any]],
    cfg: ModelConfig,
    chosen: Optional[jax.Array] = None,
) -> tuple[jax.Array, Any, Optional[jax.Array]]:
  """Applies one layer.

  Args:
    x: [..., D] residual stream, in the compute type.
    layer: this layer's parameters, without the leading layer axis. A matrix
      may be there as its transpose, as 'q_t' in place of 'q'; for sampling.
    rope: this layer's tables for x's positions, from `layer_rope`.
    attend: (q [..., H, h], k [..., KV, h], v [..., KV, h]) -> ([..., H, h],
      extra). q and k are rotated; extra is any value.
    cfg: the model.
    chosen: [..., k] int32, experts to use in a layer with experts; None for the
      router's choice.

  Returns:
    The new residual stream, `extra` of `attend`, and the experts [..., k] of a
    layer with experts, else None.
  """
  def dense(y, name):
    out = _dense(y, layer, name)
    if f'{name}_lora_a' in layer:
      out += matmul(matmul(y, layer[f'{name}_lora_a']), layer[f'{name}_lora_b'])
    bias = layer.get(f'{name}_bias')
    return out if bias is None else out + bias.astype(x.dtype)

  def heads(y, norm):
    y = y.reshape(*y.shape[:-1], -1, cfg.head_dim)
    return y if norm is None else rms_norm(y, norm, cfg)

  def added(y, post):
    return rms_norm(y, layer[post], cfg) if cfg.post_norms else y

  y = rms_norm(x, layer['attn_norm'], cfg)
  q = _rotate(heads(dense(y, 'q'), layer.get('q_norm')), rope)
  k = _rotate(heads(dense(y, 'k'), layer.get('k_norm')), rope)
  out, extra = attend(q, k, heads(dense(y, 'v'), None))
  out = dense(out.reshape(*x.shape[:-1], -1), 'o')
  x = x + added(out, 'attn_post_norm')
  y = rms_norm(x, layer['mlp_norm'], cfg)
  if 'router' in layer:
    y, chosen = experts.apply(
        y, layer, count=cfg.experts_per_token, normalise=cfg.norm_topk,
        units=lambda gate, up: _gated(gate, up, cfg.activation), chosen=chosen)
  else:
    y = _gated(dense(y, 'gate'), dense(y, 'up'), cfg.activation)
    y, chosen = dense(y, 'down'), None
  return x + added(y, 'mlp_post_norm'), extra, chosen


def embed(
    params: Params, tokens: jax.Array, cfg: ModelConfig,
    lookup: Callable[[jax.Array, jax.Array], jax.Array] = operator.getitem,
) -> jax.Array:
  """Returns embeddings [..., D] of tokens [...], in the compute type."""
  # Casts the rows, not the table: the table's gradient, to which a frequent
  # token adds thousands of times, is then summed in the table's type.
  x = lookup(params['embed'], tokens)
  if 'embed_scale' in params:
    x = x.astype(jnp.float32) * params['embed_scale'][tokens][..., None]
  x = x.astype(cfg.dtype)
  if cfg.scale_embeddings:
    x = x * jnp.asarray(cfg.width ** 0.5, x.dtype)
  return x


def unembedding(params: Params) -> jax.Array:
  """Returns the unembedding matrix [V, D]."""
  return params.get('unembed', params['embed'])


def head_params(params: Params) -> Params:
  """Returns the parameters that `logits` uses, under the names of a tied model.

  These are 'embed' [V, D] and, if it is quantised, 'embed_scale' [V].
  """
  name = 'unembed' if 'unembed' in params else 'embed'
  return {key.replace(name, 'embed'): params[key]
          for key in (name, f'{name}_scale') if key in params}


def logits(
    params: Params, hidden: jax.Array, cfg: ModelConfig,
    few_rows: bool = False) -> jax.Array:
  """Computes logits.

  Args:
    params: the parameter tree, or only `head_params`.
    hidden: [..., D] final hidden states.
    cfg: the model.
    few_rows: whether to use the product that is fast for few rows on a CPU; it
      has no gradient.

  Returns:
    [..., V] float32.
  """
  head = head_params(params)
  w = head['embed'].astype(hidden.dtype)
  if few_rows:
    x = _rows_product(hidden, w)
  else:
    x = jnp.einsum('...d,vd->...v', hidden, w,
                   preferred_element_type=jnp.float32)
  if 'embed_scale' in head:
    x *= head['embed_scale']
  return attention.softcap(x, cfg.logit_softcap)


def forward(
    params: Params,
    tokens: jax.Array,
    *,
    cfg: ModelConfig,
    execution: Execution = PLAIN,
    keep_kv: bool = False,
    layout: Optional[attention.Layout] = None,
    reads: Reads = DIRECT,
    chosen: Optional[jax.Array] = None,
) -> tuple[jax.Array, LayerOutputs]:
  """Computes the hidden states of whole rows.

  Args:
    params: the parameter tree.
    tokens: [B, S] int32, right-padded.
    cfg: the model.
    execution: how to run.
    keep_kv: whether to return the rotated keys and the values (prefill).
    layout: order of the tokens, if [B, S] are not rows.
    reads: how to read the parameters.
    chosen: [layers with experts, B, S, k] int32, each token's experts; None for
      the routers' choices.

  Returns:
    Final hidden states [B, S, D] after the last norm, in the compute type,
    and the outputs of the layers.
  """
  longest = layout.longest if layout else tokens.shape[1]
  rope = rope_table(
      layout.positions if layout else jnp.arange(longest)[None], cfg)
  # A window as long as the sequence, or longer, hides nothing.
  window = cfg.window if cfg.window and cfg.window < longest else None
  windowed = jnp.asarray([w < FULL for w in cfg.layer_windows()])
  attend_to = layout.attend if layout else attention.causal_attention

  def step(x, of_layer):
    layer, windowed, chosen = of_layer

    def attend(q, k, v):
      out = attend_to(
          q, k, v, scale=cfg.scale, window=window, windowed=windowed,
          cap=cfg.attention_softcap, implementation=execution.attention)
      return out, (k, v) if keep_kv else None

    x, kv, chosen = block(
        x, reads.fetch(layer) if reads.fetch else layer,
        layer_rope(rope, windowed, cfg), attend, cfg, chosen)
    return x, (kv, chosen)

  # Without `fetch`, autodiff alone saves as much as 'none'.
  if reads.fetch or execution.remat != 'none':
    step = jax.checkpoint(step, policy=_KEPT[execution.remat])
  x, kept = embed(params, tokens, cfg, reads.lookup), []
  for run in runs(cfg):
    own = None
    if run.sparse and chosen is not None:
      own = _slice(chosen, run.places('router'))
    x, of_run = jax.lax.scan(
        step, x, (run.of(params['layers'], _slice),
                  _slice(windowed, run.layers), own), unroll=execution.unroll)
    kept.append(of_run)
  kv, used = zip(*kept)
  return rms_norm(x, params['norm'], cfg), LayerOutputs(
      _joined(kv), _joined(used))


def _slice(stack: jax.Array, places: range) -> jax.Array:
  """Returns some layers of a stack, without a copy of all."""
  if len(places) == len(stack):
    return stack
  return stack[places.start:places.stop]


def _joined(parts: Sequence[Any]) -> Any:
  """Concatenates the outputs of layer groups, except None."""
  parts = [part for part in parts if part is not None]
  return jax.tree.map(lambda *x: jnp.concatenate(x), *parts) if parts else None
