"""The neural contextual bandit of CBS: features, scores, picks and training.

Lu et al., "Contextual Rollout Bandits for Reinforcement Learning with
Verifiable Rewards", arXiv:2602.08499. An arm is a rollout, with ten features
(Table 1). A small MLP predicts the reward of training on it. Rows with the best
scores are picked, or the newest ones with probability epsilon (Eqs. 8 and 9).
After the next rollouts the gain of the round is known; dispatched by
|advantage| (Eqs. 10 and 11), the MLP is trained to predict it (Eq. 7).

All functions are pure. States are NumPy arrays and numbers of fixed shapes.
Axis letters: M arms, K picks, F features.
"""

import dataclasses
import functools
from typing import Annotated, Any, NamedTuple, Sequence

from flax import linen as nn
import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_llm.types import Table

FEATURES = (
    'reward', 'advantage', 'group_mean', 'group_std', 'length', 'truncated',
    'entropy', 'clip_share', 'usage', 'age')
ABLATIONS = 'none', 'raw_gain', 'no_entropy'
_MOST = 10.0  # Normalised features are clipped here: an outlier is no weight.
_TINY = 1e-6  # Standard deviations below it are of a constant.


def features(
    table: Table, rows: np.ndarray, *, rounds: int, response: int,
) -> np.ndarray:
  """Computes the features of rollouts, in the order of Table 1.

  Args:
    table: C rows.
    rows: [M] which of them; their rounds have begun.
    rounds: number of the current round.
    response: L_max, most tokens of a response.

  Returns:
    [M, F] float32, see FEATURES: reward; advantage; mean and standard deviation
    of the group's rewards; length / L_max; 1 if truncated; mean entropy in nats
    and clipped share of its tokens, from the latest update that used it, else
    from the sampling and 0; rounds that trained on it; rounds since its own.
  """
  columns = [np.asarray(column[rows], np.float32) for column in (
      table.reward, table.advantage, table.group_mean, table.group_std,
      table.generated, table.truncated, table.entropy, table.clip_share,
      table.usage, rounds - table.round)]
  columns[FEATURES.index('length')] /= response
  return np.stack(columns).T  # a feature's values side by side


class Moments(NamedTuple):
  """Running moments of the features, over every row that was ever scored.

  Attributes:
    count: rows.
    mean: [F] float64.
    squares: [F] float64, sum of squared distances from the mean.
  """
  count: int  # type: ignore[assignment]
  mean: np.ndarray
  squares: np.ndarray


def observe(moments: Moments, rows: np.ndarray) -> Moments:
  """Adds rows to running moments.

  Args:
    moments: before.
    rows: [M, F].

  Returns:
    The moments of all rows together, by Chan's formula.
  """
  if not len(rows):
    return moments
  rows = rows.astype(np.float64)
  count = moments.count + len(rows)
  mean = rows.mean(0)
  apart = mean - moments.mean
  return Moments(
      count, moments.mean + apart * (len(rows) / count),
      moments.squares + ((rows - mean) ** 2).sum(0)
      + apart ** 2 * (moments.count * len(rows) / count))


def normalised(moments: Moments, rows: np.ndarray) -> np.ndarray:
  """Returns features [M, F] less their mean, over their standard deviation.

  A feature that was always the same is 0; others are clipped to -10 to 10.
  """
  std = np.sqrt(moments.squares / max(moments.count, 1))
  scale = np.where(std > _TINY, 1 / np.maximum(std, _TINY), 0.0)
  return np.clip(
      (rows - moments.mean) * scale, -_MOST, _MOST).astype(np.float32)


class Mlp(nn.Module):
  """s_phi: features [M, F] -> scores [M]; ReLU, as in the paper's appendix B.

  Attributes:
    width: of the hidden layers.
    layers: number of hidden layers.
  """
  width: int
  layers: int

  @nn.compact
  def __call__(self, x):
    exact = jax.lax.Precision.HIGHEST  # float32 on every device
    for _ in range(self.layers):
      x = nn.relu(nn.Dense(
          self.width, precision=exact,
          kernel_init=nn.initializers.he_normal())(x))
    return nn.Dense(1, precision=exact)(x)[..., 0]


