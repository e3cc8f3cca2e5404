"""The distribution that tokens are drawn from, computed from logits.

Order and conventions are the same as in transformers' generation: divide by the
temperature, keep the top k, keep the nucleus of mass top p, drop tokens less
likely than min p times the likeliest. All three truncations are thresholds on
the logit, so tokens that tie with the last one kept are kept too.

The vocabulary may be split over a mesh axis (see `vocabulary.py`); tokens and
distributions are the same as on one device. Only top-k and top-p, which sort,
communicate more than a few numbers per row.
"""

from typing import NamedTuple

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.sampling import vocabulary
from jaxrl_llm.sampling.options import DrawNumbers

Array = jax.Array

_FINE = 128  # Tokens of a fine block, the second level of `draw`.


@struct.dataclass
class SamplingParams(DrawNumbers):
  """Parameters of the distribution; traced, so new values never recompile.

  All are []. The temperature may be 0, for greedy decoding.
  """

  def __post_init__(self):
    # Python numbers have weak types in jit, and int and float differ: setting 0
    # instead of 0.7 would recompile.
    for name, value in vars(self).items():
      if isinstance(value, (int, float)):
        kind = np.int32 if name == 'top_k' else np.float32
        object.__setattr__(self, name, kind(value))


@struct.dataclass
class Distributions:
  """The tempered and the behaviour distribution at one position.

  Attributes:
    tempered: [..., V] float32 log-probs after the temperature only.
    behaviour: [..., V] float32 log-probs after temperature and truncation; -inf
      for tokens that cannot be drawn.
    masses: [..., B] float32, probability in `behaviour` of each block of the
      whole vocabulary.
    log_kept: [...] float32, log of the tempered probability that truncation
      keeps. A token that can be drawn has the tempered log-prob
      `behaviour + log_kept`.
  """
  tempered: Array
  behaviour: Array
  masses: Array
  log_kept: Array


class _Cut(NamedTuple):
  """Truncation of rows of logits.

  Attributes:
    least: [..., 1] float32; this shard's logits below it are removed.
    last: [..., 1] int32; tokens with a larger id are removed.
    masses: [..., B] float32, kept probability of each block, divided by the
      likeliest token's probability.
  """
  least: Array
  last: Array
  masses: Array


def process(
    logits: Array, sampling: SamplingParams, axis: str | None = None,
) -> Distributions:
  """Applies temperature, top-k, top-p and min-p.

  Temperature 0 is greedy decoding: all the mass is on the likeliest token, the
  first one among equals.

  Args:
    logits: [..., V] float32; [S, v] if the vocabulary is split.
    sampling: scalars that shape the distribution.
    axis: mesh axis that the vocabulary is split over, or None.

  Returns:
    Log-probs before and after truncation.
  """
  # Logits are compared with the smallest one kept, so both must have the same
  # bits: the barrier stops XLA from computing the logits twice.
  logits = jax.lax.optimization_barrier(logits)
  greedy = sampling.temperature == 0
  scale = 1 / jnp.where(greedy, 1.0, sampling.temperature)
  top = vocabulary.largest(
      jnp.max(logits * scale, -1, keepdims=True), axis)

  def relative():
    # Log of the probability divided by the likeliest token's. Recomputing it is
    # cheaper than storing it.
    return logits * scale - top

  masses = _masses(relative(), axis)
  # `last` cuts ties of the greedy maximum alone; `least` keeps them.
  least = jnp.full_like(top, -jnp.inf)
  last = jnp.full(top.shape, np.iinfo(np.int32).max)
  whole = (sampling.top_k <= 0) & (sampling.top_p >= 1) & (sampling.min_p <= 0)
  # A switch, since the values are traced: most runs truncate nothing and should
  # not pay for a sort of the vocabulary.
  with jax.named_scope('truncation'):
    cut = jax.lax.switch(
        jnp.where(greedy, 1, jnp.where(whole, 0, 2)), [
            lambda: _Cut(least, last, masses),
            lambda: _first_maximum(logits, axis),
            lambda: _truncate(
                logits, relative(), last, scale, sampling, axis)])
  log_mass = lambda masses: jnp.log(jnp.sum(masses, -1, keepdims=True))
  kept = (logits >= cut.least) & (_ids(logits, axis) <= cut.last)
  behaviour = jnp.where(kept, relative() - log_mass(cut.masses), -jnp.inf)
  return Distributions(
      tempered=jnp.where(greedy, behaviour, relative() - log_mass(masses)),
      behaviour=behaviour,
      masses=cut.masses / jnp.sum(cut.masses, -1, keepdims=True),
      log_kept=jnp.where(
          greedy, 0.0, log_mass(cut.masses) - log_mass(masses))[..., 0])


