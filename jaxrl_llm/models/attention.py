"""Attention over whole rows, for training and prefill.

Rows are right-padded, so the causal mask alone keeps padding out of every real
position. Decoding has its own attention, over the cache: `sampling/kv_cache`.
"""

import jax
import jax.numpy as jnp


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
  """cap * tanh(x / cap); x itself if cap is None."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    window: jax.Array | int | None = None,
    cap: float | None = None,
    implementation: str = 'xla',
) -> jax.Array:
  """Causal grouped-query attention within each row.

  Args:
    q: [B, S, H, h] queries.
    k: [B, S, KV, h] keys; KV divides H.
    v: [B, S, KV, h] values.
    scale: factor of the query-key products.
    window: positions a query may look back, itself included; None is all.
    cap: soft cap of the scores, or None.
    implementation: 'xla' anywhere; 'cudnn' on NVIDIA GPUs, 16-bit inputs,
      without cap or window.

  Returns:
    [B, S, H, h], in q's type. The softmax is taken in float32.

  Raises:
    ValueError: 'cudnn' together with a cap or a window.
  """
  if implementation == 'cudnn':
    if cap is not None or window is not None:
      raise ValueError(
          "attention='cudnn' has no soft cap or sliding window: use 'xla' for "
          'this model.')
    return jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=True, implementation='cudnn')
  b, s, heads, h = q.shape
  groups = k.shape[2]
  q = q.reshape(b, s, groups, heads // groups, h)
  scores = jnp.einsum(
      'bqkgh,bskh->bkgqs', q, k, preferred_element_type=jnp.float32)
  scores = softcap(scores * scale, cap)
  back = jnp.arange(s)[:, None] - jnp.arange(s)[None, :]
  visible = back >= 0 if window is None else (back >= 0) & (back < window)
  scores = jnp.where(visible, scores, -1e30)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum('bkgqs,bskh->bqkgh', weights, v)
  return out.reshape(b, s, heads, h)
