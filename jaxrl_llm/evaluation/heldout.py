"""Evaluation on the held-out problems during training."""

import collections
from typing import Any, Sequence

from absl import logging
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import tasks
from jaxrl_llm.base import phases
from jaxrl_llm.evaluation import estimators, responses
from jaxrl_llm.loop import rollout
from jaxrl_llm.prepare import build
from jaxrl_llm.sampling.logits import SamplingParams

# Number of the noise of all evaluations, so that two of them differ by their
# parameters alone. No training step has it.
NOISE = 1 << 30
_LONG = 20  # as many responses as those of this many steps


def solve(
    parts: build.Parts, params: Any, problems: Sequence[tasks.Problem], *,
    samples: int, sampling: SamplingParams, step: int = 0,
    phase: phases.Phase | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """Samples and verifies responses to problems.

  Args:
    parts: task, sampler and processes.
    params: sampling parameters on device.
    problems: P problems.
    samples: N, responses to each problem.
    sampling: temperature and truncation.
    step: steps of the run behind the parameters.
    phase: counts the responses.

  Returns:
    [P, N] float rewards, NaN where verification failed; [P, N] answers, texts;
    and the rewards [P, N] of each of several functions, by its name.
  """
  score, failed, failures = np.zeros((len(problems), samples)), None, 0
  answers = np.full(score.shape, '', object)
  rewards = collections.defaultdict(lambda: np.full(score.shape, np.nan))
  for call in responses.draw(
      parts, responses.ResponseSource(params, sampling, NOISE, step), problems,
      [range(samples)] * len(problems), phase=phase):
    score[call.problem, call.sample] = call.judged.reward
    if 'error' in call.judged.kind:
      failed = failed or call
      failures += call.judged.kind.count('error')
    for name, values in call.judged.rewards.items():
      rewards[name][call.problem, call.sample] = values
    answers[call.problem, call.sample] = np.array(call.judged.answer, object)
  if failed:
    _warn_of_failures(failed, failures, score.size, step)
  return score, answers, {**rewards}


def _warn_of_failures(
    call: responses.JudgedCall, failures: int, count: int, step: int) -> None:
  """Warns of responses to held-out problems on which the verifier failed.

  Args:
    call: the first with one.
    failures: their number.
    count: responses.
    step: steps of the run before.

  Raises:
    VerifierError: these are all responses before the first step; in every
      process.
  """
  if failures == count and not step:
    rollout.Unrewarded().check(call.judged, call.responses, step)
  said = [v.blame or v.detail  # of those judged in this process
          for v in call.judged.verdicts if v.kind == 'error']
  logging.warning(
      'The verifier failed on %d of %d responses to held-out problems, which '
      'are left out%s.', failures, count, f': {said[0]}' if said else '')


def evaluate(
    parts: build.Parts, params: Any, step: int = 0) -> dict[str, float]:
  """Evaluates parameters on the task's held-out problems.

  Args:
    parts: task, sampler and processes. Its config.eval sets the number of
      problems and samples, and the values of k.
    params: sampling parameters on device.
    step: steps of the run behind them.

  Returns:
    `estimators.estimate` of the sampled responses and of one greedy response to
    each problem; where the problems are of several files, also of each file's,
    under its name: 'NAME/pass@1'. As in training, a response whose verification
    failed is left out, so its problem has one sample less.
  """
  cfg = parts.config.eval
  problems = spread(parts.task.heldout, cfg.problems)
  with phases.phase('evaluation', len(problems) * (cfg.samples + 1),
                    'responses') as phase:
    score, answers, rewards = solve(
        parts, params, problems, samples=cfg.samples,
        sampling=parts.sampling(), step=step, phase=phase)
    greedy, *_ = solve(
        parts, params, problems, samples=1,
        sampling=parts.sampling(temperature=0.0), step=step, phase=phase)
  sets = {'': [*range(len(problems))], **{
      f'{name}/': rows for name, rows in by_source(problems).items() if name}}
  return {
      f'{prefix}{key}': value for prefix, rows in sets.items()
      for key, value in estimators.estimate(
          score[rows], cfg.k, greedy=greedy[rows, 0],
          answers=answers[rows], rewards={
              of: values[rows] for of, values in rewards.items()}).items()}


def size(config: ConfigDict, problems: Sequence[tasks.Problem]) -> str:
  """Returns a line on the size of evaluations that take long, else ''."""
  count = len(spread(problems, config.eval.problems))
  responses = count * (config.eval.samples + 1)
  steps = responses // (config.prompts_per_step * config.samples_per_prompt)
  if steps < _LONG:
    return ''
  return (
      f'Each evaluation, the first before step 1, samples {responses:,} '
      f'responses to {count:,} held-out problems, as many as {steps:,} steps: '
      'lower eval.problems or eval.samples if it takes too long.')


def by_source(problems: Sequence[tasks.Problem]) -> dict[str, list[int]]:
  """Returns the indices of the problems of each file, by its name.

  The name is '' where there is one file, or none.
  """
  found: dict[str, list[int]] = {}
  for index, problem in enumerate(problems):
    found.setdefault(getattr(problem, 'source', ''), []).append(index)
  return found


def spread(
    problems: Sequence[tasks.Problem], count: int) -> Sequence[tasks.Problem]:
  """Selects `count` evenly spaced problems; 0 selects all."""
  if not 0 < count < len(problems):
    return problems
  return [problems[i * len(problems) // count] for i in range(count)]
