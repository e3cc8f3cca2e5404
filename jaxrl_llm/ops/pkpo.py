"""PKPO: transforms of rewards whose policy gradient maximises pass@k.

Walder and Karkhanis, 2025, arXiv:2505.15201. The estimators average over all
subsets of k of a group's n samples. With the rewards sorted, g_1 <= ... <=
g_n, the share of subsets whose largest reward is g_i is

  a_i = C(i-1, k-1) / C(n, k).

One sort and cumulative sums therefore replace the subsets: O(n log n).

Rewards are [..., N] finite numbers, not only 0 and 1; integers become float32.
k is an integer, or an integer array that broadcasts against the leading
dimensions, one k per group. It may be traced, so a new k compiles nothing.
`where` marks the valid samples: the others get 0 and do not count in the
group, so n is the number of valid samples. If a group has too few of them for
k, the largest possible k is used for it (see `largest_k`).

Metrics:
  pkpo/k [samples]: k of the pass@k that is optimised
  pkpo/k_lowered [share]: groups with too few valid samples for k
"""

import functools
from typing import Annotated, Any, Collection, Literal, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.ops import advantages
from jaxrl_llm.ops.combinations import as_int32, log_misses

Array = jax.Array


def pass_at_k(n: Array | int, c: Array | int, k: Array | int) -> Array:
  """Estimates pass@k from n samples, unbiased (Eq. 3; Chen et al., 2021).

    rho(n, c, k) = 1 - C(n-c, k) / C(n, k)

  The number of operations does not depend on n. Up to n = 1e6 the relative
  error is a few float32 roundings.

  Args:
    n: integers, samples of each problem.
    c: integers, number of correct samples, 0 to n.
    k: integers, 1 to n. n, c and k broadcast.

  Returns:
    float32 of the broadcast shape; NaN where traced values are out of range.

  Raises:
    ValueError: values that are not traced are out of range.
  """
  if not any(isinstance(x, jax.core.Tracer) for x in (n, c, k)):
    rows = np.broadcast_arrays(*map(np.asarray, (n, c, k)))
    bad = np.flatnonzero(_impossible(*rows))
    if len(bad):
      n, c, k = (x.flat[bad[0]] for x in rows)
      raise ValueError(
          f'pass_at_k of n={n}, c={c}, k={k} is not defined: use n below '
          '2 ** 31 - 1, k from 1 to n, and c from 0 to n.')
  return _pass_at_k(n, c, k)


def pass_at_k_variance(n: Array | int, rate: Array, k: Array | int) -> Array:
  """Computes the variance of `pass_at_k` for large n (Eq. 40).

    Var(rho) ~ k^2 nu (1 - nu)^(2k-1) / n

  It is the first term of Hoeffding's expansion, of which no term is negative:
  the variance is never below it, and equal to it at k = 1.

  Args:
    n: samples of each problem.
    rate: nu, probability that a sample is correct.
    k: integers, 1 to n. n, rate and k broadcast.
  """
  return k ** 2 / n * rate * (1.0 - rate) ** (2 * k - 1)


def max_at_k(
    rewards: Array, k: Array | int, *, where: Optional[Array] = None) -> Array:
  """Estimates the mean of the largest of k rewards, unbiased (Eq. 12).

    rho = sum_i a_i g_i

  With rewards of 0 and 1 it is `pass_at_k`.

  Args:
    rewards: [..., N].
    k: [...] integer, 1 to N.
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [...]; NaN for a group without a valid sample.

  Raises:
    ValueError: a k that is not traced is below 1 or above N.
  """
  _check(k, np.shape(rewards), 'max_at_k')
  return _max_at_k(rewards, k, where)


def s(
    rewards: Array, k: Array | int, *,
    where: Optional[Array] = None) -> Array:
  """Computes the transform without a baseline (Eq. 19).

    s_i = a_i g_i + sum_(j > i) b_j g_j,  b_j = C(j-2, k-2) / C(n, k)

  s_i is the sum of the largest rewards of all subsets that contain i, divided
  by C(n, k). sum_i s_i = k rho.

  Args:
    rewards: [..., N].
    k: [...] integer, 1 to N.
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] weights of grad log p(x_i), 0 where invalid.

  Raises:
    ValueError: a k that is not traced is below 1 or above N.
  """
  _check(k, np.shape(rewards), 's')
  return _transform(rewards, k, where, name='s')[0]


