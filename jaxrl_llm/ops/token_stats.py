"""Log-probs, entropy and top-k of tokens, without all logits in memory.

Logits of B rows of T tokens are [B, T, V]: 5 GB for 8192 tokens of Qwen3 in
float32, and several times that with their gradient. Here the logits of only
one chunk of tokens exist at a time. The backward pass recomputes them.

V may be split over devices. Each device multiplies the hidden states of all
its peers' tokens with its own rows of the unembedding. Neither the unembedding
nor its gradient moves between devices; per token, D and a few more numbers do.
"""

import math
from typing import NamedTuple, Optional, Sequence, Union

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops import chunks, obrs
from jaxrl_llm.ops import top_k as top_k_lib

Array = jax.Array
Scalar = Union[float, Array]

# Number of logits in the default chunk: 512 MB of float32.
_DEFAULT_LOGITS = 1 << 27


class StudentStats(NamedTuple):
  """Statistics of another model q, with gradients to it alone.

  Attributes:
    logprobs: [...] float32, log q of the target.
    kl: [...] float32, KL(p || q) over the vocabulary, nats.
    top_logprobs: [..., K] float32, log q of p's likeliest tokens, or None.
  """
  logprobs: Array
  kl: Array
  top_logprobs: Optional[Array] = None


class TokenStats(NamedTuple):
  """Statistics of softmax(logits / temperature) at each position.

  Attributes:
    logprobs: [...] float32, of the target.
    entropy: [...] float32, nats; None if not requested.
    top_ids: [..., K] int32, likeliest tokens, descending; None if K = 0.
    top_logprobs: [..., K] float32, their log-probs; None if K = 0.
    id_logprobs: [..., M] float32, log-probs of the given ids; None without ids.
    overlap: [...] float32, sum_v min(q(v), p(v) / lam) for another model's
      distribution q, see `obrs.normalizer`; None without another model.
    student: of a second model; None without one.
  """
  logprobs: Array
  entropy: Optional[Array] = None
  top_ids: Optional[Array] = None
  top_logprobs: Optional[Array] = None
  id_logprobs: Optional[Array] = None
  overlap: Optional[Array] = None
  student: Optional[StudentStats] = None


@jax.custom_vjp
def _logits(hidden, unembed):
  """Returns float32 logits [C, V] of hidden [C, D], computed in its type."""
  return jnp.einsum('cd,vd->cv', hidden, unembed.astype(hidden.dtype),
                    preferred_element_type=jnp.float32)


def _logits_fwd(hidden, unembed):
  return _logits(hidden, unembed), (hidden, unembed)


def _logits_bwd(residuals, grad):
  # Autodiff would run the gradient's matmuls in float32, many times slower than
  # in bfloat16. Accumulation stays in float32.
  hidden, unembed = residuals
  grad = grad.astype(hidden.dtype)
  d_hidden = jnp.einsum('cv,vd->cd', grad, unembed.astype(hidden.dtype),
                        preferred_element_type=jnp.float32)
  d_unembed = jnp.einsum('cv,cd->vd', grad, hidden,
                         preferred_element_type=jnp.float32)
  return d_hidden.astype(hidden.dtype), d_unembed.astype(unembed.dtype)


_logits.defvjp(_logits_fwd, _logits_bwd)


class _Split(NamedTuple):
  """Mesh axes over which V, and possibly the tokens, are split.

  Devices along these axes are peers.

  Attributes:
    axes: names of the manual mesh axes that V is split over, major one first.
    row_axis: the one of them that also splits the tokens, or None.
  """
  axes: tuple[str, ...]
  row_axis: Optional[str]


def _gathered(x, split):
  """All-gathers x [c, ...] of own tokens to [C, ...] of all peers' tokens."""
  if split.row_axis is None:
    return x
  return jax.lax.all_gather(x, split.row_axis, tiled=True)


def _own(x, split):
  """Returns the part [c, ...] of x [C, ...] for own tokens."""
  if split.row_axis is None:
    return x
  count = x.shape[0] // jax.lax.axis_size(split.row_axis)
  start = count * jax.lax.axis_index(split.row_axis)
  return jax.lax.dynamic_slice_in_dim(x, start, count)


def _sum(x, split):
  """Sums x [C, ...] over peers; returns the part [c, ...] for own tokens."""
  rest = tuple(axis for axis in split.axes if axis != split.row_axis)
  if split.row_axis is not None:
    x = jax.lax.psum_scatter(x, split.row_axis, tiled=True)
  return jax.lax.psum(x, rest) if rest else x


