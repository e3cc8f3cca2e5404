"""Evaluation on the held-out problems, in the course of training."""

from typing import Any, Sequence

import jax
import numpy as np

from jaxrl_llm import experiment, tasks
from jaxrl_llm.evaluation import estimators, responses
from jaxrl_llm.sampling.logits import SamplingParams


def noise_key(parts: experiment.Parts) -> jax.Array:
  """Returns the key of every evaluation, which no step of training has."""
  return parts.step_key(parts.replicate(np.uint32(1 << 30)))


def solve(
    parts: experiment.Parts, params: Any, problems: Sequence[tasks.Problem], *,
    samples: int, sampling: SamplingParams,
) -> tuple[np.ndarray, list[list[str]]]:
  """Samples and verifies.

  Args:
    parts: of the run.
    params: sampling parameters on device.
    problems: P problems.
    samples: N responses to each.
    sampling: how to draw.

  Returns:
    [P, N] float rewards, NaN where verification failed; and [P][N] answers.
  """
  score = np.zeros((len(problems), samples))
  answers = [[''] * samples for _ in problems]
  for call in responses.draw(
      parts, params, problems, [range(samples)] * len(problems),
      sampling=sampling, key=noise_key(parts)):
    for p, s, verdict in zip(call.problem, call.sample, call.verdicts):
      score[p, s] = verdict.reward if verdict.valid else np.nan
      answers[p][s] = verdict.answer
  return score, answers


def evaluate(parts: experiment.Parts, params: Any) -> dict[str, float]:
  """Evaluates parameters on the task's held-out problems.

  Args:
    parts: of the run; its config.eval says how many problems and samples, and
      which k.
    params: sampling parameters on device.

  Returns:
    `estimators.estimate` of the responses, and of a greedy response to each
    problem. A response whose verification failed leaves its problem with a
    sample less, as in training.
  """
  cfg = parts.config.eval
  problems = spread(parts.task.heldout, cfg.problems)
  score, answers = solve(
      parts, params, problems, samples=cfg.samples, sampling=parts.sampling())
  greedy, _ = solve(
      parts, params, problems, samples=1,
      sampling=parts.sampling(temperature=0.0))
  return estimators.estimate(
      score, cfg.k, greedy=greedy[:, 0], answers=answers)


def spread(
    problems: Sequence[tasks.Problem], count: int) -> Sequence[tasks.Problem]:
  """Takes `count` problems evenly from all of them; 0 is all."""
  if not 0 < count < len(problems):
    return problems
  return [problems[i * len(problems) // count] for i in range(count)]