def sloo(
    rewards: Array, k: Array | int, *,
    where: Optional[Array] = None) -> Array:
  """Computes the transform with a leave-one-out baseline (Eq. 29).

    sloo_i = s_i - k / (n-1) * (rho of the other n-1 samples)

  The factor k / (n-1) is the paper's. The mean of s_i is only k / n times rho.
  Equal rewards r therefore give -r k / (n (n-1)), not 0, and k = 1 is close to
  `advantages.rloo` / n but not equal to it.

  Args:
    rewards: [..., N].
    k: [...] integer, 1 to N - 1: the baseline needs k other samples.
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] weights of grad log p(x_i); 0 where invalid, or the only valid
    sample.

  Raises:
    ValueError: a k that is not traced is below 1 or above N - 1.
  """
  _check(k, np.shape(rewards), 'sloo')
  return _transform(rewards, k, where, name='sloo')[0]


def sloo_minus_one(
    rewards: Array, k: Array | int, *, where: Optional[Array] = None) -> Array:
  """Computes the transform with a baseline of k - 1 samples (Eq. 33).

  For each subset that contains i, the baseline is the largest reward of the
  subset without i. The differences are summed over these subsets and divided
  by C(n, k). In sorted order this is

    sloo_minus_one_i = sum_(j <= i) a_j (g_j - g_(j-1)),  g_0 = g_1.

  No term is negative and nothing cancels: a reward that is never the largest
  of a subset gets an exact 0. At k = 1, where subsets of k - 1 samples are
  empty, the baseline is leave-one-out, (g_i - mean of the others) / n, as in
  the paper's k = 1 runs.

  Args:
    rewards: [..., N].
    k: [...] integer, 1 to N.
    where: [..., N] bool, valid samples; None for all.

  Returns:
    [..., N] weights of grad log p(x_i), 0 where invalid.

  Raises:
    ValueError: a k that is not traced is below 1 or above N.
  """
  _check(k, np.shape(rewards), 'sloo_minus_one')
  return _transform(rewards, k, where, name='sloo_minus_one')[0]


