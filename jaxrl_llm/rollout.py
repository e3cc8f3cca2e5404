"""From problems to judged responses: encode, sample, decode, verify.

Training and evaluation sample in the same way. What is on the host is NumPy.
Requests of one prompt are neighbours.
"""

from typing import Any, Callable, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import programs, rewards, sharding, tasks
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.tokenizer import Tokenizer
from jaxrl_llm.types import Ask, Prompts, Requests, Rollouts


class Asked(NamedTuple):
  """Requests to the sampler, and the problems that they are about.

  Attributes:
    problems: P of them.
    prompts: their prompts, [P, L].
    requests: R of them.
  """
  problems: Sequence[tasks.Problem]
  prompts: Prompts
  requests: Requests

  def problem(self) -> list[tasks.Problem]:
    """Returns the problem of each request."""
    return [self.problems[i] for i in self.requests.prompt]


class Responses(NamedTuple):
  """Responses of one call of the sampler.

  Attributes:
    asked: what they respond to.
    rollouts: R of them, in the order of the requests.
    texts: R of them, without the stop token.
    use: how busy the sampler was, see `host_sampler`.
  """
  asked: Asked
  rollouts: Rollouts
  texts: list[str]
  use: dict[str, int]


def encode(
    problems: Sequence[tasks.Problem], tokenizer: Tokenizer,
    max_prompt: int) -> Prompts:
  """Tokenises problems into right-padded rows.

  Args:
    problems: P of them.
    tokenizer: of the task.
    max_prompt: L, columns of the result.

  Returns:
    Prompts of NumPy arrays.

  Raises:
    ValueError: a prompt has no token or more than `max_prompt`.
  """
  tokens = np.zeros((len(problems), max_prompt), np.int32)
  length = np.zeros(len(problems), np.int32)
  for row, problem in enumerate(problems):
    ids = tokenizer.encode(problem.prompt)
    if not 1 <= len(ids) <= max_prompt:
      raise ValueError(
          f'The prompt of problem {problem.id} has {len(ids)} tokens, outside '
          f'1 to max_prompt={max_prompt}: raise config.max_prompt or leave the '
          'problem out.')
    tokens[row, :len(ids)] = ids
    length[row] = len(ids)
  ids = np.array([problem.id for problem in problems], np.int32)
  return Prompts(tokens=tokens, length=length, problem_id=ids)


def requests(prompt: np.ndarray, sample: np.ndarray, budget: int) -> Requests:
  """Makes requests with one budget.

  Args:
    prompt: [R] row of the prompt.
    sample: [R] number of the sample within its group.
    budget: response tokens allowed to each.

  Returns:
    Requests of NumPy arrays.
  """
  return Requests(
      prompt=np.asarray(prompt, np.int32), sample=np.asarray(sample, np.int32),
      budget=np.full(len(prompt), budget, np.int32))


def requests_of(
    ask: Ask, *, problems: int, samples: int, budget: int) -> Requests:
  """Makes the requests of a wave, those of a group together.

  A group is a visit to its problem: visit v is its (v + 1)-th group in the data
  order. Its sample j has the number v * n + j among the problem's samples, so
  that no two samples of a run share their noise.

  Args:
    ask: P groups; entry p is row p of the prompts.
    problems: D, size of the training set.
    samples: n.
    budget: response tokens allowed to each.

  Returns:
    Requests of NumPy arrays.
  """
  row = np.repeat(np.arange(len(ask.group)), ask.count)
  within = np.arange(len(row)) - np.repeat(
      np.cumsum(ask.count) - ask.count, ask.count)
  number = (ask.group // problems * samples + ask.first)[row] + within
  return requests(row, number, budget)


def decode(rollouts: Rollouts, tokenizer: Tokenizer) -> list[str]:
  """Decodes each response, without the stop token that ended it."""
  ends = rollouts.length - ~rollouts.truncated
  return [
      tokenizer.decode(row[:end].tolist())
      for row, end in zip(rollouts.tokens, ends)]


def host_sampler(
    made: programs.Sampler, mesh: jax.sharding.Mesh,
) -> Callable[..., tuple[Rollouts, dict[str, int]]]:
  """Makes the sampler of a run, from host to host.

  Args:
    made: the device program, at the sizes of one training step.
    mesh: see `sharding`.

  Returns:
    (params, prompts, requests, key, sampling, policy_step) -> (rollouts,
    counts). At most `made.max_prompts` prompts and `made.max_requests`
    requests, all NumPy but `params`, `key` and `sampling`. Rollouts are NumPy
    arrays in the order of the requests. Counts are decode 'steps', and 'busy'
    and 'slots', each summed over the steps and shards. One program serves every
    mix of requests.
  """
  shards, slots = sharding.data_shards(mesh), made.sampler.slots
  split, whole = sharding.rows(mesh), sharding.replicated(mesh)

  def sample(params, prompts, requests, key, sampling, policy_step):
    plan = plan_lib.plan(
        prompts, requests, shards=shards,
        requests_per_shard=made.requests_per_shard,
        prompts_per_shard=made.prompts_per_shard)
    rollouts, stats = made.generate(
        params, *jax.device_put(
            (plan.prompts, plan.requests, plan.count), split),
        key, sampling, jax.device_put(np.int32(policy_step), whole))
    rollouts, stats = jax.device_get((rollouts, stats))
    counts = dict(
        steps=int(stats.steps.max()), busy=int(stats.busy.sum()),
        slots=int(stats.steps.sum()) * slots)
    return plan_lib.undo(rollouts, plan), counts

  return sample


def respond(
    sample: Callable[..., tuple[Rollouts, dict[str, int]]], params: Any,
    asked: Asked, key: jax.Array, sampling: SamplingParams, *,
    tokenizer: Tokenizer, policy_step: int = 0) -> Responses:
  """Samples responses and decodes them.

  Args:
    sample: from `host_sampler`.
    params: sampling parameters on device.
    asked: prompts and requests.
    key: PRNG key; the same key gives the same responses.
    sampling: how to draw.
    tokenizer: of the task.
    policy_step: optimiser steps behind `params`, recorded with the rollouts.
  """
  rollouts, use = sample(
      params, asked.prompts, asked.requests, key, sampling,
      policy_step=policy_step)
  return Responses(asked, rollouts, decode(rollouts, tokenizer), use)


def submit(
    task: tasks.Task, responses: Responses,
) -> Callable[[], list[rewards.Verdict]]:
  """Starts to judge responses; see `rewards.submit`.

  Returns:
    A function that waits for the verdicts, one per response in their order.
  """
  return rewards.submit(
      task, responses.asked.problem(), responses.texts,
      responses.rollouts.truncated)
