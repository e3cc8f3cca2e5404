"""From logits to the distribution that tokens are drawn from.

The order and the conventions are those of transformers' generation: divide by
the temperature, keep the top k, keep the nucleus of mass top p, drop what is
less likely than min p times the likeliest. All three truncations are
thresholds on the tempered log-probability, so tokens that tie with the last
one kept are kept too.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

_BLOCK = 128  # Tokens of the vocabulary that `draw` looks at together.


@struct.dataclass
class SamplingParams:
  """What shapes the distribution. Traced: changing a value never recompiles.

  Attributes:
    temperature: divisor of the logits; 0 is greedy decoding.
    top_k: tokens kept, 0 for all.
    top_p: probability mass kept, in (0, 1]; 1 for all.
    min_p: least probability kept, as a share of the likeliest token's; 0 for
      all.
  """
  temperature: Array | float = 1.0
  top_k: Array | int = 0
  top_p: Array | float = 1.0
  min_p: Array | float = 0.0

  def __post_init__(self):
    # A Python number is a weak type to jit, and 0 another one than 0.7.
    for name in ('temperature', 'top_k', 'top_p', 'min_p'):
      value = getattr(self, name)
      if isinstance(value, (int, float)):
        kind = np.int32 if name == 'top_k' else np.float32
        object.__setattr__(self, name, kind(value))


@struct.dataclass
class Distributions:
  """The two distributions over the vocabulary at one position.

  Attributes:
    tempered: [..., V] float32 log-probs, after the temperature alone.
    behaviour: [..., V] float32 log-probs after truncation as well; -inf for
      tokens that cannot be drawn.
  """
  tempered: Array
  behaviour: Array


def process(logits: Array, sampling: SamplingParams) -> Distributions:
  """Applies temperature, top-k, top-p and min-p.

  Greedy decoding is the limit of temperature 0: all the mass on the likeliest
  token, the first of those that tie.

  Args:
    logits: [..., V] float32.
    sampling: scalars.

  Returns:
    Log-probs before and after truncation.
  """
  greedy = sampling.temperature == 0
  tempered = jax.nn.log_softmax(
      logits / jnp.where(greedy, 1.0, sampling.temperature))
  whole = ~greedy & (sampling.top_k <= 0) & (
      sampling.top_p >= 1) & (sampling.min_p <= 0)
  return jax.lax.cond(
      whole, lambda x: Distributions(x, x),
      lambda x: _truncate(
          jnp.where(greedy, _point_mass(x), x), sampling), tempered)


def _truncate(tempered, sampling):
  """Distributions of tempered log-probs, with every option in force."""
  likeliest = jnp.max(tempered, -1, keepdims=True)
  threshold = jax.lax.cond(
      (sampling.top_k > 0) | (sampling.top_p < 1),
      lambda x: _top_k_top_p_threshold(x, sampling),
      lambda x: jnp.full_like(likeliest, -jnp.inf), tempered)
  threshold = jnp.maximum(threshold, likeliest + jnp.log(sampling.min_p))
  kept = jnp.where(tempered >= threshold, tempered, -jnp.inf)
  return Distributions(tempered, jax.nn.log_softmax(kept))


def _point_mass(logprobs):
  """0 at the first maximum of each row, -inf elsewhere."""
  ids = jnp.arange(logprobs.shape[-1])
  chosen = ids == jnp.argmax(logprobs, -1, keepdims=True)
  return jnp.where(chosen, 0.0, -jnp.inf)


def _top_k_top_p_threshold(logprobs, sampling):
  """[..., 1], the least log-prob that top-k and then top-p keep."""
  v = logprobs.shape[-1]
  descending = -jnp.sort(-logprobs, axis=-1)
  k = jnp.where(sampling.top_k > 0, jnp.minimum(sampling.top_k, v), v)
  kth = jnp.take(descending, k[None] - 1, axis=-1)
  # Top-p measures mass within what top-k kept, ties included. A token stays
  # if those above it have not yet reached top_p.
  probs = jax.nn.softmax(jnp.where(descending >= kth, descending, -jnp.inf))
  above = jnp.cumsum(probs, -1) - probs
  inside = (above < sampling.top_p) | (sampling.top_p >= 1)
  inside &= descending >= kth
  inside = inside.at[..., 0].set(True)
  return jnp.min(
      jnp.where(inside, descending, jnp.inf), -1, keepdims=True)


def entropy(logprobs: Array) -> Array:
  """Entropy [...] in nats of log-probs [..., V]; 0 log 0 is 0."""
  probs = jnp.exp(logprobs)
  return -jnp.sum(jnp.where(probs > 0, probs * logprobs, 0.0), -1)


def draw(logprobs: Array, noise: Array) -> Array:
  """One token per row, by inverting the cumulative distribution.

  That takes one random number per token; the Gumbel-max trick takes V.

  Args:
    logprobs: [S, V] float32, -inf for tokens that cannot be drawn.
    noise: [S] float32, uniform in [0, 1).

  Returns:
    [S] int32, each distributed as its row.
  """
  probs = jnp.exp(logprobs)
  v = probs.shape[-1]
  if v <= 2 * _BLOCK:
    return _invert(probs, noise * jnp.sum(probs, -1))[0]
  # First the block of the vocabulary, then the token within it.
  blocks = jnp.pad(probs, ((0, 0), (0, -v % _BLOCK)))
  blocks = blocks.reshape(len(probs), -1, _BLOCK)
  masses = jnp.sum(blocks, -1)
  block, rest = _invert(masses, noise * jnp.sum(masses, -1))
  chosen = jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
  return block * _BLOCK + _invert(chosen, rest)[0]


def _invert(masses, target):
  """Where cumulative masses [S, n] pass targets [S], and what is left over.

  Always an entry with some mass: sums in another order may round otherwise.
  """
  n = masses.shape[-1]
  total = jnp.cumsum(masses, -1)
  index = jnp.arange(n)
  passed = (total > target[:, None]) & (masses > 0)
  first = jnp.min(jnp.where(passed, index, n), -1)
  last = jnp.max(jnp.where(masses > 0, index, 0), -1)
  at = jnp.minimum(first, last)
  before = jnp.take_along_axis(total - masses, at[:, None], -1)[:, 0]
  return at.astype(jnp.int32), target - before
