"""Log-probs, entropy and top-k of tokens, without all logits in memory.

Logits of B rows of T tokens are [B, T, V]: 5 GB for 8192 tokens of Qwen3 in
float32, and several times that with their gradient. Here the logits of only
one chunk of tokens exist at a time. The backward pass recomputes them.

V may be split over devices. Each device multiplies the hidden states of all
its peers' tokens with its own rows of the unembedding. Neither the unembedding
nor its gradient moves between devices; per token, D and a few more numbers do.
"""

import math
from typing import NamedTuple, Optional, Union

import chex
import jax
import jax.numpy as jnp

from jaxrl_llm.ops import chunks, obrs
from jaxrl_llm.ops import top_k as top_k_lib

Array = jax.Array
Scalar = Union[float, Array]

# Number of logits in the default chunk: 512 MB of float32.
_DEFAULT_LOGITS = 1 << 27


class Head(NamedTuple):
  """Logits of a model in two factors: logits = hidden unembed^T.

  Attributes:
    hidden: [..., D] final hidden states, in the compute type.
    unembed: [V, D], in any floating type. Its gradient has this type and is
      accumulated in it over the chunks.
    softcap: cap in cap * tanh(logits / cap), applied before the temperature
      (Gemma 2); None for no cap.
  """
  hidden: Array
  unembed: Array
  softcap: Optional[float] = None


class Wanted(NamedTuple):
  """Statistics to compute beside the log-probs of the targets.

  Attributes:
    entropy: whether to compute the entropy.
    top_k: K, likeliest tokens to return.
    ids: [..., M] int, more tokens whose log-probs to return.
    student: another model, for `TokenStats.student`.
    other: the actor, for `TokenStats.overlap`; it gets no gradient. It may be
      `student` itself.
    lam: threshold of `overlap`.
    teacher: a model that gets no gradient, for `TokenStats.teacher`.
    teacher_top_k: its likeliest tokens that the KL tells apart; 0 for all, None
      for no KL.
    teacher_temperature: of both distributions there; None for that of the
      tokens.
  """
  entropy: bool = True
  top_k: int = 0
  ids: Optional[Array] = None
  student: Optional[Head] = None
  other: Optional[Head] = None
  lam: Scalar = 1.0
  teacher: Optional[Head] = None
  teacher_top_k: Optional[int] = 0
  teacher_temperature: Optional[Scalar] = None


ENTROPY = Wanted()


class Split(NamedTuple):
  """Mesh axes over which V, and possibly the tokens, are split.

  Devices along these axes are peers.

  Attributes:
    axes: names of the manual mesh axes that V is split over, major one first.
    row_axis: the one of them that also splits the tokens, or None. Along the
      other axes, the tokens are the same on each device.
  """
  axes: tuple[str, ...] = ()
  row_axis: Optional[str] = None


WHOLE = Split()


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


class TeacherStats(NamedTuple):
  """Statistics of a teacher q, with gradients to p alone.

  Attributes:
    kl: [...] float32, KL(p || q) in nats, over the vocabulary, or over q's
      likeliest tokens with all others as one; None if not requested.
    gap: [...] float32, log p - log q of the target, without gradient.
  """
  kl: Optional[Array]
  gap: Array


class TokenStats(NamedTuple):
  """Statistics of softmax(logits / temperature) at each position.

  Attributes:
    logprobs: [...] float32, of the target.
    entropy: [...] float32, nats; None if not requested.
    top_ids: [..., K] int32, likeliest tokens, descending; None if K = 0.
    top_logprobs: [..., K] float32, their log-probs; None if K = 0.
    id_logprobs: [..., M] float32, log-probs of the given ids; None without ids.
    overlap: [...] float32, sum_v min(q(v), p(v) / lam) for another model's
      distribution q, the rate of acceptance of `obrs.normalizer`; None without
      another model.
    student: of a second model; None without one.
    teacher: of a teacher; None without one.
    experts: [layers, E] float32, tokens of each expert in layers with experts;
      None without such layers, and from `token_stats`.
  """
  logprobs: Array
  entropy: Optional[Array] = None
  top_ids: Optional[Array] = None
  top_logprobs: Optional[Array] = None
  id_logprobs: Optional[Array] = None
  overlap: Optional[Array] = None
  student: Optional[StudentStats] = None
  teacher: Optional[TeacherStats] = None
  experts: Optional[Array] = None


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
    split: of V and the tokens.

  Returns:
    Logits and ids, [c, count] each.
  """
  if not split.axes:
    return top_k_lib.top_k(logits, count)
  return top_k_lib.of_parts(
      logits, count, _first(logits.shape[-1], split), lambda x: _own(
          jax.lax.all_gather(x, split.axes, axis=1, tiled=True), split))


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
    """Returns the distribution of logits [C, V], less their maximum."""
    best = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    if split.axes:
      best = jax.lax.pmax(best, split.axes)
    logits = logits - best
    exp = jnp.exp(logits)
    total = _sum(jnp.sum(exp, axis=-1), split)
    return cls(logits, exp, total, jnp.log(total))

  def log(self, split):
    """Returns the log-probs [C, V]."""
    return self.logits - _gathered(self.log_total, split)[:, None]

  def at(self, targets, split):
    """Returns the log-probs [c] of all peers' targets [C]."""
    vocab = self.logits.shape[-1]
    # No gather, whose gradient is a scatter into [C, V]; and a target in the
    # part of another device hits nothing here.
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


