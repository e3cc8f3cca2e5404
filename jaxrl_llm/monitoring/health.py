"""Warnings about a run that looks sick, and the trend of its rewards.

Everything is computed from rows of metrics, so that a run, a run that goes on
and a page about a finished one say the same. Limits are far from what the runs
in benchmarks/results show: a warning is worth reading.
"""

import functools
import math
import statistics
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from jaxrl_llm.base import plain

Row = Mapping[str, Any]

_FEW = 10  # rows by which a symptom is judged
_TREND = 20  # rows of a mean reward that is shown
_KEPT = 60  # latest rows that are kept
_AGAIN = 50  # rows without a symptom, after which it is worth another warning


class Symptom(NamedTuple):
  """A warning, JSON-able.

  Attributes:
    kind: name of the symptom, one of SYMPTOMS.
    step: of the row that showed it.
    text: what is seen, and the fields to try.
  """
  kind: str
  step: int
  text: str


class Mean(NamedTuple):
  """A mean and its standard error."""
  value: float
  error: float


class Health(NamedTuple):
  """Rows that a run's health is judged by, and what was found.

  Attributes:
    first: the first rows with rewards.
    recent: the latest rows, the newest last.
    best: highest mean reward of a few rows in a row.
    heldout: the best and the latest held-out reward.
    gone: kind of symptom to the number of rows since it was last there.
    symptoms: found so far.
  """
  first: tuple[Row, ...] = ()
  recent: tuple[Row, ...] = ()
  best: Mean | None = None
  heldout: tuple[Mean, Mean] | None = None
  gone: Mapping[str, int] = {}
  symptoms: tuple[Symptom, ...] = ()


def warnings(rows: Iterable[Row]) -> list[Symptom]:
  """Returns the warnings about a run, in the order of their steps.

  Args:
    rows: of `metrics.jsonl`, each with its 'step'.
  """
  return [*after(Health(), rows).symptoms]


def after(health: Health, rows: Iterable[Row]) -> Health:
  """Returns the health of a run after some more rows."""
  return functools.reduce(_after, rows, health)


def _after(health: Health, row: Row) -> Health:
  """Returns the health after one more row, and the symptoms it shows."""
  first, recent = health.first, (*health.recent, row)[-_KEPT:]
  if len(first) < _TREND and _number(row, 'reward/mean') is not None:
    first += row,
  rewards, best, heldout = _rewards(recent), health.best, health.heldout
  if rewards and (best is None or rewards > best):
    best = rewards
  value, error = (
      _number(row, f'eval/{name}') for name in ('mean', 'mean_error'))
  if value is not None and error is not None:
    now = Mean(value, error)
    heldout = max(heldout[0], now) if heldout else now, now
  health = health._replace(
      first=first, recent=recent, best=best, heldout=heldout)
  gone, found = {}, []
  for kind, text in _texts(health).items():
    since = health.gone.get(kind, _AGAIN)
    if text and since >= _AGAIN:
      found.append(Symptom(kind, int(row['step']), text))
    gone[kind] = 0 if text else since + 1
  return health._replace(gone=gone, symptoms=(*health.symptoms, *found))


def _texts(health: Health) -> dict[str, str]:
  """Returns kind of symptom to its text, or '' where it is not there."""
  texts = {kind: seen(health) for kind, seen in SYMPTOMS.items()}
  if texts['reward'] or texts['random']:
    # A policy that was destroyed has no signal and does not stop either. It is
    # not its problems or its limits that must change.
    texts.update(no_signal='', truncated='')
  return texts


def _number(row: Row, name: str) -> float | None:
  """Returns a metric, or None if it is not there or not finite."""
  value = row.get(name)
  return value if plain.is_finite(value) else None


def _last(
    rows: Sequence[Row], name: str, count: int = _FEW) -> list[float]:
  """Returns the last values of a metric, [] if there are fewer; 0 is all."""
  values = [v for row in rows if (v := _number(row, name)) is not None]
  return values[-count:] if len(values) >= count else []


def _mean(health: Health, name: str, count: int = _FEW) -> float:
  """Returns the mean of a metric's last values; NaN if there are fewer."""
  values = _last(health.recent, name, count)
  return statistics.fmean(values) if values else math.nan