def _ids(x, axis):
  """Returns the token ids [v] of x's last axis."""
  v = x.shape[-1]
  return jnp.arange(v) + vocabulary.first(v, axis)


def _masses(logprobs, axis):
  """Returns sums of exp(logprobs) over each block [..., B], on every shard."""
  blocks = vocabulary.blocks(logprobs, axis)
  return vocabulary.gather(jnp.sum(jnp.exp(blocks), -1), axis)


def _first_maximum(logits, axis):
  """Keeps only the first maximum of each row."""
  best = jnp.argmax(logits, -1, keepdims=True)
  tops = vocabulary.gather(jnp.take_along_axis(logits, best, -1), axis)
  tokens = vocabulary.gather(
      best + vocabulary.first(logits.shape[-1], axis), axis)
  at = jnp.argmax(tops, -1, keepdims=True)
  token = jnp.take_along_axis(tokens, at, -1)
  point = jnp.where(_ids(logits, axis) == token, 0.0, -jnp.inf)
  return _Cut(
      jnp.take_along_axis(tops, at, -1), token, _masses(point, axis))


def _truncate(logits, relative, last, scale, sampling, axis):
  """Applies top-k, top-p and min-p."""
  most = vocabulary.largest(jnp.max(logits, -1, keepdims=True), axis)
  least = jax.lax.cond(
      (sampling.top_k > 0) | (sampling.top_p < 1),
      lambda: _top_k_top_p(logits, scale, sampling, axis),
      lambda: jnp.full_like(most, -jnp.inf))
  kept = (logits >= least) & (relative >= jnp.log(sampling.min_p))
  # The likeliest token stays, whatever the rounding of its `relative`.
  least = jnp.minimum(most, jnp.min(
      jnp.where(kept, logits, jnp.inf), -1, keepdims=True))
  return _Cut(least, last, _masses(
      jnp.where(logits >= least, relative, -jnp.inf), axis))


def _top_k_top_p(logits, scale, sampling, axis):
  """Returns the smallest logit [..., 1] that top-k and then top-p keep."""
  if axis is None:
    return _least(logits, scale, sampling)
  # Each shard sorts its share of the rows, over the whole vocabulary.
  rows = len(logits)
  padded = jnp.pad(logits, [(0, -rows % vocabulary.shards(axis)), (0, 0)])
  own = jax.lax.all_to_all(padded, axis, 0, 1, tiled=True)
  least = _least(own, scale, sampling)
  return jax.lax.all_gather(least, axis, tiled=True)[:rows]


def _least(logits, scale, sampling):
  """Computes `_top_k_top_p` for rows over the whole vocabulary."""
  v = logits.shape[-1]
  descending = -jnp.sort(-logits, axis=-1)
  k = jnp.where(sampling.top_k > 0, jnp.minimum(sampling.top_k, v), v)
  kth = jnp.take(descending, k[None] - 1, axis=-1)
  # Top-p measures mass among the tokens that top-k kept, ties included. A token
  # stays if the likelier ones have less mass than top_p.
  probs = jax.nn.softmax(
      jnp.where(descending >= kth, descending * scale, -jnp.inf))
  above = jnp.cumsum(probs, -1) - probs
  inside = (above < sampling.top_p) | (sampling.top_p >= 1)
  inside &= descending >= kth
  # The likeliest token stays, also where rounding gives it more than top_p.
  inside = inside.at[..., 0].set(True)
  return jnp.min(
      jnp.where(inside, descending, jnp.inf), -1, keepdims=True)


