"""The programs that compute advantages from rewards.

Metrics:
  reward/pass@<k> [probability]: that one of k responses to a problem of the
    step is right, by its valid probe rows; for the k of eval_k
"""

from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional

import jax
import jax.numpy as jnp

from jaxrl_llm.learner.options import OverlongOptions
from jaxrl_llm.ops import overlong as overlong_lib
from jaxrl_llm.ops import pkpo, screening
from jaxrl_llm.types import Array, Table

# (rewards [P, N], where [P, N] bool, step [], columns) -> (advantages [P, N],
# or [P, N, T] if it names `turn`, metrics), and with [P, N, T] perhaps the
# advantages of rows [P, N]. `where` marks valid samples; `step` is the number
# of steps done; `columns` are name to [P, N, ...].
Advantage = Callable[..., tuple[Any, ...]]


class BatchAdvantages(NamedTuple):
  """Advantages of a train batch.

  Attributes:
    advantages: [B, N]; of advantages by token A, those of a row that the
      function gives, or else the sum of |A| over its tokens, with the sign of
      the sum of A.
    token_advantages: [B, N, T] if the advantage names `turn`, else None.
    trained: [B, N] bool, whether the row's tokens count in the loss.
    metrics: name to [] float32, of the advantage, such as pkpo/k and
      pkpo/k_lowered.
  """
  advantages: Array
  token_advantages: Optional[Array]
  trained: Array
  metrics: dict[str, Array]


class WaveSignal(NamedTuple):
  """Values that the curriculum and the metrics get from a wave's rewards.

  Attributes:
    signal: [N + 1], sum of |advantage| of a group with c of N right.
    gain: [P], that sum for each group of the wave; NaN if it is not complete.
    metrics: reward/pass@k to [] float32. They use the verifier's rewards,
      without penalties, and the groups with at least k valid probe samples;
      NaN without such a group.
  """
  signal: Array
  gain: Array
  metrics: dict[str, Array]


class Program(NamedTuple):
  """The two programs of a config, each compiled once.

  Attributes:
    of_batch: (rewards, valid, length, truncated, step, columns) ->
      BatchAdvantages. The first four are [B, N] on the device; `step` [] is the
      number of steps done; `columns` are name to [B, N, ...], or None. The
      overlong penalty is added to the rewards first. Samples that are not
      valid do not count in their group.
    of_wave: (rewards, valid, length, probe, complete [P], step, columns) ->
      WaveSignal. The first four are [P, N]: `probe` marks the valid probe
      samples of the wave, `complete` the groups of which all N samples are
      there.
    columns: names of the columns that both take, of `types.Table`.
  """
  of_batch: Callable[..., BatchAdvantages]
  of_wave: Callable[..., WaveSignal]
  columns: tuple[str, ...] = ()


def pass_rates(
    rewards: Array, valid: Array, ks: tuple[int, ...]) -> dict[str, Array]:
  """Estimates the mean pass@k of groups.

  Args:
    rewards: [P, N]; a sample passes with a reward of at least 1.
    valid: [P, N] bool.
    ks: values of k; values above N are left out.

  Returns:
    'reward/pass@k' to [], see `WaveSignal.metrics`.
  """
  n = jnp.sum(valid, -1)
  right = jnp.sum(valid & (rewards >= 1.0), -1)
  return {
      f'reward/pass@{k}': jnp.mean(pkpo.pass_at_k(n, right, k), where=n >= k)
      for k in ks if k <= rewards.shape[-1]}


