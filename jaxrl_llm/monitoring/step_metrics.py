"""Metrics of a step's rollouts and updates."""

import collections
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.rewards import Verdict
from jaxrl_llm.rollout import Responses
from jaxrl_llm.types import Rollouts

Row = dict[str, float]


class Report(NamedTuple):
  """Outputs of a step other than its state.

  Attributes:
    row: metrics of the step.
    records: one per response, in the format of `samples.jsonl`.
    tokens: number of sampled response tokens.
    flops: model FLOPs by phase.
  """
  row: Row
  records: list[dict[str, Any]]
  tokens: int
  flops: dict[str, float]


def report(
    responses: Responses, verdicts: Sequence[Verdict],
    updates: Sequence[Mapping[str, np.ndarray]], *, step: int,
    rewards: np.ndarray, valid: np.ndarray, advantages: np.ndarray,
    measured: Mapping[str, np.ndarray], solved: np.ndarray,
    kinds: Mapping[str, np.ndarray], flops: dict[str, float]) -> Report:
  """Collects the report of a step.

  Args:
    responses: R = P * N responses.
    verdicts: R verdicts.
    updates: metrics of each optimiser step.
    step: number of the step, counted from 1.
    rewards: [P, N], from the verifier.
    valid: [P, N] bool, True if verification succeeded.
    advantages: [P, N].
    measured: metrics of the advantages.
    solved: [D] bool, training problems solved so far.
    kinds: kind to the indices of its problems.
    flops: model FLOPs by phase.
  """
  row = {
      **of_rollouts(
          responses.rollouts, rewards, valid, advantages,
          [v.kind for v in verdicts], responses.use),
      **{name: float(value) for name, value in measured.items()},
      **of_solved(solved, kinds),
      **of_updates(updates)}
  return Report(
      row, records(step, responses, verdicts),
      int(responses.rollouts.length.sum()), flops)


def of_rollouts(
    rollouts: Rollouts, rewards: np.ndarray, valid: np.ndarray,
    advantages: np.ndarray, verdicts: Sequence[str],
    use: Mapping[str, int]) -> Row:
  """Computes the metrics of a step's responses.

  Args:
    rollouts: R rollouts, NumPy arrays.
    rewards: [P, N], from the verifier.
    valid: [P, N] bool, True if verification succeeded.
    advantages: [P, N].
    verdicts: R kinds of verdicts.
    use: counts of the sampler; see `rollout.host_sampler`.

  Returns:
    reward/mean and reward/std (over valid responses); reward/group_std (mean
    over groups); reward/no_signal (share of groups whose advantages are all 0);
    response/length and response/length_max (tokens); response/truncated
    (share); response/entropy (nats per token, at sampling time);
    sampler/slot_use; verdict/<kind> (share of each kind).
  """
  good = rewards[valid]
  real = np.arange(rollouts.tokens.shape[1]) < rollouts.length[:, None]
  spread = [r[v].std() for r, v in zip(rewards, valid) if v.any()]
  row = {
      'reward/mean': good.mean() if good.size else np.nan,
      'reward/std': good.std() if good.size else np.nan,
      'reward/group_std': np.mean(spread) if spread else np.nan,
      'reward/no_signal': (advantages == 0.0).all(1).mean(),
      'response/length': rollouts.length.mean(),
      'response/length_max': rollouts.length.max(),
      'response/truncated': rollouts.truncated.mean(),
      'response/entropy': rollouts.entropy[real].mean(),
      'sampler/slot_use': use['busy'] / max(use['slots'], 1),
  }
  for kind, count in sorted(collections.Counter(verdicts).items()):
    row[f'verdict/{kind}'] = count / len(verdicts)
  return {name: float(value) for name, value in row.items()}


def of_updates(updates: Sequence[Mapping[str, np.ndarray]]) -> Row:
  """Combines the metrics of a step's updates, with the prefix 'update/'.

  'tokens' is summed. Names that end in '_max' take the maximum. Counters and
  the learning rate take the last value. All others are means weighted by
  tokens, NaN if there are no tokens.
  """
  row = {}
  tokens = np.array([float(update['tokens']) for update in updates])
  for name in updates[0] if updates else ():
    values = [float(update[name]) for update in updates]
    if name in ('skipped', 'skipped_in_row', 'learning_rate'):
      value = values[-1]
    elif name == 'tokens':
      value = sum(values)
    elif name.endswith('_max'):
      value = max(values)
    else:
      value = (float(np.average(values, weights=tokens)) if tokens.any()
               else np.nan)
    row[f'update/{name}'] = value
  return row


def solve(
    solved: np.ndarray, picked: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Marks the problems that a step has solved.

  Args:
    solved: [D] bool, problems solved before.
    picked: [P] index of each group's problem; repeats are allowed.
    right: [P, N] bool, True for right responses.

  Returns:
    [D] bool, a new array.
  """
  solved = solved.copy()
  np.logical_or.at(solved, picked, right.any(1))
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
    step: int, responses: Responses, verdicts: Sequence[Verdict],
) -> list[dict[str, Any]]:
  """Returns one record per response, in the format of `samples.jsonl`."""
  return [
      dict(step=step, problem_id=problem.id, kind=problem.kind,
           prompt=problem.prompt, response=text, reward=verdict.reward,
           verdict=verdict.kind, detail=verdict.detail)
      for problem, text, verdict in zip(
          responses.asked.problem(), responses.texts, verdicts)]