def _first(vocab, split):
  """Returns the first token id of this device's part of V, `vocab` ids long."""
  return vocab * jax.lax.axis_index(split.axes) if split.axes else 0


def _top(logits, count, split):
  """Returns the `count` largest logits of own tokens, and their token ids.

  Args:
    logits: [C, V] of all peers' tokens and this device's part of V.
    count: number of logits.
    split: see `_Split`.

  Returns:
    Logits and ids, [c, count] each.
  """
  if not split.axes:
    return top_k_lib.top_k(logits, count)
  return top_k_lib.of_parts(
      logits, count, _first(logits.shape[-1], split), lambda x: _own(
          jax.lax.all_gather(x, split.axes, axis=1, tiled=True), split))


def _log_softmax(logits, split):
  """Shifts logits by their maximum.

  Args:
    logits: [C, V] of all peers' tokens and this device's part of V.
    split: see `_Split`.

  Returns:
    The shifted logits, their exponentials, and the sum [c] of these over all of
    V, for own tokens.
  """
  best = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  if split.axes:
    best = jax.lax.pmax(best, split.axes)
  logits = logits - best
  exp = jnp.exp(logits)
  return logits, exp, _sum(jnp.sum(exp, axis=-1), split)


class _Dist(NamedTuple):
  """Distribution of a chunk's tokens.

  Attributes:
    logits: [C, V] shifted logits, of all peers' tokens and this device's part
      of V.
    exp: [C, V] their exponentials.
    total: [c] sum of these over all of V, for own tokens.
    log_total: [c] its log.
  """
  logits: Array
  exp: Array
  total: Array
  log_total: Array

  @classmethod
  def of(cls, logits, split):
    logits, exp, total = _log_softmax(logits, split)
    return cls(logits, exp, total, jnp.log(total))

  def log(self, split):
    """Returns the log-probs [C, V]."""
    return self.logits - _gathered(self.log_total, split)[:, None]

  def at(self, targets, split):
    """Returns the log-probs [c] of all peers' targets [C]."""
    vocab = self.logits.shape[-1]
    hit = jnp.arange(vocab) + _first(vocab, split) == targets[:, None]
    chosen = jnp.sum(jnp.where(hit, self.logits, 0.0), -1)
    return _sum(chosen, split) - self.log_total

  def at_ids(self, ids, split):
    """Returns the log-probs [c, M] of all peers' ids [C, M]."""
    vocab = self.logits.shape[-1]
    first = _first(vocab, split)
    here = (ids >= first) & (ids < first + vocab)
    chosen = jnp.take_along_axis(
        self.logits, jnp.where(here, ids - first, 0), axis=-1)
    chosen = _sum(jnp.where(here, chosen, 0.0), split)
    return chosen - self.log_total[:, None]


def _overlap(p, q, lam, split):
  """Computes `TokenStats.overlap` [c], without gradient."""
  return _sum(obrs.normalizer(*jax.lax.stop_gradient(
      (q.log(split), p.log(split))), lam=lam), split)


def _student(p, q, targets, top_ids, split):
  """Computes StudentStats; `top_ids` [c, K] are of own tokens, or None."""
  logp = jax.lax.stop_gradient(p.log(split))
  kl = jnp.sum(jnp.exp(logp) * (logp - q.log(split)), axis=-1)
  top = None
  if top_ids is not None:
    top = q.at_ids(_gathered(top_ids, split), split)
  return StudentStats(q.at(targets, split), _sum(kl, split), top)