@dataclasses.dataclass(frozen=True)
class Network:
  """Sizes of the MLP, see `Mlp`, and eta_2, the learning rate of Adam.

  Attributes:
    learning_rate: learning rate of the scheduler, which scores the responses.
    width: width of the scheduler's hidden layers.
    layers: number of the scheduler's hidden layers.
  """
  learning_rate: Annotated[float, '[0, inf)'] = 1e-4
  width: Annotated[int, '[1, inf)'] = 64
  layers: Annotated[int, '[0, inf)'] = 2

  @property
  def mlp(self) -> Mlp:
    """The module."""
    return Mlp(self.width, self.layers)

  @property
  def adam(self) -> optax.GradientTransformation:
    """The optimiser."""
    return optax.adam(self.learning_rate)

  def tree(self, params: jax.Array) -> Any:
    """Returns the MLP's parameters by Flax's names, from one vector."""
    like = jax.eval_shape(
        self.mlp.init, jax.random.key(0), jnp.zeros((1, len(FEATURES))))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return flatten_util.ravel_pytree(zeros)[1](params)


class Scheduler(NamedTuple):
  """State of the scheduler; leaves are NumPy arrays and numbers.

  Parameters are one vector, since each array that moves to a device and back
  takes longer than the MLP itself.

  Attributes:
    params: [P] float32, of the MLP, flat; `Network.tree` has their shapes.
    optimizer: state of Adam, likewise.
    moments: of the features.
  """
  params: np.ndarray
  optimizer: Any
  moments: Moments


def init(network: Network, seed: Sequence[int]) -> Scheduler:
  """Makes the state before the first round.

  Args:
    network: sizes of the MLP.
    seed: integers.
  """
  word = np.random.default_rng(seed).integers(1 << 32, dtype=np.uint32)
  params, optimizer = _run(_init, word, network=network)
  none = np.zeros(len(FEATURES))
  return Scheduler(params, optimizer, Moments(0, none, none))


@functools.partial(jax.jit, static_argnames='network')
def _init(seed, *, network):
  """Draws the parameters and makes the optimiser's state."""
  params, _ = flatten_util.ravel_pytree(network.mlp.init(
      jax.random.key(seed), jnp.zeros((1, len(FEATURES)))))
  return params, network.adam.init(params)


def _run(program: Any, *values: Any, network: Network) -> Any:
  """Runs a program on this process's first device, from host to host.

  Every process computes the same scores from the same table.
  """
  with jax.transfer_guard('allow'):  # By the call: device_put takes longer.
    return jax.device_get(program(*values, network=network))


def scores(
    network: Network, state: Scheduler, rows: np.ndarray, *,
    size: int | None = None) -> np.ndarray:
  """Computes s_phi of rollouts, by one device program.

  Args:
    network: sizes of the MLP.
    state: of the scheduler; its moments normalise the features.
    rows: [M, F] features.
    size: rows of the program; a constant size compiles it once. None is M.

  Returns:
    [M] float32.
  """
  padded = _pad(normalised(state.moments, rows), size or len(rows))
  return _run(_scores, state.params, padded, network=network)[:len(rows)]


@functools.partial(jax.jit, static_argnames='network')
def _scores(params, rows, *, network):
  """Applies the MLP."""
  return network.mlp.apply(network.tree(params), rows)


def train(
    network: Network, state: Scheduler, rows: np.ndarray, targets: np.ndarray,
    *, size: int | None = None) -> tuple[Scheduler, float]:
  """Takes one step on the mean squared error of the scores (Eq. 7).

  Args:
    network: sizes of the MLP, and the learning rate.
    state: of the scheduler.
    rows: [K, F] features of the rows that were picked, when they were picked.
    targets: [K] their rewards (Eq. 11).
    size: rows that the program is compiled for.

  Returns:
    The state after, and the loss before the step. Without rows, or with a loss
    or gradient that is not finite, the state stays as it is.
  """
  if not len(rows):
    return state, np.nan
  size = size or len(rows)
  new, loss, finite = _run(
      _train, (state.params, state.optimizer),
      _pad(normalised(state.moments, rows), size),
      _pad(targets.astype(np.float32), size),
      np.arange(size) < len(rows), network=network)
  if not finite:
    return state, float(loss)
  return state._replace(params=new[0], optimizer=new[1]), float(loss)


@functools.partial(jax.jit, static_argnames='network')
def _train(learned, rows, targets, there, *, network):
  """Takes a step of Adam."""
  params, state = learned

  def mean_square(params):
    scores = network.mlp.apply(network.tree(params), rows)
    error = jnp.where(there, scores - targets, 0.0)
    return (error ** 2).sum() / there.sum()

  loss, grads = jax.value_and_grad(mean_square)(params)
  updates, state = network.adam.update(grads, state, params)
  finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))
  return (optax.apply_updates(params, updates), state), loss, finite


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
  """Returns rows with zeros after them, `size` in all."""
  return np.pad(rows, [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)])