def _student(p, q, targets, top_ids, split):
  """Computes StudentStats; `top_ids` [c, K] are of own tokens, or None."""
  logp = jax.lax.stop_gradient(p.log(split))
  kl = jnp.sum(jnp.exp(logp) * (logp - q.log(split)), axis=-1)
  top = None
  if top_ids is not None:
    top = q.at_ids(_gathered(top_ids, split), split)
  return StudentStats(q.at(targets, split), _sum(kl, split), top)


def top_k_kl(logp: Array, logq: Array) -> Array:
  """Computes KL(p || q) of K tokens and of all others as one token.

  It is at most the KL over all tokens, and never negative. The rest counts as
  1.2e-7 or more, so it is understated where q leaves less for a rest that p
  finds likely.

  Args:
    logp, logq: [..., K] log-probs of the same tokens.
  """
  p, q = (1.0 - jnp.sum(jnp.exp(x), axis=-1) for x in (logp, logq))
  # Rounding may leave less than nothing of the rest.
  tiny = jnp.finfo(jnp.float32).eps
  p, q = jnp.maximum(p, tiny), jnp.maximum(q, tiny)
  return jnp.sum(jnp.exp(logp) * (logp - logq), axis=-1) + p * (
      jnp.log(p) - jnp.log(q))


def _teacher(p, q, targets, top_k, split):
  """Computes TeacherStats; q has no gradient."""
  gap = jax.lax.stop_gradient(p.at(targets, split)) - q.at(targets, split)
  kl = None
  if top_k:
    top, ids = _top(q.logits, top_k, split)
    kl = top_k_kl(
        p.at_ids(_gathered(ids, split), split), top - q.log_total[:, None])
  elif top_k is not None:
    logp = p.log(split)
    kl = _sum(jnp.sum(
        jnp.exp(logp) * (logp - q.log(split)), axis=-1), split)
  return TeacherStats(kl, gap)


def _reduce(logits, others, targets, wanted, scale, split):
  """Computes TokenStats of a chunk.

  Args:
    logits: [C, V] of all peers' tokens and this device's part of V.
    others: the same of `wanted.student`, `other` and `teacher`, or None.
    targets: [C].
    wanted: statistics to compute, with `ids` [C, M] or None.
    scale: temperature over `wanted.teacher_temperature`, or None.
    split: of V and the tokens.
  """
  student, other, teacher = others
  p = _Dist.of(logits, split)
  stats = TokenStats(p.at(targets, split))
  if wanted.entropy:
    # -sum p log p, with log p = logits - log_total.
    mean = _sum(jnp.sum(p.exp * p.logits, axis=-1), split) / p.total
    stats = stats._replace(entropy=p.log_total - mean)
  if wanted.top_k:
    top, top_ids = _top(p.logits, wanted.top_k, split)
    stats = stats._replace(
        top_ids=top_ids, top_logprobs=top - p.log_total[:, None])
  if wanted.ids is not None:
    stats = stats._replace(id_logprobs=p.at_ids(wanted.ids, split))
  if student is not None:
    second = _Dist.of(student, split)
    stats = stats._replace(
        student=_student(p, second, targets, stats.top_ids, split))
  if other is not None:
    q = second if other is student else _Dist.of(other, split)
    both = jax.lax.stop_gradient((p.log(split), q.log(split)))
    stats = stats._replace(
        overlap=_sum(obrs.normalizer(*both, lam=wanted.lam), split))
  if teacher is not None:
    teacher = jax.lax.stop_gradient(teacher)
    if scale is not None:
      p, teacher = _Dist.of(logits * scale, split), teacher * scale
    stats = stats._replace(teacher=_teacher(
        p, _Dist.of(teacher, split), targets, wanted.teacher_top_k, split))
  return stats