def _reduce(
    logits, student, other, targets, ids, lam, split, *, entropy, top_k):
  """Computes TokenStats of a chunk.

  Args:
    logits: [C, V] of all peers' tokens and this device's part of V.
    student: the same of a second model, or None.
    other: the same of the actor, or None.
    targets: [C].
    ids: [C, M] or None.
    lam: see `token_stats`.
    split: see `_Split`.
    entropy: see `token_stats`.
    top_k: see `token_stats`.
  """
  p = _Dist.of(logits, split)
  stats = TokenStats(p.at(targets, split))
  if entropy:
    # -sum p log p, with log p = logits - log_total.
    mean = _sum(jnp.sum(p.exp * p.logits, axis=-1), split) / p.total
    stats = stats._replace(entropy=p.log_total - mean)
  if top_k:
    top, top_ids = _top(p.logits, top_k, split)
    stats = stats._replace(
        top_ids=top_ids, top_logprobs=top - p.log_total[:, None])
  if ids is not None:
    stats = stats._replace(id_logprobs=p.at_ids(ids, split))
  if student is not None:
    second = _Dist.of(student, split)
    stats = stats._replace(
        student=_student(p, second, targets, stats.top_ids, split))
  if other is not None:
    q = second if other is student else _Dist.of(other, split)
    stats = stats._replace(overlap=_overlap(p, q, lam, split))
  return stats


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
    student: Optional[tuple[Array, Array]] = None,
    other: Optional[tuple[Array, Array]] = None,
    other_softcap: Optional[float] = None,
    lam: Scalar = 1.0,
    chunk: Optional[int] = None,
    needed: Optional[Array] = None,
    axes: Sequence[str] = (),
    row_axis: Optional[str] = None,
) -> TokenStats:
  """Computes log-probs, entropy and top-k of hidden states in one pass over V.

  The distribution is softmax(logits / temperature), with logits = hidden
  unembed^T, soft-capped if the model has a cap. Products are computed in
  hidden's type and accumulated in float32; all later steps are float32.

  With `axes`, call this function under jax.shard_map. All shapes are then the
  shapes of one device's part.

  Args:
    hidden: [..., D] final hidden states, in the compute type.
    unembed: [V, D], in any floating type. Its gradient has this type and is
      accumulated in it over the chunks.
    targets: [...] int, token at each position.
    temperature: divides the logits.
    softcap: cap in cap * tanh(logits / cap), applied before the temperature
      (Gemma 2); None for no cap.
    top_k: number of likeliest tokens to return.
    ids: [..., M] int, more tokens whose log-probs to return.
    entropy: whether to compute the entropy.
    student: hidden states [..., E] and unembedding [V, E] of another model, for
      `student`.
    other: hidden states [..., E] and unembedding [V, E] of the actor, for
      `overlap`; they get no gradient. It may be `student` itself.
    other_softcap: cap of these two.
    lam: threshold of `overlap`.
    chunk: tokens whose logits exist at a time, of all models, on all devices
      that share them. None: at most 512 MB on each device. If all tokens fit
      into one chunk, its logits are kept for the backward pass.
    needed: [...] bool, tokens whose statistics are used; the others have any.
      Chunks without one are skipped. None for all.
    axes: names of manual mesh axes that V is split over, the major one first.
    row_axis: the one of `axes` that also splits the tokens. Along the other
      axes, hidden, targets and ids are the same on each device.

  Returns:
    TokenStats. `logprobs`, `entropy`, `top_logprobs` and `id_logprobs` have
    gradients with respect to hidden and unembed, `student` has gradients with
    respect to its own.
  """
  leading, (vocab, width) = targets.shape, unembed.shape
  chex.assert_shape(hidden, (*leading, width))
  count = math.prod(leading)
  if ids is not None:
    chex.assert_shape(ids, (*leading, None))
    ids = ids.reshape(count, ids.shape[-1])
  if chunk is None:
    # Gathered hidden states take memory too: a part of V can be below D.
    each = vocab if row_axis is None else max(vocab, 4 * width)
    chunk = 1 << ((_DEFAULT_LOGITS // each).bit_length() - 1)
  same = other is student
  models = 1 + (student is not None) + (other is not None and not same)
  chunk = max(chunk // models, 1)
  split = _Split(tuple(axes), row_axis)
  if row_axis is not None:
    chunk = max(chunk // jax.lax.axis_size(row_axis), 1)

  def tempered(hidden, unembed, softcap):
    if softcap is None and hidden.dtype == jnp.float32:
      # A CPU would make a temperature for each logit.
      return _logits(hidden / temperature, unembed)
    logits = _logits(hidden, unembed)
    if softcap is not None:
      logits = softcap * jnp.tanh(logits / softcap)
    return logits / temperature

  def flat(model):
    if model is None:
      return None, None
    chex.assert_shape(model[0], (*leading, model[1].shape[1]))
    return model[0].reshape(count, -1), model[1]

  states, unembed_student = flat(student)
  others, unembed_other = jax.lax.stop_gradient(flat(None if same else other))

  def stats(tokens):
    hidden, states, others, targets, ids = jax.tree.map(
        lambda x: _gathered(x, split), tokens)
    second = third = None
    if states is not None:
      second = tempered(states, unembed_student, other_softcap)
      third = second if same else None
    if others is not None:
      third = tempered(others, unembed_other, other_softcap)
    return _reduce(
        tempered(hidden, unembed, softcap), second, third, targets, ids, lam,
        split, entropy=entropy, top_k=top_k)

  out = chunks.over_chunks(
      stats, (hidden.reshape(count, width), states, others,
              targets.reshape(count), ids), chunk, axis=row_axis,
      needed=None if needed is None else needed.reshape(count))
  return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), out)
