"""Attention over rows, for training and prefill.

Rows are right-padded, so the causal mask alone hides padding from all real
positions. The learner's tokens are in lists, see `learner/views`. Decoding has
its own attention over the cache, `sampling/kv_cache`.
"""

import functools
from typing import Callable, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from jaxrl_llm.models.config import ModelConfig

IMPLEMENTATIONS = ('auto', 'xla', 'splash', 'cudnn')

# Name of the output for the policies of `jax.checkpoint`.
SAVED = 'attention'
WEIGHTS = 'attention weights'

# Below this length splash does not pay off: the scores take at most 256 KB a
# head, and the kernel has a start-up cost for each head.
_SPLASH_FROM = 256
# On an H100, 'xla' takes 4% longer than 'cudnn' in a loop with rows of 768
# tokens, and 2.9 times as long in updates of rows of 4096; but lists of whole
# rows, which 'cudnn' needs, have more lengths, and so more programs to compile.
_CUDNN_FROM = 1024


class Layout(NamedTuple):
  """Order of tokens that are not in rows.

  Attributes:
    attend: (q, k, v, ...) -> their attention, in this order; the arguments are
      those of `causal_attention`.
    longest: tokens of the longest sequence.
    positions: [B, S] int32, of each token in its sequence.
  """
  attend: Callable[..., jax.Array]
  longest: int
  positions: jax.Array


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
  """Returns cap * tanh(x / cap), or x if cap is None."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def resolve(
    name: str, device: jax.Device, length: int, model: ModelConfig) -> str:
  """Resolves a name in the config to an implementation for some devices.

  Args:
    name: one of `IMPLEMENTATIONS`; for long rows, 'auto' is 'splash' on TPUs
      and 'cudnn' on GPUs and for models that it can compute, else 'xla'.
    device: one of those to compile for; this host need not have it.
    length: tokens of the longest row.
    model: the architecture.

  Returns:
    The `implementation` argument of `causal_attention`.

  Raises:
    ValueError: the name is unknown.
  """
  if name not in IMPLEMENTATIONS:
    raise ValueError(
        f'attention={name!r} is not known: use one of '
        f'{", ".join(IMPLEMENTATIONS)}.')
  tpu = device.platform == 'tpu'
  if name == 'auto':
    if tpu and length >= _SPLASH_FROM:
      return 'splash'
    return 'cudnn' if length >= _CUDNN_FROM and _cudnn_can(
        device, model) else 'xla'
  return 'splash_interpreted' if name == 'splash' and not tpu else name


def _cudnn_can(device: jax.Device, model: ModelConfig) -> bool:
  """Returns whether cuDNN has the attention of a model, and its gradient."""
  return (
      device.platform == 'gpu'
      and float(getattr(device, 'compute_capability', 0)) >= 8.0
      and model.dtype in ('bfloat16', 'float16')
      and not model.window and not model.attention_softcap
      and model.head_dim % 8 == 0 and model.head_dim <= 128)


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    windowed: jax.Array | bool = True,
    cap: float | None = None,
    implementation: str = 'xla',
) -> jax.Array:
  """Computes causal grouped-query attention within each row.

  Args:
    q: [B, S, H, h] queries.
    k: [B, S, KV, h] keys; KV divides H.
    v: [B, S, KV, h] values.
    scale: factor of the query-key products.
    window: positions a query may look back, itself included; None for all.
    windowed: [] bool, whether this layer uses the window.
    cap: soft cap of the scores, or None.
    implementation: from `resolve`. 'xla' runs anywhere, with all scores in
      memory. 'splash' runs on TPUs, with a block of scores at a time;
      'splash_interpreted' is the same, slow, on any device. 'cudnn' runs on
      NVIDIA GPUs, for 16-bit inputs without cap or window.

  Returns:
    [B, S, H, h], in q's type. The softmax is computed in float32.

  Raises:
    ValueError: 'cudnn' together with a cap or a window.
  """
  if implementation.startswith('splash'):
    from jaxrl_llm.models import splash  # Importing Pallas takes time.
    # Exact for a power of two; any other scale rounds a 16-bit q once more,
    # unless XLA fuses it with RoPE.
    q = (q.astype(jnp.float32) * scale).astype(q.dtype)
    return splash.attend(
        q, k, v, window=window, windowed=windowed, cap=cap, name=SAVED,
        interpret=implementation != 'splash')
  if implementation == 'cudnn':
    # A window of cuDNN is static, but layers of both kinds share the scan's
    # body. A soft cap it lacks.
    if cap is not None or window is not None:
      raise ValueError(
          "attention='cudnn' has no soft cap or sliding window: use 'xla' for "
          'this model.')
    return checkpoint_name(_cudnn(q, k, v, scale), SAVED)
  s = q.shape[1]
  back = jnp.arange(s)[:, None] - jnp.arange(s)
  return masked_attention(
      q, k, v, visible(back, window, windowed), scale=scale, cap=cap)


def _cudnn(q, k, v, scale):
  """Computes causal attention by cuDNN, on any length and mesh."""
  odd = q.shape[1] % 2  # JAX refuses the gradient of an odd length.

  def local(q, k, v):
    q, k, v = (jnp.pad(x, ((0, 0), (0, odd), (0, 0), (0, 0)))
               for x in (q, k, v))
    out = jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=True, implementation='cudnn')
    return out[:, :-1] if odd else out  # behind a row nothing is visible

  # JAX's own rule for splitting this looks for the devices of the mesh, but
  # within a `shard_map` over other axes the mesh is abstract.
  free = {*jax.sharding.get_abstract_mesh().auto_axes}
  if free:
    place = jax.sharding.PartitionSpec(*(
        axis if axis in free else None for axis in ('fsdp', None, 'tensor')))
    local = jax.shard_map(
        local, axis_names=free, check_vma=False, in_specs=place,
        out_specs=place)
  return local(q, k, v)


def visible(
    back: jax.Array, window: int | None, windowed: jax.Array | bool,
) -> jax.Array:
  """Returns which keys are visible.

  Args:
    back: positions from the query back to the key; negative for a key that is
      hidden in any case.
    window: positions a query may look back, itself included; None for all.
    windowed: [] bool, whether this layer uses the window.
  """
  earlier = back >= 0
  return earlier if window is None else earlier & (
      (back < window) | ~jnp.asarray(windowed))


def masked_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, *,
    scale: float, cap: float | None = None) -> jax.Array:
  """Computes grouped-query attention with all scores in memory.

  Args:
    q: [B, S, H, h] queries.
    k: [B, C, KV, h] keys; KV divides H.
    v: [B, C, KV, h] values.
    visible: [S, C] or [B, S, C] bool. A query that sees no key gets any result.
    scale: factor of the query-key products.
    cap: soft cap of the scores, or None.

  Returns:
    [B, S, H, h], in q's type.
  """
  grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
  visible = jnp.expand_dims(visible, (-4, -2))
  out = _attend(grouped, k, v, visible, scale, cap)
  return checkpoint_name(out.reshape(q.shape), SAVED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q, k, v, visible, scale, cap):
  """Computes attention of q [B, S, KV, G, h]; see `masked_attention`.

  The gradient is written out: it keeps one array of all scores, and XLA
  transposes none on CPUs.
  """
  return _attend_forward(q, k, v, visible, scale, cap)[0]


def _scores(q, k, scale, cap):
  # With G before S, the backward pass would transpose all scores.
  scores = jnp.einsum(
      'bqkgh,bskh->bkqgs', q, k, preferred_element_type=jnp.float32)
  return softcap(scores * scale, cap)


def _attend_forward(q, k, v, visible, scale, cap):
  scores = jnp.where(visible, _scores(q, k, scale, cap), -1e30)
  weights = checkpoint_name(
      jax.nn.softmax(scores, axis=-1).astype(v.dtype), WEIGHTS)
  return jnp.einsum('bkqgs,bskh->bqkgh', weights, v), (q, k, v, weights)


def _attend_backward(scale, cap, residuals, grad):
  """Computes the gradients of q, k and v.

  With the weights P = softmax(S) and dP = dO v', that of the scores is
  dS = P (dP - sum_s P dP).
  """
  q, k, v, weights = residuals
  scores = jnp.einsum(
      'bqkgh,bskh->bkqgs', grad, v, preferred_element_type=jnp.float32)
  scores = weights * (
      scores - jnp.sum(weights * scores, axis=-1, keepdims=True))
  if cap is not None:
    scores *= 1 - jnp.square(_scores(q, k, scale, cap) / cap)
  scores = (scores * scale).astype(q.dtype)

  def of_keys(queries, scores):
    """Computes [B, C, KV, h], sums over the queries."""
    rows = lambda x: x.reshape(*x.shape[:2], -1, x.shape[-1])
    # The scores as the right side: as the left one, XLA transposes them.
    return jnp.moveaxis(jnp.einsum(
        'bknh,bkns->bkhs', rows(jnp.moveaxis(queries, 2, 1)), rows(scores)),
                        3, 1)

  return (jnp.einsum('bkqgs,bskh->bqkgh', scores, k),
          of_keys(q, scores), of_keys(grad, weights), None)


_attend.defvjp(_attend_forward, _attend_backward)
