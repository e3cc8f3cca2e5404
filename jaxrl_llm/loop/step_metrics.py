"""Metrics of a step's rollouts and updates.

Where responses are carried over, those under `reward` are of the groups that
leave, and the others of the responses that end in the step.

Metrics:
  reward/mean [reward]: mean over the valid probe rows, an unbiased sample
  reward/std [reward]: standard deviation over the same rows
  reward/group_std [reward]: standard deviation within a group, mean over groups
  reward/no_signal [share]: complete groups whose advantages are all 0
  reward/signal [advantage]: sum of |advantage| over complete groups
  response/count [responses]: that ended in the step
  response/length [tokens]: mean length, stop token included
  response/length_max [tokens]: the longest
  response/truncated [share]: responses that reached max_response without an end
  response/entropy [nats per token]: entropy of the sampling distribution
  sampler/slot_use [share]: decode slots that held a response, mean over decode
    steps
  sampler/steps [steps]: decode steps, of the busiest data shard, all turns
  sampler/temperature [divisor]: of the logits, where sampling.temperature is a
    schedule
  verdict/<kind> [share]: responses with this kind of verdict
  rewards/<function> [reward]: mean over the valid probe rows that the function
    counts; with a reward model, also of its score, model, and of the verifier
  logged/<name> [as the function has it]: a number of log_metric, mean over rows
  turns/count [turns]: of the model in a trajectory, mean
  turns/observed [tokens]: of observations in a trajectory, mean
  turns/waited [share]: of the seconds of sampling in which the environment was
    at work and nothing was sampled
  batch/rounds [rounds]: train batches of the step
  batch/rows [rows]: rows trained on, over all rounds
  batch/reward [reward]: mean over the rows trained on
  batch/staleness [optimiser steps]: between the sampling of a row and its
    round, mean
  batch/staleness_max [optimiser steps]: the same, the most
  batch/age [rounds]: since the row's own round, mean
  batch/usage [rounds]: that had trained on the row before, mean
  batch/replayed [share]: rows trained on that are of earlier rounds
  batch/held [rows]: held for later steps
  solve_rate [share]: training problems solved at least once so far
  solve_rate/<kind> [share]: the same of one kind of problem, where there are
    several
"""

import collections
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.base import plain, schedules
from jaxrl_llm.base.tokenizer import characters
from jaxrl_llm.learner.options import POLICY, TEACHER
from jaxrl_llm.loop import flops, rollout
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.loop.rollout import Judged
from jaxrl_llm.loop.rows import Wave
from jaxrl_llm.loop.state import RunState
from jaxrl_llm.types import GroupRequests, Picked, Probe, Table

Row = dict[str, float]
_TOKENS = 4096  # of a step's records that have values, all responses together


class Report(NamedTuple):
  """Outputs of a step other than its state.

  Attributes:
    row: metrics of the step.
    records: one per response of some groups, in the format of `samples.jsonl`.
    sample: record of the wave's first response, if there is one, with the
      problem alone as its prompt.
    tokens: number of response tokens that were sampled.
    flops: model FLOPs by phase.
  """
  row: Row
  records: list[dict[str, Any]]
  sample: list[dict[str, Any]]
  tokens: int
  flops: dict[str, float]


