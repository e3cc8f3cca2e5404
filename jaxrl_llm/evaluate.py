"""Held-out evaluation: mean@n, unbiased pass@k with standard errors, greedy.

  python -m jaxrl_llm.evaluate --config=runs/countdown/config.json

evaluates a checkpoint of the run in the config's workdir, prints a table and
writes `evaluation.json` there. Beside the fields of the config it takes

  --checkpoint=best    or last
  --samples=32         responses to each problem, short for eval.samples
  --k=1,8,16           of the pass@k to report, short for eval.k
"""

import json
import math
import pathlib
import sys
from typing import Any, Iterator, Mapping, Sequence

import jax
from ml_collections import ConfigDict
import numpy as np
import rich
from rich.table import Table

from jaxrl_llm import batching, checkpoint, experiment, rewards, warm_start
from jaxrl_llm import config as config_lib
from jaxrl_llm.ops import pkpo
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.types import Requests


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
  """Mean and its standard error over problems [P].

  The error is 0 for one problem; for none, both are NaN.
  """
  if not len(values):
    return np.nan, np.nan
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
  key = parts.step_key(parts.put(np.uint32(1 << 30)))  # of no step
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
    out[name], out[name + '_error'] = mean_and_error(
        values[~np.isnan(values)])

  valid = ~np.isnan(score)
  n, correct = valid.sum(1), (score >= 1.0).sum(1)
  for k in ks:
    values = pkpo.pass_at_k(np.maximum(n, k), correct, k)
    put(f'pass@{k}', np.asarray(values, np.float64)[n >= k])
  put('greedy', np.where(np.isnan(greedy), np.nan, greedy >= 1.0))
  put('mean', np.nanmean(score[n > 0], axis=1))
  return out


def evaluate(config: ConfigDict, which: str = 'best') -> dict[str, Any]:
  """Evaluates a checkpoint, and writes `evaluation.json` into its workdir.

  Args:
    config: checked by `config.validate`; its model must be that of the
      checkpoint, all else may differ.
    which: 'best' or 'last' checkpoint.

  Returns:
    What `evaluation.json` says: 'checkpoint', its 'step', 'problems' and
    'samples', and the figures of `heldout`.

  Raises:
    ValueError: there is no such checkpoint, or it is of another model.
  """
  parts = experiment.build(config)
  workdir = pathlib.Path(config.workdir)
  found = checkpoint.restore(
      workdir / 'checkpoints',
      {'learner': {'params': parts.learner.state.params}},
      differs=lambda saved: [
          line for line in config_lib.difference(saved, config)
          if line.startswith(('model.', 'lora.'))],
      best=which == 'best', partial=True)
  if found is None:
    raise ValueError(
        f'There is no whole checkpoint in {workdir}/checkpoints: train first, '
        'or set --config.workdir to the folder of a run.')
  frozen = None
  if config.lora.rank:
    frozen = warm_start.begin(parts, lambda *_: None, resumed=True).frozen
  weights = parts.policy.to_sampling(
      found.state['learner']['params'], frozen)
  result = dict(
      checkpoint=which, step=found.step,
      problems=len(spread(parts.task.heldout, config.eval.problems)),
      samples=config.eval.samples,
      **heldout(parts, weights))
  known = {
      name: None if isinstance(x, float) and math.isnan(x) else x
      for name, x in result.items()}
  (workdir / 'evaluation.json').write_text(json.dumps(known, indent=1))
  return result


def table(result: Mapping[str, Any]) -> Table:
  """What `evaluate` returned, for `rich.print`."""
  out = Table()
  out.add_column('')
  for name in ('held-out', 'standard error'):
    out.add_column(name, justify='right')
  for name in result:
    if f'{name}_error' in result:
      label = f'mean@{result["samples"]}' if name == 'mean' else name
      out.add_row(
          label, *(f'{result[n]:.3f}' for n in (name, f'{name}_error')))
  return out


def parse(argv: Sequence[str]) -> tuple[ConfigDict, str]:
  """Reads the command line; ends the program as `config.parse` does.

  Returns:
    The config, and which checkpoint.
  """
  short = {'--samples': '--config.eval.samples', '--k': '--config.eval.k'}
  which, rest = 'best', []
  for arg in argv:
    flag, equals, value = arg.partition('=')
    if flag == '--checkpoint' and equals:
      which = value
    else:
      rest.append(short.get(flag, flag) + equals + value)
  if which not in ('best', 'last'):
    sys.stderr.write(f'--checkpoint={which} is not known: use best or last.\n')
    sys.exit(2)
  if '--help' in rest:
    print(__doc__)
  config, _ = config_lib.parse(rest)
  return config, which


def main() -> None:
  """The program."""
  config, which = parse(sys.argv[1:])
  try:
    result = evaluate(config, which)
  except (OSError, ValueError) as error:
    sys.exit(f'{error}')
  print(f'{config.workdir}, {which} checkpoint (step {result["step"]}): '
        f'{result["problems"]} held-out problems')
  rich.print(table(result))
  print(f'Written to {config.workdir}/evaluation.json.')


if __name__ == '__main__':
  main()
