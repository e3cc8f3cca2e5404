"""Responses of an evaluation: sampled, judged and saved to disk.

A file of responses has one JSON object per line. An evaluation samples only the
responses that are missing in the file. So an interrupted evaluation resumes,
and one that asks for more samples only adds them. A response depends on its
problem's id, its sample number and the key alone, not on the call that samples
it. Interruptions therefore change only the order of the lines.
"""

import hashlib
import io
import itertools
import json
import os
import pathlib
import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jaxrl_llm.base import phases, plain
from jaxrl_llm.loop import rollout, turns
from jaxrl_llm.monitoring import progress
from jaxrl_llm.prepare import build
from jaxrl_llm.sampling.logits import SamplingParams


class ResponseSource(NamedTuple):
  """Origin of responses: all that they depend on but problems and numbers.

  Attributes:
    params: sampling parameters on device.
    sampling: temperature and truncation.
    noise: number of the noise; the same number gives the same responses.
    step: steps of the run behind the parameters, for reward functions.
  """
  params: Any
  sampling: SamplingParams
  noise: int
  step: int = 0


class JudgedCall(NamedTuple):
  """Responses of one call of the sampler, with their verdicts.

  Attributes:
    problem: [R] int, index of the problem.
    sample: [R] int, number of the response to its problem.
    responses: R responses.
    judged: facts about them.
  """
  problem: np.ndarray
  sample: np.ndarray
  responses: rollout.Responses
  judged: rollout.Judged


class ResponseRecord(NamedTuple):
  """Fields of a response and its verdict that the estimators need.

  Attributes:
    reward: reward; ignored unless valid.
    verdict: kind of the verdict.
    valid: whether the response could be judged.
    answer: canonical answer; '' for none.
    tokens: length of the response, stop token included.
    truncated: whether the length limit ended the response.
    rewards: of several functions, name to reward, None where it gave none.
  """
  reward: float
  verdict: str
  valid: bool
  answer: str
  tokens: int
  truncated: bool
  rewards: Mapping[str, float | None] = {}


