"""Metrics of a step's rollouts and updates."""

import collections
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.rollout import Responses
from jaxrl_llm.types import Ask, Picked, Probe, Rollouts, Table

Row = dict[str, float]


class Report(NamedTuple):
  """Outputs of a step other than its state.

  Attributes:
    row: metrics of the step.
    groups: for each group of the wave, one record per response, in the format
      of `samples.jsonl`.
    tokens: number of sampled response tokens.
    flops: model FLOPs by phase.
  """
  row: Row
  groups: list[list[dict[str, Any]]]
  tokens: int
  flops: dict[str, float]


def report(
    responses: Responses, verdicts: Sequence[Verdict],
    updates: Sequence[Mapping[str, np.ndarray]], *, step: int, ask: Ask,
    wave: Table, gain: np.ndarray, measured: Mapping[str, np.ndarray],
    solved: np.ndarray, kinds: Mapping[str, np.ndarray],
    flops: dict[str, float]) -> Report:
  """Collects the report of a step.

  Args:
    responses: R responses.
    verdicts: R verdicts.
    updates: metrics of each optimiser step.
    step: number of the step, counted from 1.
    ask: P groups that the responses belong to.
    wave: R rows of the table, in the order of the responses.
    gain: [P], see `types.Curriculum.update`.
    measured: other metrics, of the advantages and of the rounds.
    solved: [D] bool, training problems solved so far.
    kinds: kind to the indices of its problems.
    flops: model FLOPs by phase.
  """
  row = {
      **of_rollouts(
          responses.rollouts, wave, ask, gain, [v.kind for v in verdicts],
          responses.use),
      **{name: float(value) for name, value in measured.items()},
      **of_solved(solved, kinds),
      **of_updates(updates)}
  return Report(
      row, records(step, responses, verdicts, ask, wave),
      int(responses.rollouts.length.sum()), flops)


def of_rollouts(
    rollouts: Rollouts, wave: Table, ask: Ask, gain: np.ndarray,
    verdicts: Sequence[str], use: Mapping[str, int]) -> Row:
  """Computes the metrics of a step's responses.

  Args:
    rollouts: R rollouts, NumPy arrays.
    wave: R rows of the table.
    ask: P groups that they belong to.
    gain: [P], sum of |advantage| of each complete group, else NaN.
    verdicts: R kinds of verdicts.
    use: counts of the sampler; see `rollout.host_sampler`.

  Returns:
    reward/mean and reward/std (over valid probe rows, see `types.Table`);
    reward/group_std (mean over groups); reward/no_signal (share of complete
    groups whose advantages are all 0); reward/signal (sum of |advantage| over
    complete groups); response/count; response/length and response/length_max
    (tokens); response/truncated (share); response/entropy (nats per token, at
    sampling time); sampler/slot_use; verdict/<kind> (share of each kind). NaN
    where there is nothing to average.
  """
  good = wave.valid & wave.probe
  real = np.arange(rollouts.tokens.shape[1]) < rollouts.length[:, None]
  ends = np.cumsum(ask.count)[:-1]
  spread = [r[v].std() for r, v in zip(
      np.split(wave.reward, ends), np.split(good, ends)) if v.any()]
  row = {
      'reward/mean': _mean(wave.reward[good]),
      'reward/std': wave.reward[good].std() if good.any() else np.nan,
      'reward/group_std': _mean(spread),
      'reward/no_signal': _mean(gain[~np.isnan(gain)] == 0.0),
      'reward/signal': np.nansum(gain),
      'response/count': len(verdicts),
      'response/length': _mean(rollouts.length),
      'response/length_max': rollouts.length.max(initial=0),
      'response/truncated': _mean(rollouts.truncated),
      'response/entropy': _mean(rollouts.entropy[real]),
      'sampler/slot_use': use['busy'] / max(use['slots'], 1),
  }
  for kind, count in sorted(collections.Counter(verdicts).items()):
    row[f'verdict/{kind}'] = count / len(verdicts)
  return {name: float(value) for name, value in row.items()}


def _mean(values: Any) -> float:
  """Returns the mean, NaN of nothing."""
  return np.mean(values) if len(values) else np.nan