def report(
    parts: Parts, wave: Wave, state: RunState, *,
    updates: Sequence[Mapping[str, np.ndarray]],
    measured: Mapping[str, float], trained: Table, picked: Sequence[Picked],
    frozen: bool) -> Report:
  """Collects the report of a step.

  Args:
    parts: kinds of problems, processes, and the number of groups to record.
    wave: what the step sampled, with its old log-probs.
    state: after the step.
    updates: metrics of each optimiser step.
    measured: metrics of the advantages and the stages.
    trained: rows after the step's rounds.
    picked: rows of each round.
    frozen: whether some parameters of the policy are not trained.
  """
  table, settings, step = wave.rows.table, parts.stages.settings, state.step
  leaving, tokens = (table, wave.ask), int(table.generated.sum())
  prompts = wave.responses.call.prompts.length
  sampled = (prompts, prompts[wave.responses.call.requests.prompt],
             wave.judged.length)
  if carried := wave.carried:
    leaving, sampled = (carried.rows.table, carried.ask), carried.sampled
    tokens = int(wave.judged.use['busy'])
  measured = {**measured, **of_rounds(
      picked, trained, int((state.buffer.table.group >= 0).sum()))}
  if 'temperature' in parts.stages.needs.columns:
    measured['sampler/temperature'] = schedules.at(
        settings.temperature, step - 1)
  row = {
      **of_rewards(*leaving, wave.signal.gain),
      **of_rollouts(table, wave.judged.kind, wave.judged.use),
      **of_functions(table, wave.judged.rewards, wave.judged.logged),
      **{name: float(value) for name, value in measured.items()},
      **of_solved(state.solved, parts.kinds), **of_turns(wave.judged),
      **of_updates(updates)}
  computed = [rows for rows, *_ in picked]
  if settings.skips_zero:
    zero = trained.without_advantage
    computed = [rows[~zero[rows]] for rows in computed]
  first = np.arange(min(len(table.group), 1))
  # In one call, for which the processes wait once.
  written = records(step, wave, np.concatenate([
      first, chosen(wave.ask, settings.records, step)]),
                    trained, parts)
  shown = [{**record, 'prompt': problem.shown} for record, problem in zip(
      written[:len(first)], wave.responses.call.problem())]
  writer, players = (
      parts.programs.rollout_sampler.player, parts.programs.players)
  passes = {writer: 3 * settings.actor_learns, TEACHER: 1,
            POLICY: (2 if frozen else 3) + (
                settings.teacher_prompt > 0 and TEACHER not in players)}
  return Report(
      row, written[len(first):], shown, tokens, flops.of_step(
          players[writer].model, sampled,
          [(trained.prompt_length[rows], trained.length[rows])
           for rows in computed],
          epochs=settings.epochs, passes=[
              (player.model, passes[name])
              for name, player in players.items() if name in passes]))


def of_rewards(wave: Table, ask: GroupRequests, gain: np.ndarray) -> Row:
  """Computes the metrics of rewards; NaN where there is nothing to average.

  Args:
    wave: R rows of the table.
    ask: P groups that they belong to.
    gain: [P], sum of |advantage| of each complete group, else NaN.

  Returns:
    The module's metrics under reward.
  """
  # A group that goes on was chosen by its first rewards: without `probe`, means
  # would be of the problems that the curriculum likes.
  good = wave.valid & wave.probe
  ends = np.cumsum(ask.count)[:-1]
  spread = [r[v].std() for r, v in zip(
      np.split(wave.reward, ends), np.split(good, ends)) if v.any()]
  return {name: float(value) for name, value in {
      'reward/mean': _mean(wave.reward[good]),
      'reward/std': wave.reward[good].std() if good.any() else np.nan,
      'reward/group_std': _mean(spread),
      'reward/no_signal': _mean(gain[~np.isnan(gain)] == 0.0),
      'reward/signal': np.nansum(gain)}.items()}


def of_rollouts(
    wave: Table, verdicts: Sequence[str], use: Mapping[str, int]) -> Row:
  """Computes the metrics of a step's responses.

  Args:
    wave: R rows of the table.
    verdicts: R kinds of verdicts.
    use: decode 'steps' of the busiest shard; 'busy' slots and all 'slots',
      summed over the decode steps.

  Returns:
    The module's metrics under response, sampler and verdict. NaN where there is
    nothing to average.
  """
  row = {
      'response/count': len(verdicts),
      'response/length': _mean(wave.generated),
      'response/length_max': wave.generated.max(initial=0),
      'response/truncated': _mean(wave.truncated),
      'response/entropy': (
          np.average(wave.entropy, weights=wave.generated)
          if wave.generated.any() else np.nan),
      'sampler/slot_use': use['busy'] / max(use['slots'], 1),
      'sampler/steps': float(use['steps']),
  }
  for kind, count in sorted(collections.Counter(verdicts).items()):
    row[f'verdict/{kind}'] = count / len(verdicts)
  return {name: float(value) for name, value in row.items()}


