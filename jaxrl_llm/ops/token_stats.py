"""What the vocabulary says of each token, without logits of all tokens at once.

Logits of B rows of T tokens are [B, T, V]: 5 GB for 8192 tokens of Qwen3 in
float32, and several times that with their gradient. Here only those of a chunk
of tokens exist at any time, in the backward pass too, where they are computed
again.

Sums over V compare an index with the target instead of gathering it, so that
with V split over devices only one number per token crosses between them.
"""

import math
from typing import NamedTuple, Optional, Union

import chex
import jax
import jax.numpy as jnp

Array = jax.Array
Scalar = Union[float, Array]

# Logits of a chunk when no chunk is given: 512 MB of float32.
_DEFAULT_LOGITS = 1 << 27


class TokenStats(NamedTuple):
  """Statistics of softmax(logits / temperature) at each position.

  Attributes:
    logprobs: [...] float32, of the target.
    entropy: [...] float32, nats; None if not asked for.
    top_ids: [..., K] int32, likeliest tokens, descending; None if K = 0.
    top_logprobs: [..., K] float32, their log-probs; None if K = 0.
    id_logprobs: [..., M] float32, log-probs of the ids given; None if none.
  """
  logprobs: Array
  entropy: Optional[Array] = None
  top_ids: Optional[Array] = None
  top_logprobs: Optional[Array] = None
  id_logprobs: Optional[Array] = None


@jax.custom_vjp
def _logits(hidden, unembed):
  """Float32 logits [C, V] of hidden [C, D], multiplied in hidden's type."""
  return jnp.einsum('cd,vd->cv', hidden, unembed.astype(hidden.dtype),
                    preferred_element_type=jnp.float32)


def _logits_fwd(hidden, unembed):
  return _logits(hidden, unembed), (hidden, unembed)


def _logits_bwd(residuals, grad):
  # Without this rule the gradient's matmuls would be float32 ones, many times
  # slower than bfloat16's. They still accumulate in float32.
  hidden, unembed = residuals
  grad = grad.astype(hidden.dtype)
  d_hidden = jnp.einsum('cv,vd->cd', grad, unembed.astype(hidden.dtype),
                        preferred_element_type=jnp.float32)
  d_unembed = jnp.einsum('cv,cd->vd', grad, hidden,
                         preferred_element_type=jnp.float32)
  return d_hidden.astype(hidden.dtype), d_unembed.astype(unembed.dtype)


_logits.defvjp(_logits_fwd, _logits_bwd)


def _reduce(logits, targets, ids, *, entropy, top_k):
  """TokenStats of a chunk: logits [C, V], targets [C], ids [C, M] or None."""
  best = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  logits = logits - best
  exp = jnp.exp(logits)
  total = jnp.sum(exp, axis=-1)
  log_total = jnp.log(total)
  hit = jnp.arange(logits.shape[-1]) == targets[:, None]
  stats = TokenStats(jnp.sum(jnp.where(hit, logits, 0.0), -1) - log_total)
  if entropy:
    # -sum p log p, with log p = logits - log_total.
    mean = jnp.sum(exp * logits, axis=-1) / total
    stats = stats._replace(entropy=log_total - mean)
  if top_k:
    top, top_ids = jax.lax.top_k(logits, top_k)
    stats = stats._replace(
        top_ids=top_ids, top_logprobs=top - log_total[:, None])
  if ids is not None:
    chosen = jnp.take_along_axis(logits, ids, axis=-1)
    stats = stats._replace(id_logprobs=chosen - log_total[:, None])
  return stats


def _over_chunks(fn, tokens, chunk):
  """fn over a tree of [N, ...] arrays, at most `chunk` tokens at a time.

  Chunk i of n takes the tokens i, i + n, i + 2n, ..., hence some of every row:
  rows that are split over devices keep all of them busy in each chunk.
  """
  count = jax.tree.leaves(tokens)[0].shape[0]
  if count <= chunk:
    return fn(tokens)
  chunks = -(-count // chunk)
  size = -(-count // chunks)

  def split(x):
    padding = [(0, size * chunks - count)] + [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, padding)
    return x.reshape(size, chunks, *x.shape[1:]).swapaxes(0, 1)

  def join(x):
    return x.swapaxes(0, 1).reshape(size * chunks, *x.shape[2:])[:count]

  # lax.map is a scan; its body keeps nothing for the backward pass.
  out = jax.lax.map(
      jax.checkpoint(fn, prevent_cse=False), jax.tree.map(split, tokens))
  return jax.tree.map(join, out)


def token_stats(
    hidden: Array,
    unembed: Array,
    targets: Array,
    *,
    temperature: Scalar = 1.0,
    softcap: Optional[float] = None,
    top_k: int = 0,
    ids: Optional[Array] = None,
    entropy: bool = True,
    chunk: Optional[int] = None,
) -> TokenStats:
  """Log-probs, entropy and top-k from hidden states, in one pass over V.

  The distribution is softmax(logits / temperature), with logits = hidden
  unembed^T, soft-capped if the model does so. Products are taken in hidden's
  type and accumulated in float32; everything after is float32.

  Args:
    hidden: [..., D] final hidden states, in the compute type.
    unembed: [V, D], in any floating type; its gradient has this type and is
      accumulated in it over the chunks.
    targets: [...] int, token at each position.
    temperature: divides the logits.
    softcap: cap * tanh(logits / cap) before the temperature (Gemma 2).
    top_k: likeliest tokens to return.
    ids: [..., M] int, further tokens of which to return the log-probs.
    entropy: whether to compute the entropy.
    chunk: tokens whose logits exist at the same time, over all the devices
      that share them. None: a power of two that makes 512 MB at most. If all
      tokens fit into one chunk, its logits are kept for the backward pass.

  Returns:
    TokenStats. `logprobs`, `entropy`, `top_logprobs` and `id_logprobs` have
    gradients with respect to hidden and unembed.
  """
  leading, (vocab, width) = targets.shape, unembed.shape
  chex.assert_shape(hidden, (*leading, width))
  count = math.prod(leading)
  if ids is not None:
    chex.assert_shape(ids, (*leading, None))
    ids = ids.reshape(count, ids.shape[-1])
  if chunk is None:
    chunk = 1 << ((_DEFAULT_LOGITS // vocab).bit_length() - 1)

  def stats(tokens):
    hidden, targets, ids = tokens
    logits = _logits(hidden, unembed)
    if softcap is not None:
      logits = softcap * jnp.tanh(logits / softcap)
    return _reduce(
        logits / temperature, targets, ids, entropy=entropy, top_k=top_k)

  out = _over_chunks(
      stats, (hidden.reshape(count, width), targets.reshape(count), ids),
      chunk)
  return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), out)