def probe(wave: Table, policy_step: int) -> Probe:
  """Returns the means over a wave's valid probe rows.

  Args:
    wave: its rows of the table.
    policy_step: optimiser steps behind the policy, if the wave has no rows.
  """
  if len(wave.policy_step):
    policy_step = int(wave.policy_step[0])
  rows = wave.valid & wave.probe & (wave.length > 0)
  if not rows.any():
    return Probe(np.nan, np.nan, policy_step)
  return Probe(
      float(wave.reward[rows].mean()), float(wave.entropy[rows].mean()),
      policy_step)


def of_rounds(picked: Sequence[Picked], held: int) -> Row:
  """Computes the metrics of a step's train batches.

  Args:
    picked: of each round.
    held: rows held for later steps.

  Returns:
    batch/rounds; batch/rows (rows trained on, over all rounds). Over these
    rows, NaN without one: batch/staleness (mean) and batch/staleness_max;
    batch/age and batch/usage (means); batch/replayed (share of rows from
    earlier rounds). batch/held.
  """
  nothing = Picked(*[np.zeros(0)] * len(Picked._fields))
  rows, late, age, usage = map(np.concatenate, zip(nothing, *picked))
  return {
      'batch/rounds': len(picked), 'batch/rows': len(rows),
      'batch/staleness': _mean(late),
      'batch/staleness_max': late.max() if len(late) else np.nan,
      'batch/age': _mean(age), 'batch/usage': _mean(usage),
      'batch/replayed': _mean(age > 0), 'batch/held': held}


def of_updates(updates: Sequence[Mapping[str, np.ndarray]]) -> Row:
  """Combines the metrics of a step's updates, with the prefix 'update/'.

  'tokens' and 'obrs_empty' are summed. Names that end in '_max' take the
  maximum. Counters and the learning rate take the last value. All others are
  means weighted by tokens, NaN if there are no tokens.
  """
  row = {}
  tokens = np.array([float(update['tokens']) for update in updates])
  for name in updates[0] if updates else ():
    values = [float(update[name]) for update in updates]
    if name in ('skipped', 'skipped_in_row', 'learning_rate'):
      value = values[-1]
    elif name in ('tokens', 'obrs_empty'):
      value = sum(values)
    elif name.endswith('_max'):
      value = max(values)
    else:
      value = (float(np.average(values, weights=tokens)) if tokens.any()
               else np.nan)
    row[f'update/{name}'] = value
  return row


def solve(
    solved: np.ndarray, problem: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Marks the problems that a step has solved.

  Args:
    solved: [D] bool, problems solved before.
    problem: [R] index of each response's problem.
    right: [R] bool, True for right responses.

  Returns:
    [D] bool, a new array.
  """
  solved = solved.copy()
  np.logical_or.at(solved, problem, right)
  return solved


def of_solved(solved: np.ndarray, kinds: Mapping[str, np.ndarray]) -> Row:
  """Computes the share of problems solved at least once so far.

  Args:
    solved: [D] bool, over all training problems.
    kinds: kind to the indices of its problems.

  Returns:
    'solve_rate', and 'solve_rate/<kind>' if there are several kinds.
  """
  row = {'solve_rate': float(solved.mean())}
  if len(kinds) > 1:
    row.update((f'solve_rate/{kind}', float(solved[of_kind].mean()))
               for kind, of_kind in kinds.items())
  return row


def records(
    step: int, responses: Responses, verdicts: Sequence[Verdict], ask: Ask,
    wave: Table) -> list[list[dict[str, Any]]]:
  """Returns one record per response, by group, in the format of samples.jsonl.
  """
  rows = [
      dict(step=step, group=int(group), sample=int(sample),
           problem_id=problem.id, kind=problem.kind, prompt=problem.prompt,
           reference=problem.reference, response=text, reward=verdict.reward,
           verdict=verdict.kind, detail=verdict.detail)
      for group, sample, problem, text, verdict in zip(
          wave.group, wave.sample, responses.asked.problem(), responses.texts,
          verdicts)]
  ends = np.cumsum(ask.count)
  return [rows[end - count:end] for end, count in zip(ends, ask.count)]


def chosen(
    groups: Sequence[list[dict[str, Any]]], count: int, step: int,
) -> list[dict[str, Any]]:
  """Returns the records of some groups, drawn anew in each step.

  Args:
    groups: from `records`.
    count: number of groups; all if there are fewer.
    step: seeds the draw.
  """
  order = np.random.default_rng(step).permutation(len(groups))[:count]
  return [record for i in sorted(order) for record in groups[i]]