def make_program(
    advantage: Advantage, per_group: Advantage, *, samples: int,
    ks: tuple[int, ...], overlong: OverlongOptions, budget: int,
    columns: Collection[str] = ()) -> Program:
  """Makes the programs of an advantage.

  Args:
    advantage: of a train batch.
    per_group: the same without scaling by the batch.
    samples: N, samples of a group.
    ks: k of the pass@k that a wave reports.
    overlong: treatment of long responses.
    budget: T, most tokens of a response.
    columns: those that the advantage names.
  """
  def penalised(rewards, length):
    if overlong.mode != 'penalty':
      return rewards
    return rewards + overlong_lib.soft_penalty(
        length, budget=budget, window=overlong.window)

  @jax.jit
  def batch_advantages(rewards, valid, length, truncated, step, columns=None):
    trained = valid
    if overlong.mode == 'mask':
      trained = overlong_lib.mask_truncated(
          valid.reshape(-1, 1), truncated.reshape(-1)).reshape(valid.shape)
    columns = _given(columns, budget)
    found = advantage(penalised(rewards, length), valid, step, columns)
    values, reported, *_ = found
    of_tokens = None
    if 'turn' in columns:
      of_tokens = jnp.where(columns['turn'] >= 0, values if (
          values.ndim == 3) else values[..., None], 0.0)
    return BatchAdvantages(
        _of_rows(found, columns), of_tokens, trained, reported)

  @jax.jit
  def wave_signal(rewards, valid, length, probe, complete, step, columns=None):
    columns = _given(columns, budget)

    def values(rewards, valid, columns):
      return _of_rows(per_group(rewards, valid, step, columns), columns)

    gain = jnp.abs(values(penalised(rewards, length), valid, columns)).sum(1)
    return WaveSignal(
        screening.signal_table(
            lambda right: values(right, jnp.ones_like(right, bool), {
                name: _hypothetical(name, x, right, budget)
                for name, x in columns.items()}), samples),
        jnp.where(complete, gain, jnp.nan), pass_rates(rewards, probe, ks))

  return Program(batch_advantages, wave_signal, tuple(columns))


def _given(
    columns: Mapping[str, Array] | None, budget: int) -> dict[str, Array]:
  """Returns the columns that an advantage gets; of turns, those of tokens."""
  found = dict(columns or {})
  if 'turn_start' in found:
    found['turn'] = turn_of_tokens(
        found.pop('turn_start'), found.pop('turn_length'), budget)
  return found


def _of_rows(found: tuple[Any, ...], columns: Mapping[str, Array]) -> Array:
  """Returns the advantages [P, N] of rows in the result of an Advantage."""
  values, _, *rows = found
  if values.ndim == 2:
    return values
  values = jnp.where(columns['turn'] >= 0, values, 0.0)
  if rows:  # A token that is not finite shows in its row.
    return jnp.where(jnp.isfinite(values).all(-1), rows[0], jnp.nan)
  # A row whose tokens cancel out is trained on too: it is not 0.
  return jnp.abs(values).sum(-1) * jnp.where(values.sum(-1) < 0, -1.0, 1.0)


def _hypothetical(
    name: str, column: Array, rewards: Array, budget: int) -> Array:
  """Returns a column of groups that are no rollouts, with these rewards.

  Their responses have `budget` tokens, all in turn 0. Columns of rewards have
  the reward; all else is as in a free row.
  """
  value = rewards.reshape(*rewards.shape, *[1] * (column.ndim - 2))
  if name not in ('separate', 'turn_rewards'):
    value = budget if name in ('length', 'generated') else (
        0 if name == 'turn' else Table.declared[name].fill)
  return jnp.broadcast_to(
      value, (*rewards.shape, *column.shape[2:])).astype(column.dtype)


def turn_of_tokens(start: Array, length: Array, width: int) -> Array:
  """Returns the number of the turn of each token, -1 where there is none.

  Args:
    start: [..., U] int32, the first column of each turn.
    length: [..., U] int32, its tokens.
    width: T.

  Returns:
    [..., T] int32.
  """
  place = jnp.arange(width)[:, None] - start[..., None, :]
  inside = (place >= 0) & (place < length[..., None, :])
  return jnp.where(inside.any(-1), jnp.argmax(inside, -1), -1)