def calls(
    wanted: Sequence[Sequence[int]], *, max_prompts: int, max_requests: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Splits responses into calls that fit the compiled sampler.

  Args:
    wanted: for each problem, the numbers of the responses to sample.
    max_prompts: limit of distinct problems in a call.
    max_requests: limit of responses in a call.

  Yields:
    (problem, sample) index pairs, two int arrays of equal length.
  """
  # All problems of a call have the same number of responses, because the
  # capacity of a sampler on several shards assumes it; see
  # `rollout.host_sampler`.
  for _, alike in itertools.groupby(
      enumerate(wanted), lambda item: len(item[1])):
    problem, sample = np.array(
        [(i, number) for i, numbers in alike for number in numbers],
        np.int64).reshape(-1, 2).T
    start = 0
    while start < len(problem):
      stop = start + np.searchsorted(
          problem[start:start + max_requests], problem[start] + max_prompts)
      yield problem[start:stop], sample[start:stop]
      start = stop


def draw(
    parts: build.Parts, source: ResponseSource, problems: Sequence,
    wanted: Sequence[Sequence[int]], *,
    phase: phases.Phase | None = None) -> Iterator[JudgedCall]:
  """Samples and judges responses.

  While the sampler runs, the responses of the previous call are judged, if the
  task has `submit`.

  Args:
    parts: task, sampler and processes.
    source: parameters, how to draw, and noise.
    problems: P problems.
    wanted: for each problem, the numbers of the responses to sample, ascending.
    phase: counts the responses as they are sampled.

  Yields:
    Calls, ordered by problem and then by sample.

  Raises:
    Stopped: a process was asked to stop.
  """
  config, sampler = parts.config, parts.programs.sampler

  def sampled():
    for problem, sample in calls(
        wanted, max_prompts=sampler.max_prompts,
        max_requests=sampler.max_requests):
      rows, prompt = np.unique(problem, return_inverse=True)
      of_call = [problems[i] for i in rows]
      responses, submit = turns.respond(
          parts, rollout.SampleCall(
              of_call, rollout.encode(
                  of_call, parts.task.tokenizer, config.max_prompt),
              rollout.requests(prompt, sample, config.max_response)),
          turns.WaveSampling(
              parts.sample_policy, source.params, source.sampling, source.noise,
              sampler.sampler.slots, step=source.step))
      if phase:
        phase.count(phase.done + len(problem))
      yield problem, sample, responses, submit()

  # The next call is sampled before the verdicts of one are waited for.
  for (*call, judged), _ in itertools.pairwise(
      itertools.chain(sampled(), [None])):
    yield JudgedCall(*call, judged())
    parts.processes.channel.check()


def digest(problem) -> str:
  """Returns a hash of all fields of a problem except its id."""
  text = repr((problem.prompt, problem.kind, problem.answer, problem.info))
  return hashlib.sha256(text.encode('utf8', 'replace')).hexdigest()[:16]


def collect(
    path: pathlib.Path, parts: build.Parts, source: ResponseSource,
    sets: Mapping[str, Sequence], *, samples: int, display: progress.Display,
    gone: Callable[[], str] = lambda: '',
) -> dict[str, list[list[ResponseRecord]]]:
  """Returns the responses to sets of problems, and samples those that miss.

  Args:
    path: file of responses, which the first process reads and writes; new
      responses are appended at once.
    parts: task, sampler and processes.
    source: parameters, how to draw, and noise.
    sets: name to problems, with unique ids within a set.
    samples: N, responses to each problem.
    display: display of the progress.
    gone: called in the first process after each call of the sampler; returns a
      sentence if responses can no longer be kept, else ''.

  Returns:
    Dictionary from the name of a set to its [P][N] responses.

  Raises:
    ValueError: a line of the file is not a response.
    OSError: the file was removed, or the disk is full; or what `gone` says.
    Stopped: a process was asked to stop.
  """
  processes, channel = parts.processes, parts.processes.channel
  problems = [p for of_set in sets.values() for p in of_set]
  # With the digest in the key, a changed problem is a new one; with the set's
  # name, a problem of two files counts in both.
  keys = [(plain.text(name), p.id, digest(p))
          for name, of_set in sets.items() for p in of_set]
  kept = {tuple(at): ResponseRecord(*row) for at, row in channel.gather(
      [*read(path).items()] if channel.first else None)[0]}
  shown = {key: problem.shown for key, problem in zip(keys, problems)}
  wanted = [
      [n for n in range(samples) if (*key, n) not in kept] for key in keys]
  total = len(keys) * samples
  done = total - sum(map(len, wanted))
  with (path.open('ab') if channel.first else io.BytesIO() as file,
        phases.phase('evaluation', total, 'responses', done) as phase):
    began, tokens = time.monotonic(), 0
    for call in draw(parts, source, problems, wanted, phase=phase):
      lost = ''
      if channel.first:
        lost = gone() if os.fstat(file.fileno()).st_nlink else (
            f'{path} was removed during the evaluation: run the same command '
            'again, which samples its responses again.')
      # All processes learn that they have to end.
      rows, said = processes.gather_rows(
          call.responses.shard, _rows(call, keys, problems), lost)
      if channel.first:
        file.write(
            ''.join(json.dumps(row) + '\n' for row in rows).encode())
        file.flush()
      if any(said):
        raise FileNotFoundError(max(said))
      kept.update(map(_entry, rows))
      tokens += sum(row['tokens'] for row in rows)
      # Over all calls: a call is yielded only after the next was sampled.
      speed = tokens / max(time.monotonic() - began, 1e-9)
      display.update(phase.done, _numbers(rows, speed), progress.sample_lines([
          {**row, 'prompt': shown[_entry(row)[0][:-1]]} for row in rows[:1]]))
  every = iter(keys)
  return {
      name: [[kept[*key, n] for n in range(samples)]
             for key in itertools.islice(every, len(of_set))]
      for name, of_set in sets.items()}


def read(path: pathlib.Path) -> dict[tuple, ResponseRecord]:
  """Reads a file of responses, if it exists, and cuts off a partial last line.

  Returns:
    Dictionary from (set, problem id, problem digest, sample) to the response.

  Raises:
    ValueError: another line is not a response.
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
      except (ValueError, TypeError, KeyError, AttributeError,
              RecursionError):
        raise ValueError(
            f'{path}, line {number} is not a response: delete the line, and '
            'the response is sampled again.') from None
      whole += len(line)
    file.truncate(whole)
  return kept


def _rows(
    call: JudgedCall, keys: Sequence[tuple], problems: Sequence,
) -> list[dict[str, Any]]:
  """Returns the JSON objects of the responses at home in this process.

  Args:
    call: R responses.
    keys: for each problem, name of its set, id and digest.
    problems: P problems.
  """
  rows, played = [], call.responses.played
  for i, (row, text, verdict) in enumerate(zip(
      call.responses.rows, call.responses.texts, call.judged.verdicts)):
    name, ident, version = keys[call.problem[row]]
    problem = problems[call.problem[row]]
    rows.append(plain.json(dict(
        file=name, problem_id=ident, kind=problem.kind, prompt=problem.prompt,
        response=text, tokens=int(call.judged.length[row]),
        truncated=bool(call.judged.truncated[row]),
        sample=int(call.sample[row]), reward=float(verdict.reward),
        verdict=verdict.kind, detail=verdict.detail, answer=verdict.answer,
        valid=bool(verdict.valid), digest=version,
        **({'turns': played.turns[i]} if played else {}),
        **rollout.further(verdict))))
  return rows


def _entry(row: Mapping[str, Any]) -> tuple[tuple, ResponseRecord]:
  """Returns the key and the response of a JSON object.

  Raises:
    AttributeError: `rewards` is no object.
    TypeError: a field of the response has another type, or is NaN.
    KeyError: a field is missing.
  """
  names = ('file', 'problem_id', 'digest', 'sample')
  *fields, last = ResponseRecord._fields
  kept = ResponseRecord(*(row[name] for name in fields), row.get(last, {}))
  kinds = (int, float), (str,), (bool,), (str,), (int,), (bool,)
  for value, allowed in zip(kept, kinds):
    # By type, not isinstance: True would pass for a number.
    if type(value) not in allowed or value != value:  # NaN
      raise TypeError
  for value in kept.rewards.values():
    if type(value) not in (int, float, type(None)):
      raise TypeError
  return tuple(row[name] for name in names), kept


def _numbers(rows: Sequence[Mapping[str, Any]], speed: float):
  """Returns the metrics of a call, with the names of `progress.NUMBERS`."""
  judged = [row['reward'] for row in rows if row['valid']]
  return {
      **({'reward/mean': float(np.mean(judged))} if judged else {}),
      'response/length': float(np.mean([row['tokens'] for row in rows])),
      'response/truncated': float(np.mean([row['truncated'] for row in rows])),
      'speed/tokens_per_second': speed}