def _begun(health: Health, name: str) -> float:
  """Returns a metric of the first row with rewards; NaN if it is not known."""
  value = _number(health.first[0], name) if health.first else None
  return math.nan if value is None else value


def _rewards(rows: Sequence[Row]) -> Mean | None:
  """Returns the mean reward of the last few rows, if they are enough."""
  rewards = _last(rows, 'reward/mean')
  if not rewards:
    return None
  return Mean(statistics.fmean(rewards),
              statistics.stdev(rewards) / math.sqrt(len(rewards)))


def _nearly_solved(health: Health) -> bool:
  """Returns whether the verifier's rewards are near 1."""
  of_verifier = _mean(health, 'rewards/verifier')  # beside a reward model's
  return (_mean(health, 'reward/mean') if math.isnan(of_verifier)
          else of_verifier) > 0.9


def _no_signal(health: Health) -> str:
  share, reward = (_mean(health, f'reward/{name}') for name in (
      'no_signal', 'mean'))
  if not share > 0.97 or math.isnan(reward) or not math.isnan(
      _mean(health, 'update/teacher_kl')):  # which does not need rewards
    return ''
  if _nearly_solved(health) and (
      min(_last(health.recent, 'reward/no_signal', 2 * _FEW), default=0) < 1):
    return ''  # Problems that are nearly solved leave few groups.
  return (
      f'{share:.0%} of the groups had no learning signal in '
      f'the last {_FEW} steps: all responses to a problem got the same reward, '
      f'{reward:.2g} in the mean. Look at samples.jsonl; take easier or '
      'harder problems, or raise samples_per_prompt or sampling.temperature.')


def _truncated(health: Health) -> str:
  share = _mean(health, 'response/truncated')
  if not share > 0.5:
    return ''
  return (f'{share:.0%} of the responses were cut off in '
          f'the last {_FEW} steps: raise max_response, or see overlong.mode '
          'and sampling.stop; an environment or tools have limits of their '
          'own.')


def _no_entropy(health: Health) -> str:
  entropy = _mean(health, 'response/entropy')
  # A policy that solves its problems may be as sure as it likes.
  if not entropy < 0.005 or _nearly_solved(health):
    return ''
  return (f'the entropy is near 0 ({entropy:.2g} nats per '
          'token): responses hardly differ, and nothing new is found. Lower '
          'optimizer.learning_rate, or raise loss.entropy_bonus, loss.kl_coef '
          'or sampling.temperature.')


