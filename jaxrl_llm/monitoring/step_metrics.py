"""Metrics of a step's rollouts and updates."""

import collections
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.host import build
from jaxrl_llm.host.buffer import Wave
from jaxrl_llm.host.rollout import Judged
from jaxrl_llm.rewards import plain
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.types import GroupRequests, Picked, Probe, Table

Row = dict[str, float]


class Report(NamedTuple):
  """Outputs of a step other than its state.

  Attributes:
    row: metrics of the step.
    records: one per response of some groups, in the format of `samples.jsonl`.
    sample: record of the wave's first response, if there is one, with the
      problem alone as its prompt.
    tokens: number of sampled response tokens.
    flops: model FLOPs by phase.
  """
  row: Row
  records: list[dict[str, Any]]
  sample: list[dict[str, Any]]
  tokens: int
  flops: dict[str, float]


def report(
    parts: build.Parts, wave: Wave, *, step: int, solved: np.ndarray,
    updates: Sequence[Mapping[str, np.ndarray]],
    measured: Mapping[str, np.ndarray], flops: dict[str, float],
    trained: Table) -> Report:
  """Collects the report of a step.

  Args:
    parts: kinds of problems, processes, and the number of groups to record.
    wave: what the step sampled.
    step: number of the step, counted from 1.
    solved: [D] bool, training problems solved so far.
    updates: metrics of each optimiser step.
    measured: other metrics, of advantages, stages and rounds.
    flops: model FLOPs by phase.
    trained: rows after the step's rounds.
  """
  table = wave.rows.table
  row = {
      **of_rollouts(
          table, wave.ask, wave.signal.gain, wave.judged.kind,
          wave.judged.use),
      **{name: float(value) for name, value in measured.items()},
      **of_solved(solved, parts.kinds), **of_turns(wave.judged),
      **of_updates(updates)}
  first = np.arange(min(len(table.group), 1))
  # In one call, for which the processes wait once.
  written = records(step, wave, np.concatenate([
      first, chosen(wave.ask, parts.config.log.samples, step)]),
                    trained, parts.processes)
  shown = [{**record, 'prompt': problem.shown} for record, problem in zip(
      written[:len(first)], wave.responses.call.problem())]
  return Report(
      row, written[len(first):], shown, int(table.generated.sum()), flops)


def of_rollouts(
    wave: Table, ask: GroupRequests, gain: np.ndarray, verdicts: Sequence[str],
    use: Mapping[str, int]) -> Row:
  """Computes the metrics of a step's responses.

  Args:
    wave: R rows of the table.
    ask: P groups that they belong to.
    gain: [P], sum of |advantage| of each complete group, else NaN.
    verdicts: R kinds of verdicts.
    use: 'busy' decode slots and all 'slots', summed over the decode steps.

  Returns:
    reward/mean and reward/std (over valid probe rows, an unbiased sample);
    reward/group_std (mean over groups); reward/no_signal (share of complete
    groups whose advantages are all 0); reward/signal (sum of |advantage| over
    complete groups); response/count; response/length and response/length_max
    (tokens); response/truncated (share); response/entropy (nats per token, at
    sampling time); sampler/slot_use; verdict/<kind> (share of each kind). NaN
    where there is nothing to average.
  """
  # A group that goes on was chosen by its first rewards: without `probe`, means
  # would be of the problems that the curriculum likes.
  good = wave.valid & wave.probe
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
      'response/length': _mean(wave.generated),
      'response/length_max': wave.generated.max(initial=0),
      'response/truncated': _mean(wave.truncated),
      'response/entropy': (
          np.average(wave.entropy, weights=wave.generated)
          if wave.generated.any() else np.nan),
      'sampler/slot_use': use['busy'] / max(use['slots'], 1),
  }
  for kind, count in sorted(collections.Counter(verdicts).items()):
    row[f'verdict/{kind}'] = count / len(verdicts)
  return {name: float(value) for name, value in row.items()}


def of_turns(judged: Judged) -> Row:
  """Computes the metrics of trajectories; {} without an environment.

  Args:
    judged: facts about R trajectories.

  Returns:
    turns/count (mean turns of the model); turns/observed (mean tokens of
    observations); turns/waited (share of the seconds in which the environment
    was at work and no response was sampled).
  """
  if judged.turns is None:
    return {}
  return {'turns/count': float(_mean(judged.turns)),
          'turns/observed': float(_mean(judged.observed)),
          'turns/waited': judged.waited}


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
  rows = wave.valid & wave.probe & (wave.generated > 0)
  if not rows.any():
    return Probe(np.nan, np.nan, policy_step)
  return Probe(
      float(wave.reward[rows].mean()), float(wave.entropy[rows].mean()),
      policy_step)


def of_rounds(picked: Sequence[Picked], table: Table, held: int) -> Row:
  """Computes the metrics of a step's train batches.

  Args:
    picked: rows of each round.
    table: they are rows of it.
    held: rows held for later steps.

  Returns:
    batch/rounds; batch/rows (rows trained on, over all rounds). Over these
    rows, NaN without one: batch/reward (mean); batch/staleness (mean) and
    batch/staleness_max; batch/age and batch/usage (means); batch/replayed
    (share of rows from earlier rounds). batch/held.
  """
  nothing = Picked(*[np.zeros(0)] * len(Picked._fields))
  rows, late, age, usage = map(np.concatenate, zip(nothing, *picked))
  return {
      'batch/rounds': len(picked), 'batch/rows': len(rows),
      'batch/reward': float(_mean(table.reward[rows.astype(int)])),
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
    step: int, wave: Wave, rows: np.ndarray, trained: Table,
    processes: Processes) -> list[dict[str, Any]]:
  """Returns the record of each of these rows, in the format of samples.jsonl.

  Its `used` is the number of rounds that have trained on it, None before the
  round of its group.

  Args:
    step: number of the step.
    wave: R responses.
    rows: [K] which rows.
    trained: rows after the step's rounds.
    processes: who holds which rows; all must call this.
  """
  responses, table = wave.responses, wave.rows.table
  problems = responses.call.problem()
  place = {row: i for i, row in enumerate(responses.rows.tolist())}
  begun = np.flatnonzero(
      (trained.round >= 0) & np.isin(trained.group, table.group[rows]))
  used = {
      (trained.group[row], trained.sample[row]): trained.usage[row]
      for row in begun}
  mine = []
  for row in rows.tolist():
    if processes.leads and row in place:
      problem = problems[row]
      verdict = wave.judged.verdicts[place[row]]
      mine.append(plain.json(dict(
          step=step, group=table.group[row], sample=table.sample[row],
          problem_id=problem.id, kind=problem.kind, prompt=problem.prompt,
          reference=problem.reference, response=responses.texts[place[row]],
          reward=verdict.reward, verdict=verdict.kind, detail=verdict.detail,
          **({'turns': responses.turns[place[row]]} if responses.turns else {}),
          used=used.get((table.group[row], table.sample[row])))))
  every, _ = processes.gather_rows(responses.shard[rows], mine)
  return every


def chosen(ask: GroupRequests, groups: int, step: int) -> np.ndarray:
  """Returns the rows of some groups, drawn anew in each step.

  Args:
    ask: P groups.
    groups: number of groups; all if there are fewer.
    step: seeds the draw.

  Returns:
    [K] row numbers, ascending.
  """
  order = np.random.default_rng(step).permutation(len(ask.count))[:groups]
  return np.flatnonzero(
      np.isin(np.repeat(np.arange(len(ask.count)), ask.count), order))