def of_turns(judged: Judged) -> Row:
  """Computes the metrics of trajectories; {} without an environment.

  Args:
    judged: facts about R trajectories.

  Returns:
    The module's metrics under turns.
  """
  if judged.played is None:
    return {}
  return {'turns/count': float(_mean(judged.played.count)),
          'turns/observed': float(_mean(judged.observed)),
          'turns/waited': judged.played.waited}


def of_functions(
    wave: Table, rewards: Mapping[str, np.ndarray],
    logged: Mapping[str, np.ndarray]) -> Row:
  """Computes the metrics of reward functions.

  Args:
    wave: R rows of the table.
    rewards: name of a function to its rewards [R]; NaN where it gave none.
    logged: name to numbers [R] for the metrics; NaN where there is none.

  Returns:
    The module's metrics under rewards and logged. NaN where there is nothing to
    average.
  """
  return {
      **{f'rewards/{name}': float(_mean(values[wave.probe & ~np.isnan(values)]))
         for name, values in rewards.items()},
      **{f'logged/{name}': float(_mean(values[~np.isnan(values)]))
         for name, values in logged.items()}}


def _mean(values: Any) -> float:
  """Returns the mean, NaN of nothing."""
  return np.mean(values) if len(values) else np.nan


def probe(wave: Table, policy_step: int, first_wave: int = -1) -> Probe:
  """Returns the means over a wave's valid probe rows.

  Args:
    wave: its rows of the table.
    policy_step: optimiser steps behind the policy, if the wave has no rows.
    first_wave: that of the result.
  """
  if len(wave.policy_step):
    policy_step = int(wave.policy_step[0])
  rows = wave.valid & wave.probe & (wave.generated > 0)
  if not rows.any():
    return Probe(np.nan, np.nan, policy_step, first_wave)
  return Probe(
      float(wave.reward[rows].mean()), float(wave.entropy[rows].mean()),
      policy_step, first_wave)