def epsilon(
    number: int, *, warmup: int, start: float, decay: float, least: float,
) -> float:
  """Computes the probability of a newest row in a pick (Eq. 9).

  Args:
    number: t, number of the round, counted from 1.
    warmup: T_w; up to this round it is 1.
    start: epsilon_0.
    decay: Delta_epsilon.
    least: epsilon_min.

  Returns:
    1 if t <= T_w, else max(epsilon_0 - (t - 1) Delta_epsilon, epsilon_min).
  """
  if number <= warmup:
    return 1.0
  return max(start - (number - 1) * decay, least)


def pick(
    scores: np.ndarray, age: np.ndarray, newest: np.ndarray,
    order: np.ndarray) -> np.ndarray:
  """Picks rows one after the other, without replacement (Eq. 8).

  Two pointers walk over the rows in the orders of scores and of ages, and pass
  over rows that are taken.

  Args:
    scores: [M]; of equal ones the first row is better.
    age: [M] rounds.
    newest: [K] bool, which picks take the newest row left, not the best scored;
      K is at most M.
    order: [M] the rows in a random order; of the same age, the first is picked.

  Returns:
    [K] numbers of rows.
  """
  orders = (np.argsort(-scores, kind='stable').tolist(),
            order[np.argsort(age[order], kind='stable')].tolist())
  taken, places, picked = bytearray(len(scores)), [0, 0], []
  for which in newest.tolist():
    order, place = orders[which], places[which]
    while taken[order[place]]:
      place += 1
    taken[order[place]] = 1
    picked.append(order[place])
    places[which] = place + 1
  return np.array(picked, np.int64)


class Gain(NamedTuple):
  """Exponential moving averages of the gain dV of a round.

  Attributes:
    mean: mu.
    variance: sigma, of the distances from mu.
  """
  mean: float = 0.0
  variance: float = 0.0


class BanditReward(NamedTuple):
  """Reward of a round: `total` = `gain` - `entropy_penalty`.

  Attributes:
    gain: squeezed dV, or dV itself.
    entropy_penalty: w_e 1[E_t > e_min] (E_{t+1} - E_t).
    total: the reward that the rows receive.
  """
  gain: float
  entropy_penalty: float
  total: float


def reward(
    averages: Gain, value: tuple[float, float], entropy: tuple[float, float], *,
    alpha: float, entropy_weight: float, entropy_min: float,
    ablate: str = 'none') -> tuple[Gain, BanditReward]:
  """Computes the reward of a round, after Eq. 10.

  mu and sigma include dV itself: with D = dV - mu, sigma >= alpha D^2, so that
  |D| / sqrt(sigma) <= 1 / sqrt(alpha). At the paper's alpha of .9 the sigmoid
  lies between .26 and .74, while the penalty has no bound.

  Args:
    averages: before the round.
    value: (V_t, V_{t+1}), mean rewards before and after the round's update.
    entropy: (E_t, E_{t+1}), mean entropies, in nats.
    alpha: weight of the newest gain in both averages.
    entropy_weight: w_e.
    entropy_min: e_min.
    ablate: 'raw_gain' leaves out averages and sigmoid (Eq. 5), 'no_entropy' the
      penalty.

  Returns:
    The averages after, and the reward.
  """
  difference = value[1] - value[0]
  mean = (1 - alpha) * averages.mean + alpha * difference
  apart = difference - mean
  variance = (1 - alpha) * averages.variance + alpha * apart ** 2
  gain = 1 / (1 + np.exp(-apart / max(np.sqrt(variance), _TINY)))
  if ablate == 'raw_gain':
    gain = difference
  penalty = 0.0
  if ablate != 'no_entropy' and entropy[0] > entropy_min:
    penalty = entropy_weight * (entropy[1] - entropy[0])
  return Gain(float(mean), float(variance)), BanditReward(
      float(gain), float(penalty), float(gain - penalty))


def correlations(scores: np.ndarray, rows: np.ndarray) -> dict[str, float]:
  """Computes Pearson's correlation of the scores with each feature (Fig. 9).

  Args:
    scores: [M].
    rows: [M, F] features.

  Returns:
    Name of each feature to its correlation; NaN where one side is constant.
  """
  if not len(rows) or np.ptp(scores) == 0:
    return dict.fromkeys(FEATURES, np.nan)
  apart = rows - rows.mean(0, dtype=np.float64)
  scores = scores - scores.mean(dtype=np.float64)
  size = np.sqrt((scores @ scores) * (apart ** 2).sum(0))
  found = np.divide(
      scores @ apart, size, out=np.full(len(FEATURES), np.nan),
      where=np.ptp(rows, 0) > 0)
  return dict(zip(FEATURES, found.tolist()))