def entropy(logprobs: Array) -> Array:
  """Computes the entropy [...] in nats of log-probs [..., V]; 0 log 0 is 0.

  For log-probs of a part of V, it is that part's term of the entropy.
  """
  probs = jnp.exp(logprobs)
  return -jnp.sum(jnp.where(probs > 0, probs * logprobs, 0.0), -1)


def draw(
    logprobs: Array, noise: Array, masses: Array | None = None,
    axis: str | None = None) -> Array:
  """Draws one token per row by inverting the cumulative distribution.

  This takes one random number per token; the Gumbel-max trick takes V.

  Args:
    logprobs: [S, V] float32, -inf for tokens that cannot be drawn; [S, v] if
      the vocabulary is split.
    noise: [S] float32, uniform in [0, 1).
    masses: [S, B] float32 from `process`; None computes them.
    axis: mesh axis that the vocabulary is split over, or None.

  Returns:
    [S] int32 tokens, the same on every shard.
  """
  blocks = vocabulary.blocks(logprobs, axis)
  count = blocks.shape[1]
  if axis is None and count == 1:
    probs = jnp.exp(logprobs)
    return _invert(probs, noise * jnp.sum(probs, -1))[0]
  # Draws the block, then the fine block within it, then the token: three short
  # cumulative sums. One over V would round small probabilities away.
  masses = _masses(logprobs, axis) if masses is None else masses
  block, rest = _invert(masses, noise * jnp.sum(masses, -1))
  here = block - vocabulary.first(count, axis)
  chosen = jnp.take_along_axis(
      blocks, jnp.clip(here, 0, count - 1)[:, None, None], 1)[:, 0]
  probs = jnp.pad(jnp.exp(chosen), ((0, 0), (0, -chosen.shape[-1] % _FINE)))
  probs = probs.reshape(len(probs), -1, _FINE)
  fine, rest = _invert(jnp.sum(probs, -1), rest)
  probs = jnp.take_along_axis(probs, fine[:, None, None], 1)[:, 0]
  token = fine * _FINE + _invert(probs, rest)[0] + vocabulary.block_start(
      block, logprobs.shape[-1], axis)
  return vocabulary.total(
      jnp.where((here >= 0) & (here < count), token, 0), axis)


def _invert(masses, target):
  """Finds where cumulative masses pass a target.

  Args:
    masses: [S, n].
    target: [S], at least 0 but for rounding.

  Returns:
    [S] int32, the first index whose cumulative mass exceeds the target, always
    of an entry with mass even if rounding leaves the total below the target,
    then the one at which it is reached; and [S], the rest of the target within
    this entry. A target of 0 counts as the least that float32 can tell from it
    in the total: else the first entry would be taken, however small.
  """
  n = masses.shape[-1]
  total = jnp.cumsum(masses, -1)
  index = jnp.arange(n)
  least = jnp.maximum(target, total[:, -1] * 2 ** -24)[:, None]
  passed = (total > least) & (masses > 0)
  first = jnp.min(jnp.where(passed, index, n), -1)
  # Entries behind it are so small that they are lost in the sum.
  reached = jnp.argmax(total >= total[:, -1:], -1)[:, None]
  last = jnp.max(jnp.where((masses > 0) & (index <= reached), index, 0), -1)
  at = jnp.minimum(first, last)
  before = jnp.take_along_axis(total - masses, at[:, None], -1)[:, 0]
  return at.astype(jnp.int32), target - before