def _random(health: Health) -> str:
  (before, now), (reward, rewarded) = (
      (_begun(health, name), _mean(health, name, _FEW // 2))
      for name in ('response/entropy', 'reward/mean'))
  if not (now >= 1.25 * before + 0.1 and rewarded <= reward):
    return ''
  return (f'the responses become more random (entropy {before:.2g} in the '
          f'first step, {now:.2g} nats per token now), and the reward does not '
          f'rise ({reward:.2g}, {rewarded:.2g}): lower optimizer.learning_rate '
          'or loss.entropy_bonus.')


def _ratios(health: Health) -> str:
  clipped = sum(_mean(health, f'update/clip_{side}') for side in (
      'low', 'high'))
  computed, tokens = (
      _mean(health, f'update/{name}') for name in ('processed', 'tokens'))
  if computed < tokens:  # those that learner.skip_zero leaves out are in bounds
    clipped *= computed / tokens
  if clipped > 0.4:
    return (f'{clipped:.0%} of the tokens are clipped: the '
            'policy moves too far from the one that wrote the responses. Lower '
            'optimizer.learning_rate, learner.updates, learner.epochs or '
            'actor.lag.')
  gap = _mean(health, 'update/behaviour_gap')
  if gap > 1.0:
    return ('the sampler gave the tokens other probabilities than the policy '
            f'({gap:.2g} nats apart in the mean): use '
            'off_policy=jackpot or loss.importance=tis, raise actor.distill if '
            'another model samples, or take a finer type for sampling.weights '
            'and sampling.kv.')
  return ''


def _gradient(health: Health) -> str:
  skipped = _last(health.recent, 'update/skipped', 2)
  if skipped and skipped[-1] > skipped[0]:
    return (f'an update was left out, {skipped[-1]:.0f} so far: its loss or '
            'gradient was not finite. Look first at an objective or a '
            'correction of your own; else lower optimizer.learning_rate or '
            'optimizer.max_grad_norm, or compute in model.dtype=float32.')
  norms = _last(health.recent, 'update/grad_norm', 5 * _FEW)
  if not norms:
    return ''
  before, now = (statistics.median(part)
                 for part in (norms[:-_FEW], norms[-_FEW:]))
  if not 0 < 10 * before < now:  # 0 where the first steps had no signal
    return ''
  return (f'the gradient is {now / before:.0f} times as long as before '
          f'({now:.2g}, {before:.2g}): lower optimizer.learning_rate, or set '
          'optimizer.max_grad_norm.')


def _far_away(health: Health) -> str:
  kl = _last(health.recent, 'update/kl_anchor')
  if not kl or statistics.median(kl) <= 1.0:
    return ''
  return ('the policy is far from the one that RL started from '
          f'({statistics.median(kl):.2g} nats per token): raise loss.kl_coef, '
          'or lower optimizer.learning_rate.')


def _fallen(health: Health) -> str:
  rewards = _rewards(health.recent)
  # Where few responses are right, their number is a matter of luck, and the
  # best of many means is lucky.
  for name, best, now, errors in (
      ('mean', health.best, rewards, 8.0),
      ('held-out', *(health.heldout or (None, None)), 4.5)):
    if best and now and now.value < best.value / 2 > 0 and (
        best.value - now.value > errors * math.hypot(best.error, now.error)):
      return _fall(f'{name} reward', best.value, now.value)
  # A first update may take it all, before there is a mean of a few rows.
  begun = _begun(health, 'reward/mean')
  if rewards and rewards.value < begun / 4 > 0 and (
      _begun(health, 'reward/no_signal') <= 0.96) and (
      _mean(health, 'reward/no_signal') > 0.97):
    return _fall('mean reward', begun, rewards.value)
  return ''


def _fall(name: str, before: float, now: float) -> str:
  return (f'the {name} fell from {before:.2g} to {now:.2g}: lower '
          'optimizer.learning_rate or raise loss.kl_coef; the best checkpoint '
          'is kept.')


# Kind of symptom to (health) -> text, or '' where it is not there.
SYMPTOMS: dict[str, Callable[[Health], str]] = {
    'no_signal': _no_signal, 'truncated': _truncated, 'entropy': _no_entropy,
    'random': _random, 'ratios': _ratios, 'gradient': _gradient,
    'kl': _far_away, 'reward': _fallen}


def trends(
    health: Health, start: Mapping[str, float] | None) -> dict[str, str]:
  """Returns remarks for the display: how rewards changed, and what is slow.

  Args:
    health: of a run under way.
    start: held-out estimates before the first step, if there were any.

  Returns:
    Metric to remark: 'reward/mean', its means over the first and the last rows;
    'eval/pass@1', its value at the start; 'seconds/step', the phase that takes
    most of it. Those that are known.
  """
  remarks = {}
  rewards = _last(health.recent, 'reward/mean', _TREND)
  if rewards and len(health.first) == _TREND:
    begun = statistics.fmean(row['reward/mean'] for row in health.first)
    remarks['reward/mean'] = (
        f'mean {statistics.fmean(rewards):.3f}, from {begun:.3f}')
  if start and math.isfinite(start.get('pass@1', math.nan)):
    remarks['eval/pass@1'] = f'from {start["pass@1"]:.3f}'
  recent = health.recent[-_TREND:]
  # Medians, since the first step compiles.
  seconds = {
      name: statistics.median(_number(row, name) or 0.0 for row in recent)
      for row in recent for name in row if name.startswith('seconds/')}
  total = seconds.pop('seconds/step', 0.0)
  if total and seconds:
    slowest = max(seconds, key=seconds.get)
    remarks['seconds/step'] = (
        f'{slowest.removeprefix("seconds/")} {seconds[slowest] / total:.0%}')
  return remarks