def of_rounds(picked: Sequence[Picked], table: Table, held: int) -> Row:
  """Computes the metrics of a step's train batches.

  Args:
    picked: rows of each round.
    table: they are rows of it.
    held: rows held for later steps.

  Returns:
    The module's metrics under batch. Means over no rows are NaN.
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

  'tokens', 'processed' and 'obrs_empty' are summed. Names that end in '_max'
  take the maximum. Counters and the learning rate take the last value. All
  others are means weighted by processed tokens, losses and norms by all tokens;
  NaN if there are none. The objective's own metrics are such means too, and
  have their names without a prefix.
  """
  row = {}
  weights = {name: np.array([float(update[name]) for update in updates])
             for name in ('tokens', 'processed')}

  def mean(values, by='processed'):
    return float(np.average(values, weights=weights[by])) if (
        weights[by].any()) else np.nan

  for name in updates[0] if updates else ():
    if name == 'objective':
      row.update({own: mean([update[name][own] for update in updates])
                  for own in updates[0][name]})
      continue
    values = [float(update[name]) for update in updates]
    if name in ('skipped', 'skipped_in_row', 'learning_rate'):
      value = values[-1]
    elif name in ('tokens', 'processed', 'obrs_empty'):
      value = sum(values)
    elif name.endswith('_max'):
      value = max(values) if weights['processed'].any() else np.nan
    elif name.endswith(('loss', 'grad_norm')):
      value = mean(values, 'tokens')
    else:
      value = mean(values)
    row[f'update/{name}'] = value
  return row


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
    parts: Parts) -> list[dict[str, Any]]:
  """Returns the record of each of these rows, in the format of samples.jsonl.

  Its `used` is the number of rounds that have trained on it, None before the
  round of its group, as `advantage` is. The first tokens of each response have
  values, see `token_values`.

  Args:
    step: number of the step.
    wave: R responses.
    rows: [K] which rows.
    trained: rows after the step's rounds.
    parts: tokeniser, config, and processes, all of which must call this.
  """
  responses, table = wave.responses, wave.rows.table
  problems, processes = responses.call.problem(), parts.processes
  place = {row: i for i, row in enumerate(responses.rows.tolist())}
  begun = np.flatnonzero(
      (trained.round >= 0) & np.isin(trained.group, table.group[rows]))
  known = {
      (trained.group[row], trained.sample[row]): (
          trained.usage[row], _rounded(trained.advantage[row]))
      for row in begun}
  mine = []
  for row in rows.tolist():
    if processes.leads and row in place:
      problem, text = problems[row], responses.texts[place[row]]
      verdict = wave.judged.verdicts[place[row]]
      used, advantage = known.get(
          (table.group[row], table.sample[row]), (None, None))
      mine.append(plain.json(dict(
          step=step, group=table.group[row], sample=table.sample[row],
          problem_id=problem.id, kind=problem.kind, prompt=problem.prompt,
          reference=problem.reference, response=text,
          reward=verdict.reward, verdict=verdict.kind, detail=verdict.detail,
          used=used, advantage=advantage, **_told(
              wave, row, place[row], parts, _TOKENS // len(rows)),
          **rollout.further(verdict))))
  every, _ = processes.gather_rows(responses.shard[rows], mine)
  return every


def _told(
    wave: Wave, row: int, place: int, parts: Parts,
    most: int) -> dict[str, Any]:
  """Returns the values of a response's tokens, or its turns with theirs.

  Args:
    wave, row, parts: those of `token_values`.
    place: of the row among those at home.
    most: first tokens of the model that have values.
  """
  responses = wave.responses
  rollouts, played = responses.rollouts, responses.played
  columns = np.arange(rollouts.length[row])
  if not played:
    return token_values(
        wave, row, columns[:most], responses.texts[place], parts)
  columns = columns[rollouts.generated[row, columns]][:most]
  turns, starts = played.turns[place], played.starts[place]
  return {'turns': [
      {**turn, **token_values(
          wave, row, columns[(start <= columns) & (columns < end)],
          turn['text'], parts)}
      for turn, start, end in zip(
          turns, starts, [*starts[1:], rollouts.tokens.shape[1]])]}


def token_values(
    wave: Wave, row: int, columns: np.ndarray, text: str,
    parts: Parts) -> dict[str, list[float]]:
  """Returns values of the first tokens of a response, or of a turn.

  Args:
    wave: R responses, with the old log-probs of those that were scored.
    row: number of the response.
    columns: of the tokens.
    text: what they and perhaps further ones spell.
    parts: tokeniser and config.

  Returns:
    token_chars, characters of the text that each token has written;
    token_logprobs, its behaviour log-prob; with rejection, token_acceptance,
    the probability to keep it under the policy at the step of the rollout, if
    that was computed. Empty if the tokeniser does not say what its tokens
    spell.
  """
  rollouts = wave.responses.rollouts
  chars = characters(
      parts.task.tokenizer, rollouts.tokens[row, columns].tolist(), text,
      parts.programs.model.vocab_size)
  if chars is None:
    return {}
  values = dict(token_chars=chars, token_logprobs=_rounded(
      rollouts.logprobs[row, columns]))
  tokens = wave.rows.tokens
  if tokens.old_logprobs is not None and (
      'identity' in parts.stages.needs.updated):
    old = tokens.old_logprobs[row, columns]
    if old.any():  # rows that were not scored are 0
      gap = old - tokens.behaviour_logprobs[row, columns] - np.log(
          parts.stages.settings.lam)
      values['token_acceptance'] = _rounded(np.exp(np.minimum(gap, 0.0)))
  return values


def _rounded(values: np.ndarray) -> Any:
  """Returns numbers with three digits after the point, which take less room."""
  return np.round(np.asarray(values, float), 3).tolist()


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
