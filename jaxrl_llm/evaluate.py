"""Held-out evaluation: mean@n, unbiased pass@k with standard errors, greedy.

  python -m jaxrl_llm.evaluate --config=configs/countdown.py \
      --config.workdir=runs/countdown

evaluates the best checkpoint of a run (`--checkpoint=last` for the last one)
and writes `evaluation.json` beside it.
"""

from typing import Any, Iterator, Sequence

import jax
import numpy as np

from jaxrl_llm import batching, rewards
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.types import Requests


def pass_at_k(n: int, correct: np.ndarray, k: int) -> np.ndarray:
  """Unbiased estimate of pass@k, 1 - C(n-c, k) / C(n, k), without factorials.

  Args:
    n: samples per problem.
    correct: [P] int, how many of them are right.
    k: 1 to n.

  Returns:
    [P] float64.
  """
  j = np.arange(k)
  misses = np.clip((n - correct[:, None] - j) / (n - j), 0.0, None)
  return 1.0 - misses.prod(-1)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
  """Mean and its standard error over problems [P]; error 0 for one problem."""
  error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
  return float(values.mean()), float(error)


def calls(
    problems: int, samples: int, *, max_prompts: int, max_requests: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Cuts problems x samples into calls that fit the compiled sampler.

  Yields:
    (problem, sample) index pairs, two int arrays of equal length: at most
    `max_requests` pairs with at most `max_prompts` distinct problems.
  """
  problem = np.repeat(np.arange(problems), samples)
  sample = np.tile(np.arange(samples), problems)
  start = 0
  while start < len(problem):
    stop = min(start + max_requests, len(problem))
    too_far = problem[start:stop] >= problem[start] + max_prompts
    if too_far.any():
      stop = start + int(too_far.argmax())
    yield problem[start:stop], sample[start:stop]
    start = stop


def solve(
    parts, params: Any, problems: Sequence, *, samples: int,
    sampling: SamplingParams, key: jax.Array,
) -> tuple[np.ndarray, dict[str, int]]:
  """Samples and verifies.

  Args:
    parts: experiment.Parts.
    params: sampling parameters on device.
    problems: P problems.
    samples: N responses for each.
    sampling: how to draw.
    key: PRNG key; the same key gives the same responses.

  Returns:
    [P, N] float rewards, NaN where verification failed, and the number of
    responses by kind of verdict.
  """
  score = np.zeros((len(problems), samples))
  kinds: dict[str, int] = {}
  config = parts.config
  for problem, sample in calls(
      len(problems), samples, max_prompts=config.prompts_per_step,
      max_requests=config.prompts_per_step * config.samples_per_prompt):
    rows, local = np.unique(problem, return_inverse=True)
    chosen = [problems[i] for i in rows]
    prompts = batching.encode(
        chosen, parts.task.tokenizer, config.max_prompt)
    requests = Requests(
        prompt=local.astype(np.int32), sample=sample.astype(np.int32),
        budget=np.full(len(local), config.max_response, np.int32))
    rollouts, _ = parts.sample(
        params, prompts, requests, key, sampling, policy_step=0)
    verdicts = rewards.verify_all(
        parts.task, [chosen[i] for i in local],
        batching.texts(rollouts, parts.task.tokenizer), rollouts.truncated)
    for p, s, verdict in zip(problem, sample, verdicts):
      score[p, s] = verdict.reward if verdict.valid else np.nan
      kinds[verdict.kind] = kinds.get(verdict.kind, 0) + 1
  return score, kinds


def heldout(parts, params: Any) -> dict[str, float]:
  """Evaluates parameters on the task's held-out problems.

  Args:
    parts: experiment.Parts, whose config.eval says how many problems and
      samples, and which k.
    params: sampling parameters on device.

  Returns:
    'pass@k' for each k, 'mean' (reward) and 'greedy', each with its standard
    error over problems under '<name>_error'. A response counts as correct
    when its reward is at least 1; one whose verification failed leaves its
    problem with a sample less, as in training.
  """
  cfg = parts.config.eval
  problems = spread(parts.task.heldout, cfg.problems)
  key = jax.random.fold_in(jax.random.key(parts.config.seed), 1 << 30)
  score, _ = solve(
      parts, params, problems, samples=cfg.samples,
      sampling=parts.sampling(), key=key)
  greedy, _ = solve(
      parts, params, problems, samples=1,
      sampling=parts.sampling(temperature=0.0), key=key)
  return figures(score, greedy[:, 0], cfg.k)


def spread(problems: Sequence, count: int) -> Sequence:
  """`count` problems taken evenly from all of them; 0 is all."""
  if not 0 < count < len(problems):
    return problems
  return [problems[i * len(problems) // count] for i in range(count)]


def figures(
    score: np.ndarray, greedy: np.ndarray, ks: Sequence[int],
) -> dict[str, float]:
  """Turns rewards [P, N] and greedy rewards [P] into `heldout`'s figures."""
  out: dict[str, float] = {}

  def put(name, values):
    values = values[~np.isnan(values)]
    if len(values):
      out[name], out[name + '_error'] = mean_and_error(values)

  valid = ~np.isnan(score)
  n, correct = valid.sum(1), (score >= 1.0).sum(1)
  for k in ks:
    enough = n >= k
    put(f'pass@{k}', np.array([
        pass_at_k(int(n[i]), correct[i:i + 1], k)[0]
        for i in np.flatnonzero(enough)]))
  put('greedy', np.where(np.isnan(greedy), np.nan, greedy >= 1.0))
  put('mean', np.nanmean(score[n > 0], axis=1))
  return out