def partitioned(
    rewards: Array, k: int, *, transform: str = 'sloo_minus_one') -> Array:
  """Computes transforms of disjoint subsets of k samples (Fig. 4).

  These are the paper's comparisons: unbiased like the transforms of all
  subsets, with more variance. Samples 0 to k - 1 are the first subset, and so
  on. Weights are divided by the number of subsets.

  Args:
    rewards: [..., N], N a multiple of k.
    k: size of a subset.
    transform: of a subset: 's', its largest reward for each sample ("naive");
      's_baselined', that less the mean of the other subsets' largest rewards;
      or 'sloo_minus_one', which is the method of Tang et al.

  Returns:
    [..., N] weights of grad log p(x_i).

  Raises:
    ValueError: the transform is unknown, or N is not such a multiple of k.
  """
  *groups, size = np.shape(rewards)
  least = {'s': 1, 's_baselined': 2, 'sloo_minus_one': 1}
  _known(transform, least)
  if k < 1 or size % k or size // k < least[transform]:
    raise ValueError(
        f'k={k} does not split n={size} samples into {least[transform]} or more'
        f' whole subsets, which {transform} needs: use a divisor of n.')
  subsets = jnp.reshape(rewards, (*groups, size // k, k))
  if transform == 'sloo_minus_one':
    weights = sloo_minus_one(subsets, k)
  else:
    weights = s(subsets, k)
    if transform == 's_baselined':
      weights -= (jnp.sum(weights, -2, keepdims=True) - weights) / (
          size // k - 1)
  return jnp.reshape(weights, (*groups, size)) * (k / size)


def advantage(
    rewards: Array,
    k: Array | int,
    *,
    where: Optional[Array] = None,
    transform: str = 'sloo_minus_one',
    batch_std: bool = False,
    eps: float = 1e-6,
) -> Array:
  """Computes PKPO advantages: n times a transform of the rewards.

  The factor n is for losses that average over a group's samples. At k = 1,
  sloo_minus_one gives RLOO.

  Args:
    rewards: [..., N], all the groups of the batch.
    k: [...] integer, 1 to N.
    where: [..., N] bool, valid samples; None for all.
    transform: key of `TRANSFORMS`.
    batch_std: whether to divide by the standard deviation (ddof=1) of the
      advantages of all valid samples; no mean is subtracted.
    eps: added to that standard deviation.

  Returns:
    [..., N] advantages, 0 where invalid.

  Raises:
    ValueError: the transform is unknown, or it cannot use this k.
  """
  _known(transform, TRANSFORMS)
  _check(k, np.shape(rewards), transform)
  values = _transform(rewards, k, where, name=transform)[1]
  if batch_std:
    values = advantages.scaled(values, _std(values, where), eps)
  return values


def largest_k(where: Array, *, transform: str = 'sloo_minus_one') -> Array:
  """Returns the largest k that each group's valid samples allow.

  Args:
    where: [..., N] bool, valid samples.
    transform: key of `TRANSFORMS`.

  Returns:
    [...] int32, the number of valid samples, minus 1 for sloo; below 1 where
    no k is possible.
  """
  _known(transform, TRANSFORMS)
  return jnp.sum(where, -1, dtype=jnp.int32) - _SPARE.get(transform, 0)


class _RankedGroup(NamedTuple):
  """Groups in ascending order of rewards, the invalid samples last.

  Attributes:
    rewards: [..., N] floats by rank, 0 for the invalid.
    rank: [N] int32, i, from 1.
    n: [..., 1] int32, valid samples.
    k: [..., 1] int32, from 1 to n where n > 0.
    order: [..., N] int32, index of the sample at each rank.
    first: [..., N] rewards in the original order, 0 for the invalid.
    where: [..., N] bool, valid samples in the original order.
  """
  rewards: Array
  rank: Array
  n: Array
  k: Array
  order: Array
  first: Array
  where: Array

  @property
  def valid(self) -> Array:
    """Mask [..., N] of valid samples, by rank."""
    return self.rank <= self.n

  def unsorted(self, values: Array) -> Array:
    """Returns values by rank in the original order, 0 for the invalid."""
    values = jnp.put_along_axis(
        jnp.zeros_like(values), self.order, values, axis=-1, inplace=False)
    return jnp.where(self.where, values, 0.0)


def _group(rewards, k, where, name) -> _RankedGroup:
  """Sorts each group and lowers k to the largest that it allows."""
  first, where = advantages.valid_rewards(rewards, where)
  size = first.shape[-1]
  key = jnp.where(where, first, jnp.inf)
  index = jax.lax.broadcasted_iota(jnp.int32, key.shape, key.ndim - 1)
  key, order = jax.lax.sort((key, index), num_keys=1)
  n = jnp.sum(where, -1, keepdims=True, dtype=jnp.int32)
  rank = jnp.arange(1, size + 1, dtype=jnp.int32)
  k = jnp.broadcast_to(as_int32(k, 'k'), first.shape[:-1])[..., None]
  most = jnp.maximum(n - _SPARE.get(name, 0), 1)
  return _RankedGroup(
      rewards=jnp.where(rank <= n, key, 0.0), rank=rank, n=n,
      k=jnp.clip(k, 1, most), order=order, first=first, where=where)


def _n_a(group: _RankedGroup) -> Array:
  """Returns n a_i, [..., N] by rank, 0 for the invalid."""
  n, k, i = group.n, group.k, group.rank
  # C(i-1, k-1) / C(n-1, k-1)
  share = jnp.exp(log_misses(n - 1, n - i, k - 1, group.rewards.dtype))
  return jnp.where(group.valid, k * share, 0.0)


def _before(x: Array) -> Array:
  """Returns the sum of the entries before each one."""
  return jnp.cumsum(x, -1) - x


def _after(x: Array) -> Array:
  """Returns the sum of the entries after each one."""
  return jax.lax.cumsum(x, x.ndim - 1, reverse=True) - x


def _n_s(group):
  """Returns n s by rank."""
  n, k, j, g = group.n, group.k, group.rank, group.rewards
  # C(j-2, k-2) / C(n-2, k-2)
  share = jnp.exp(log_misses(n - 2, n - j, k - 2, g.dtype))
  pairs = (j >= 2) & group.valid
  # Evaluation order matters: k (k-1) may not fit into 32 bits.
  n_b = jnp.where(pairs, k * ((k - 1) / jnp.maximum(n - 1, 1)) * share, 0.0)
  return _n_a(group) * g + _after(n_b * g)


def _n_sloo(group):
  """Returns n sloo by rank."""
  n, k, i = group.n, group.k, group.rank
  # Subtracting the best reward first avoids cancellation between large, close
  # rewards. sloo of equal rewards r is -r k / (n (n-1)): `best` adds it back.
  best = jnp.max(
      group.rewards, -1, keepdims=True, where=group.valid, initial=-jnp.inf)
  best = jnp.where(n > 0, best, 0.0)
  g = jnp.where(group.valid, group.rewards - best, 0.0)
  # Without i, ranks below i stay and ranks above i decrease by one.
  others = jnp.maximum(n - 1, 1)
  weight = lambda rank: jnp.where(
      (rank >= 1) & (rank <= others),
      jnp.exp(log_misses(others - 1, others - rank, k - 1, g.dtype)), 0.0)
  rho = k / others * (_before(weight(i) * g) + _after(weight(i - 1) * g))
  value = _n_s(group._replace(rewards=g)) - k / others * (n * rho + best)
  return jnp.where(n > 1, value, 0.0)


def _n_sloo_minus_one(group):
  """Returns n sloo_minus_one by rank, for k > 1."""
  steps = jnp.diff(group.rewards, axis=-1, prepend=group.rewards[..., :1])
  return jnp.cumsum(_n_a(group) * steps, -1)


TRANSFORMS = dict(s=_n_s, sloo=_n_sloo, sloo_minus_one=_n_sloo_minus_one)
_SPARE = dict(sloo=1)  # samples needed in addition to k
_LARGEST = 2 ** 31 - 2


@functools.partial(jax.jit, static_argnames='name')
def _transform(rewards, k, where, *, name):
  """Returns a transform, and n times it."""
  group = _group(rewards, k, where, name)
  values = group.unsorted(TRANSFORMS[name](group))
  if name == 'sloo_minus_one':
    values = jnp.where(
        group.k == 1, advantages.rloo(group.first, where=group.where), values)
  return values / jnp.maximum(group.n, 1), values


@jax.jit
def _max_at_k(rewards, k, where):
  """See `max_at_k`."""
  group = _group(rewards, k, where, 'max_at_k')
  n = group.n[..., 0]
  rho = jnp.sum(_n_a(group) * group.rewards, -1) / jnp.maximum(n, 1)
  return jnp.where(n > 0, rho, jnp.nan)


@jax.jit
def _pass_at_k(n, c, k):
  """See `pass_at_k`."""
  n, c, k = (as_int32(x, name) for x, name in ((n, 'n'), (c, 'c'), (k, 'k')))
  value = -jnp.expm1(log_misses(n, c, k, jnp.float32))
  return jnp.where(_impossible(n, c, k), jnp.nan, value)


def _impossible(n, c, k):
  """Returns whether n, c and k are inconsistent or too large."""
  return (k < 1) | (k > n) | (c < 0) | (c > n) | (n > _LARGEST)


def _std(values, where):
  """Returns the standard deviation (ddof=1) of all valid samples' values.

  Values are 0 where invalid. The result is 0 for fewer than two samples.
  """
  where = jnp.ones_like(values, bool) if where is None else where
  count = jnp.maximum(jnp.sum(where), 1)
  mean = jnp.sum(values) / count
  squares = jnp.sum(jnp.where(where, values - mean, 0.0) ** 2)
  return jnp.sqrt(squares / jnp.maximum(count - 1, 1))


def _known(transform: str, transforms: Collection[str]) -> None:
  """Raises ValueError if the transform is unknown."""
  if transform not in transforms:
    raise ValueError(
        f'transform={transform!r} is not known: use one of '
        f'{", ".join(transforms)}.')


def _check(k: Any, shape: tuple[int, ...], name: str) -> None:
  """Raises ValueError if k is not possible for rewards of this shape."""
  *groups, size = shape
  lengths = zip(reversed(np.shape(k)), reversed(groups))
  if np.ndim(k) > len(groups) or any(a not in (1, b) for a, b in lengths):
    raise ValueError(
        f'k of shape {np.shape(k)} does not fit rewards of shape {shape}: '
        f'give one k, or one per group, of shape {tuple(groups)}.')
  if isinstance(k, jax.core.Tracer):
    return
  k, spare = np.asarray(k), _SPARE.get(name, 0)
  for value in (k.min(initial=1), k.max(initial=1)):
    if not 1 <= value <= max(size - spare, 1):
      most = f'n - 1 = {size - 1}' if spare else f'n = {size}'
      raise ValueError(
          f'k={value} does not fit groups of n={size} samples: for {name} use '
          f'1 to {most}.')


def pkpo(
    rewards: Array,
    *,
    where: Array,
    per_group: bool = False,
    k: Annotated[int, 'schedule'] = 4,
    transform: Literal['sloo_minus_one', 'sloo', 's'] = 'sloo_minus_one',
    batch_std: bool = False,
) -> tuple[Array, dict[str, Array]]:
  """Computes PKPO advantages of a train batch, and their metrics.

  Args:
    rewards: [P, N], all the groups of the batch.
    where: [P, N] bool, valid samples.
    per_group: leave out the division by the batch's standard deviation.
    k: k of the pass@k to optimise, a number or step:value pairs such as
      0:8,1500:1.
    transform: estimator of the gradient; sloo_minus_one (a baseline of k - 1
      samples), sloo (leave-one-out) or s (none).
    batch_std: divide the advantages by the batch's standard deviation.

  Returns:
    [P, N] advantages; and the module's metrics.
  """
  lowered = largest_k(where, transform=transform) < k
  return advantage(
      rewards, k, where=where, transform=transform,
      batch_std=batch_std and not per_group), {
          'pkpo/k': jnp.float32(k), 'pkpo/k_lowered': lowered.mean()}


ADVANTAGES = dict(pkpo=pkpo)
