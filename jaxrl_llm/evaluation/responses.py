"""Responses to problems: sampled, judged, and kept on disk as they come.

A file of responses has one JSON object a line. Which of them are there says
what is still to be done, so an evaluation that was cut off goes on, and one
that asks for more only adds to it. What a response is depends on its problem's
id, its sample number and the key alone, not on the call it is sampled in: the
file is the same, but for the order of its lines, however often it was cut off.
"""

import hashlib
import itertools
import json
import pathlib
import time
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import rewards, rollout
from jaxrl_llm.monitoring import progress
from jaxrl_llm.sampling.logits import SamplingParams


class Call(NamedTuple):
  """Responses of one call of the sampler, judged.

  Attributes:
    problem: [R] int, index of the problem.
    sample: [R] int, number of the response to its problem.
    responses: R of them.
    verdicts: R of them.
  """
  problem: np.ndarray
  sample: np.ndarray
  responses: rollout.Responses
  verdicts: list[rewards.Verdict]


class Kept(NamedTuple):
  """What figures need to know of a response; see `rewards.Verdict`.

  Attributes:
    reward: means nothing unless valid.
    verdict: kind of the verdict.
    valid: whether it could be judged.
    answer: '' for none.
    tokens: of the response, stop token included.
    truncated: whether the budget ended it.
  """
  reward: float
  verdict: str
  valid: bool
  answer: str
  tokens: int
  truncated: bool


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