def _tempered(hidden, unembed, softcap, temperature):
  """Returns float32 logits / temperature [C, V] of hidden [C, D]."""
  if softcap is None and hidden.dtype == jnp.float32:
    # A CPU would make a temperature for each logit. In 16 bits, hidden states
    # would be rounded once more.
    return _logits(hidden / temperature, unembed)
  logits = _logits(hidden, unembed)
  if softcap is not None:
    logits = softcap * jnp.tanh(logits / softcap)
  return logits / temperature


def _chunk_size(chunk, unembed, models, split):
  """Returns the most tokens of this device in a chunk.

  Args:
    chunk: as in `token_stats`.
    unembed: [V, D] this device's part.
    models: number of models whose logits exist together.
    split: of V and the tokens.
  """
  vocab, width = unembed.shape
  if chunk is None:
    # Gathered hidden states take memory too: a part of V can be below D.
    each = vocab if split.row_axis is None else max(vocab, 4 * width)
    chunk = 1 << ((_DEFAULT_LOGITS // each).bit_length() - 1)
  chunk = max(chunk // models, 1)
  if split.row_axis is not None:
    chunk = max(chunk // jax.lax.axis_size(split.row_axis), 1)
  return chunk


def token_stats(
    head: Head,
    targets: Array,
    *,
    temperature: Scalar = 1.0,
    wanted: Wanted = ENTROPY,
    chunk: Optional[int] = None,
    needed: Optional[Array] = None,
    split: Split = WHOLE,
) -> TokenStats:
  """Computes log-probs, entropy and top-k of hidden states in one pass over V.

  The distribution is softmax(logits / temperature), with logits = hidden
  unembed^T, soft-capped if the model has a cap. Products are computed in
  hidden's type and accumulated in float32; all later steps are float32.

  With `split.axes`, call this function under jax.shard_map. All shapes are then
  the shapes of one device's part.

  Args:
    head: of the model.
    targets: [...] int, token at each position.
    temperature: [] or [...], divides the logits of all models.
    wanted: statistics to compute beside the log-probs.
    chunk: tokens whose logits exist at a time, of all models, on all devices
      that share them. None: at most 512 MB on each device. If all tokens fit
      into one chunk, its logits are kept for the backward pass.
    needed: [...] bool, tokens whose statistics are used; the others have any.
      Chunks without one are skipped. None for all.
    split: of V and the tokens over a mesh.

  Returns:
    TokenStats. `logprobs`, `entropy`, `top_logprobs`, `id_logprobs` and
    `teacher.kl` have gradients with respect to the head, `student` has
    gradients with respect to its own.
  """
  leading, count = targets.shape, math.prod(targets.shape)
  # One model may stand for both; its logits are then computed once.
  same = wanted.other is wanted.student

  def flat(model):
    if model is None:
      return None
    chex.assert_shape(model.hidden, (*leading, model.unembed.shape[1]))
    return model._replace(hidden=model.hidden.reshape(count, -1))

  head, student, teacher = map(flat, (head, wanted.student, wanted.teacher))
  other = flat(None if same else wanted.other)
  ids = wanted.ids
  if ids is not None:
    chex.assert_shape(ids, (*leading, None))
    ids = ids.reshape(count, ids.shape[-1])
  if other is not None:
    other = other._replace(
        hidden=jax.lax.stop_gradient(other.hidden),
        unembed=jax.lax.stop_gradient(other.unembed))
  models = head, student, other, teacher
  each = jnp.ndim(temperature) > 0

  def stats(tokens):
    hidden, targets, ids, heat = jax.tree.map(
        lambda x: _gathered(x, split), tokens)
    # Chunks that the tokens do not fill have a temperature of 0 there.
    heat = jnp.where(heat > 0, heat, 1.0)[:, None] if each else temperature
    logits, of_student, of_other, of_teacher = (
        x if x is None else _tempered(x, model.unembed, model.softcap, heat)
        for x, model in zip(hidden, models))
    changed = wanted.teacher_temperature
    return _reduce(
        logits, (of_student, of_student if same else of_other, of_teacher),
        targets, wanted._replace(ids=ids),
        None if changed is None else heat / changed, split)

  out = chunks.over_chunks(
      stats, (tuple(x and x.hidden for x in models), targets.reshape(count),
              ids, jnp.reshape(temperature, count) if each else None),
      _chunk_size(
          chunk, head.unembed, sum(x is not None for x in models), split),
      axis=split.row_axis,
      needed=None if needed is None else needed.reshape(count))
  return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), out)
