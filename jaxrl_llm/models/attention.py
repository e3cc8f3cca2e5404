"""Attention over rows, for training and prefill.

Rows are right-padded, so the causal mask alone hides padding from all real
positions. Rows may share the keys and values of a prefix, and a row may hold
several sequences. Decoding has its own attention over the cache,
`sampling/kv_cache`.
"""

from typing import Callable, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

IMPLEMENTATIONS = ('auto', 'xla', 'splash', 'cudnn')

# Name of the output for the policies of `jax.checkpoint`.
SAVED = 'attention'

# Below this length splash does not pay off: the scores take at most 256 KB a
# head, and the kernel has a start-up cost for each head.
_SPLASH_FROM = 256


class Prefix(NamedTuple):
  """Keys and values before each row's own, computed elsewhere.

  Attributes:
    k: [B, P, KV, h] rotated keys, left-aligned.
    v: [B, P, KV, h] values.
    length: [B] int32, columns in use.
  """
  k: jax.Array
  v: jax.Array
  length: jax.Array


class Prefixes(NamedTuple):
  """Keys and values before the rows, all in one sequence of C columns.

  Attributes:
    kv: rotated keys and values, [layers, C, KV, h] each.
    start: [B] int32, first column of each row's prefix, at most C - P.
    length: [B] int32, columns of each row's prefix.
    columns: P, at least any length.
  """
  kv: tuple[jax.Array, jax.Array]
  start: jax.Array
  length: jax.Array
  columns: int

  def of_layer(self, k: jax.Array, v: jax.Array) -> Prefix:
    """Returns the rows' prefixes; k and v are a layer's part of `kv`."""
    of_rows = lambda x: jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(
        x, start, self.columns))(self.start)

    return Prefix(of_rows(k), of_rows(v), self.length)


class Layout(NamedTuple):
  """Order of tokens, outside of attention, that are not in rows.

  Attributes:
    to_rows: [..., X, Y] in this order -> [B, S, X, Y], rows.
    from_rows: the reverse.
    columns: S.
  """
  to_rows: Callable[[jax.Array], jax.Array]
  from_rows: Callable[[jax.Array], jax.Array]
  columns: int


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
  """Returns cap * tanh(x / cap), or x if cap is None."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def resolve(name: str, platform: str, length: int) -> str:
  """Resolves a name in the config to an implementation for some devices.

  Args:
    name: one of `IMPLEMENTATIONS`; 'auto' is 'splash' for long rows on TPUs,
      else 'xla'.
    platform: 'tpu', 'gpu' or 'cpu', the kind of devices to compile for; this
      host need not have any.
    length: tokens of the longest row.

  Returns:
    The `implementation` argument of `causal_attention`.

  Raises:
    ValueError: the name is unknown.
  """
  if name not in IMPLEMENTATIONS:
    raise ValueError(
        f'attention={name!r} is not known: use one of '
        f'{", ".join(IMPLEMENTATIONS)}.')
  tpu = platform == 'tpu'
  if name == 'auto':
    return 'splash' if tpu and length >= _SPLASH_FROM else 'xla'
  return 'splash_interpreted' if name == 'splash' and not tpu else name


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
    segments: jax.Array | None = None,
    prefix: Prefix | None = None,
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
    segments: [B, S] int32, sequence of each position, for rows that hold
      several; each is contiguous and attends to itself only. None for one.
    prefix: what the rows attend to before their own positions; not together
      with `segments`.

  Returns:
    [B, S, H, h], in q's type. The softmax is computed in float32.

  Raises:
    ValueError: 'cudnn' together with a cap, a window, segments or a prefix; or
      'splash' with a window and a prefix.
  """
  if implementation.startswith('splash'):
    from jaxrl_llm.models import splash  # Importing Pallas takes time.
    return splash.attend(
        q, k, v, scale=scale, window=window, windowed=windowed, cap=cap,
        name=SAVED, interpret=implementation != 'splash', segments=segments,
        prefix=prefix)
  if implementation == 'cudnn':
    if cap is not None or window is not None:
      raise ValueError(
          "attention='cudnn' has no soft cap or sliding window: use 'xla' for "
          'this model.')
    if segments is not None or prefix is not None:
      raise ValueError(
          "attention='cudnn' has no shared prompts: use 'xla'.")
    return checkpoint_name(jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=True, implementation='cudnn'), SAVED)
  b, s, heads, h = q.shape
  back = jnp.arange(s)[:, None] - jnp.arange(s)
  if segments is not None:
    same = segments[:, :, None] == segments[:, None]
    back = jnp.where(same, back, -1)
  if prefix is not None:
    columns, length = prefix.k.shape[1], prefix.length[:, None]
    before = (length + jnp.arange(s))[..., None] - jnp.arange(columns)
    here = (jnp.arange(columns) < length)[:, None]
    back = jnp.concatenate([
        jnp.where(here, before, -1), jnp.broadcast_to(back, (b, s, s))], -1)
    k, v = (jnp.concatenate(pair, 1) for pair in (
        (prefix.k, k), (prefix.v, v)))
  visible = back >= 0
  if window is not None:
    visible &= (back < window) | ~jnp.asarray(windowed)
  if visible.ndim == 3:
    visible = visible[:, None, None]
  groups = k.shape[2]
  q = q.reshape(b, s, groups, heads // groups, h)
  scores = jnp.einsum(
      'bqkgh,bskh->bkgqs', q, k, preferred_element_type=jnp.float32)
  scores = softcap(scores * scale, cap)
  scores = jnp.where(visible, scores, -1e30)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum('bkgqs,bskh->bqkgh', weights, v)
  return checkpoint_name(out.reshape(b, s, heads, h), SAVED)