def cut(
    wanted: Sequence[Sequence[int]], *, max_prompts: int, max_requests: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """`calls` for problems of which not all want the same.

  Args:
    wanted: for each problem, the numbers of the responses to sample.
    max_prompts: distinct problems in a call.
    max_requests: responses in a call.

  Yields:
    Index of the problem and number of the response, of each response.
  """
  # In a call are only problems that want equally many: that is what a sampler
  # on several shards has room for, see `rollout.host_sampler`.
  start = 0
  for count, alike in itertools.groupby(map(len, wanted)):
    size = len(list(alike))
    numbers = np.array(wanted[start:start + size], np.int64)
    for problem, column in calls(
        size, count, max_prompts=max_prompts, max_requests=max_requests):
      yield start + problem, numbers[problem, column]
    start += size


def draw(
    parts, params: Any, problems: Sequence, wanted: Sequence[Sequence[int]], *,
    sampling: SamplingParams, key: jax.Array) -> Iterator[Call]:
  """Samples and judges.

  While the sampler is at work, the responses of the call before it are judged,
  if the task can do that elsewhere.

  Args:
    parts: experiment.Parts.
    params: sampling parameters on device.
    problems: P problems.
    wanted: P times the numbers of the responses to sample, ascending.
    sampling: how to draw.
    key: PRNG key; the same key gives the same responses.

  Yields:
    Calls, by problem and within it by sample.
  """
  waiting = None
  config, tokenizer = parts.config, parts.task.tokenizer
  for problem, sample in cut(
      wanted, max_prompts=config.prompts_per_step,
      max_requests=config.prompts_per_step * config.samples_per_prompt):
    rows, prompt = np.unique(problem, return_inverse=True)
    chosen = [problems[i] for i in rows]
    asked = rollout.Asked(
        chosen, rollout.encode(chosen, tokenizer, config.max_prompt),
        rollout.requests(prompt, sample, config.max_response))
    found = rollout.respond(
        parts.sample, params, asked, key, sampling, tokenizer=tokenizer)
    verdicts = rollout.submit(parts.task, found)
    if waiting:
      yield waiting[0]._replace(verdicts=waiting[1]())
    waiting = Call(problem, sample, found, []), verdicts
  if waiting:
    yield waiting[0]._replace(verdicts=waiting[1]())


def digest(problem) -> str:
  """Changes when a problem does, or what the verifier knows of it."""
  text = repr((problem.prompt, problem.kind, problem.answer, problem.info))
  return hashlib.sha256(text.encode('utf8', 'replace')).hexdigest()[:16]


def collect(
    path: pathlib.Path, parts, params: Any, sets: Mapping[str, Sequence], *,
    samples: int, sampling: SamplingParams, key: jax.Array,
    display: progress.Display) -> dict[str, list[list[Kept]]]:
  """Responses to sets of problems: those that are kept, the others sampled.

  Args:
    path: of the file of responses; what is new is added as it comes.
    parts: experiment.Parts.
    params: sampling parameters on device.
    sets: name to problems; no two in a set have the same id.
    samples: N, of each problem.
    sampling: how to draw.
    key: PRNG key.
    display: shows how many there are.

  Returns:
    Name of the set to [P][N].

  Raises:
    ValueError: a line of the file is no response.
  """
  problems = [p for found in sets.values() for p in found]
  # A problem that was changed is another one; one of two files counts in both.
  keys = [(name, p.id, digest(p)) for name, found in sets.items()
          for p in found]
  kept = read(path)
  wanted = [
      [n for n in range(samples) if (*key, n) not in kept] for key in keys]
  total = len(keys) * samples
  done = total - sum(map(len, wanted))
  with path.open('ab') as file, display.phase('responses', total, done):
    began, tokens = time.monotonic(), 0
    for call in draw(
        parts, params, problems, wanted, sampling=sampling, key=key):
      rows = [
          _row(*keys[p], problems[p], number, text, verdict, length, cut_off)
          for p, number, text, verdict, length, cut_off in zip(
              call.problem, call.sample, call.responses.texts, call.verdicts,
              call.responses.rollouts.length,
              call.responses.rollouts.truncated)]
      file.write(''.join(json.dumps(row) + '\n' for row in rows).encode())
      file.flush()
      kept.update(map(_entry, rows))
      done += len(rows)
      tokens += sum(row['tokens'] for row in rows)
      # Of all calls: one is handed out only after the next was sampled.
      speed = tokens / max(time.monotonic() - began, 1e-9)
      display.update(done, _numbers(rows, speed), progress.sample_line(rows[0]))
  every = iter(keys)
  return {
      name: [[kept[*key, n] for n in range(samples)]
             for key in itertools.islice(every, len(found))]
      for name, found in sets.items()}


def read(path: pathlib.Path) -> dict[tuple, Kept]:
  """The responses in a file, if there is one; a torn last line is cut off.

  Returns:
    (set, id and digest of the problem, sample) to what is kept.

  Raises:
    ValueError: another line is no response.
  """
  kept, whole = {}, 0
  if not path.exists():
    return kept
  with path.open('r+b') as file:
    for number, line in enumerate(file, 1):
      if not line.endswith(b'\n'):
        break
      try:
        key, row = _entry(json.loads(line))
        kept[key] = row
      except (ValueError, TypeError, KeyError):
        raise ValueError(
            f'{path}, line {number}: this is no response. Delete the line, and '
            'it is made again.') from None
      whole += len(line)
    file.truncate(whole)
  return kept


def _row(
    name, ident, version, problem, number, text, verdict, length, truncated,
) -> dict[str, Any]:
  """What the file says of a response."""
  return dict(
      file=name, problem_id=ident, kind=problem.kind, prompt=problem.prompt,
      response=text, tokens=int(length), truncated=bool(truncated),
      sample=int(number), reward=float(verdict.reward), verdict=verdict.kind,
      detail=verdict.detail, answer=verdict.answer, valid=bool(verdict.valid),
      digest=version)


def _entry(row: Mapping[str, Any]) -> tuple[tuple, Kept]:
  names = ('file', 'problem_id', 'digest', 'sample')
  return (tuple(row[name] for name in names),
          Kept(*(row[name] for name in Kept._fields)))


def _numbers(rows: Sequence[Mapping[str, Any]], speed: float):
  """Of a call, as `progress.NUMBERS` names them."""
  judged = [row['reward'] for row in rows if row['valid']]
  return {
      **({'reward/mean': float(np.mean(judged))} if judged else {}),
      'response/length': float(np.mean([row['tokens'] for row in rows])),
      'speed/tokens_per_second': speed}
