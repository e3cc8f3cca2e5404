"""Rows of supervised fine-tuning: sources, their order, batches."""

import functools
import heapq
import math
from typing import Any, Callable, Iterator, NamedTuple, Sequence
import zlib

from absl import logging
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm.base import phases
from jaxrl_llm.loop.rows import learner_batch
from jaxrl_llm.tasks import sft_rows
from jaxrl_llm.tasks.sft_rows import Example
from jaxrl_llm.types import LearnerBatch, RolloutTokens

DEMONSTRATIONS = 'demonstrations'  # the task's, among the sources


class Data(NamedTuple):
  """Rows of a run, and their batches.

  Attributes:
    limits: of the rows.
    rows: (step) -> its rows, in the order of the run.
    size: rows of a batch, filler included.
    steps: batches of the run.
    heldout: rows for the held-out loss.
    digest: changes when a row does; '' for demonstrations alone.
  """
  limits: sft_rows.RowLimits
  rows: Callable[[int], list[Example]]
  size: int
  steps: int
  heldout: Sequence[Example] = ()
  digest: str = ''

  def batch(self, rows: Sequence[Example]) -> LearnerBatch:
    """Makes a batch of at most `size` rows, with filler behind them.

    Its advantages are 1, the weights of rows in the objective 'likelihood'.
    """
    limits = self.limits
    of = RolloutTokens.free(
        len(rows), dict(L=limits.max_prompt, T=limits.max_response),
        {'generated': None})
    for i, row in enumerate(rows):
      of.prompt_length[i], of.length[i] = len(row.prompt), len(row.response)
      of.prompt[i, :len(row.prompt)] = row.prompt
      of.response[i, :len(row.response)] = row.response
      of.generated[i, :len(row.learned)] = row.learned
    which = np.pad(
        np.arange(len(rows)), (0, self.size - len(rows)), constant_values=-1)
    return learner_batch(
        of, which, np.ones(self.size), np.ones(self.size, bool))

  def heldout_batches(self) -> list[LearnerBatch]:
    """Returns the batches of the held-out rows."""
    return [self.batch(self.heldout[i:i + self.size])
            for i in range(0, len(self.heldout), self.size)]


def sources(config: ConfigDict) -> tuple[str, ...]:
  """Returns where the rows of a run come from."""
  return config.sft.path or (DEMONSTRATIONS,)


def limits_of(config: ConfigDict) -> sft_rows.RowLimits:
  """Returns the limits of the rows of a run."""
  sft = config.sft
  most = (1, sft.max_length - 1) if sft.max_length else (
      config.max_prompt, config.max_response)
  return sft_rows.RowLimits(
      *most, split=sft.max_length is None, cut=sft.too_long == 'cut',
      last=sft.turns == 'last')


def load(config: ConfigDict, task: Any, shards: int) -> Data:
  """Reads the rows of a run, and plans its batches.

  Args:
    config: of the run.
    task: its tokeniser, how it words problems, and its demonstrations.
    shards: number that divides the rows of a batch.

  Raises:
    ValueError: a row is not valid, none is left, or the task has no
      demonstrations.
  """
  sft, limits = config.sft, limits_of(config)
  if DEMONSTRATIONS in sources(config) and not hasattr(task, 'demonstration'):
    raise ValueError(
        f'The task {config.task.name} has no demonstrations: name files of '
        'rows as config.sft.path, or set config.sft.steps=0.')
  files = [s for s in sources(config) if s != DEMONSTRATIONS]
  kept, heldout = _read(sft, files, task, limits)
  made = [
      (None, functools.partial(demonstration, task, limits, config.seed))
      if source == DEMONSTRATIONS else _in_passes(
          kept[source], (config.seed, number))
      for number, source in enumerate(sources(config))]
  count = sum(map(len, kept.values()))
  batch = _batches(sft, made, count)
  size = -(-max(map(len, batch)) // shards) * shards
  rows = lambda step: [made[source][1](i) for source, i in batch[step]]
  return Data(limits, rows, size, len(batch), heldout,
              _digest([*kept.values(), heldout]) if files or heldout else '')


def _read(sft, files, task, limits):
  """Returns the rows of each file, and the held-out ones."""
  kept, heldout, long = {}, [], []
  with phases.phase('reading the rows'):
    for source in files:
      kept[source], found = sft_rows.read(source, task, limits)
      long += found
    for source in sft.heldout:
      more, found = sft_rows.read(source, task, limits)
      heldout += more
      long += found
  every = [(source, row) for source in files for row in kept[source]]
  if sft.heldout_count and not sft.heldout:
    chosen = np.random.default_rng(0).permutation(
        len(every))[:sft.heldout_count]
    heldout = [every[i][1] for i in sorted(chosen)]
  out = {*map(_key, heldout)}
  kept = {source: [row for row in rows if _key(row) not in out]
          for source, rows in kept.items()}
  most = f'sft.max_length={sft.max_length}' if sft.max_length else (
      f'max_prompt={limits.max_prompt} before what is learned, or '
      f'max_response={limits.max_response} from there on')
  if files and not all(kept.values()) or sft.heldout and not heldout:
    name = next((s for s in files if not kept[s]), ', '.join(sft.heldout))
    raise ValueError(
        f'{name} has no row to learn that fits and is not held out: '
        f'{len(heldout)} are held out, and {len(long)} have more tokens than '
        f'{most}.')
  if long:
    logging.warning(
        'Left out: %d rows with more tokens than %s (the longest has %d); %d '
        'are left to learn, and %d held out.', len(long), most, max(long),
        sum(map(len, kept.values())), len(heldout))
  return kept, heldout


def _key(row: Example) -> bytes:
  return b'-'.join(np.ascontiguousarray(part).tobytes() for part in row)


def _digest(sets: Sequence[Sequence[Example]]) -> str:
  """Returns a checksum of rows in their order."""
  value = 0
  for rows in sets:
    for row in rows:
      value = zlib.crc32(_key(row), value)
    value = zlib.crc32(b'end', value)
  return f'{value:08x}'


def _in_passes(
    rows: Sequence[Example], seed: tuple[int, ...],
) -> tuple[int, Callable[[int], Example]]:
  """Returns the size of a source, and (number) -> row.

  Each pass over the rows has an order of its own.
  """
  @functools.lru_cache(4)
  def order(number):
    return np.random.default_rng([*seed, number]).permutation(len(rows))

  def row(number):
    of_pass, place = divmod(number, len(rows))
    return rows[order(of_pass)[place]]

  return len(rows), row


def mixed(shares: Sequence[float]) -> Iterator[tuple[int, int]]:
  """Yields source, and number within it, of each row of a run, without end.

  Every source comes as often as its share says, spread evenly.

  Args:
    shares: of each source; positive, of any sum.
  """
  due = [(.5 / share, source, 0) for source, share in enumerate(shares)]
  heapq.heapify(due)
  while True:
    _, source, number = due[0]
    yield source, number
    heapq.heapreplace(
        due, ((number + 1.5) / shares[source], source, number + 1))


def _batches(
    sft: ConfigDict, sources: Sequence[tuple[int | None, Any]], count: int,
) -> list[list[tuple[int, int]]]:
  """Returns the rows of each step, as (source, number).

  Args:
    sft: section of the config.
    sources: size and row of each.
    count: rows of all files.

  Raises:
    ValueError: demonstrations have no end or share, or a row is longer than a
      batch.
  """
  if any(size is None for size, _ in sources) and (
      sft.epochs or sft.batch_tokens or len(sources) > 1 and not sft.weights):
    raise ValueError(
        'Demonstrations are as many as are asked for: set sft.steps and '
        'sft.batch, and with other sources their sft.weights.')
  most, found, used = sft.batch_tokens or sft.batch, [], math.inf
  left = max(round(sft.epochs * count), 1) if sft.epochs else math.inf
  for source, number in mixed(
      sft.weights or [size or 1 for size, _ in sources]):
    cost = 1
    if sft.batch_tokens:
      row = sources[source][1](number)
      cost = len(row.prompt) + len(row.response)
    if cost > most:
      raise ValueError(
          f'A row has {cost} tokens, more than sft.batch_tokens={most}: raise '
          'it, or lower sft.max_length.')
    if used + cost > most:
      if len(found) == (sft.steps or math.inf):
        break
      found.append([])
      used = 0
    if not left:
      break
    found[-1].append((source, number))
    used, left = used + cost, left - 1
  return [rows for rows in found if rows]


def demonstration(
    task: Any, limits: sft_rows.RowLimits, seed: int, number: int) -> Example:
  """Makes the row of a task's demonstration.

  Args:
    task: it has `demonstration(index, seed=)` -> (problem, response).
    limits: of the row.
    seed: fixes the sequence of demonstrations.
    number: of the demonstration.

  Raises:
    ValueError: it does not fit.
  """
  problem, response = task.demonstration(number, seed=seed)
  prompt = np.array(task.tokenizer.encode(problem.prompt), np.int32)
  ids, own = _turns(task, response)
  for name, length in ('prompt', len(prompt)), ('response', len(ids)):
    most = getattr(limits, f'max_{name}')
    if length > most:
      raise ValueError(
          f'The demonstration {response!r} of problem {problem.id} has '
          f'{length} tokens in its {name}, more than max_{name}={most}: raise '
          f'config.max_{name}.')
  return Example(prompt, np.array(ids, np.int32), np.array(own, bool))


def _turns(
    task: Any, response: str | Sequence[tuple[str, str]],
) -> tuple[list[int], list[bool]]:
  """Returns the tokens of a demonstration, and which the model is to write."""
  tokenizer, ids, own = task.tokenizer, [], []
  turns = [(response, '')] if isinstance(response, str) else response
  for text, observation in turns:
    turn = [*tokenizer.encode(text), tokenizer.stop_ids[0]]
    kept, after = task.turns.follow(tokenizer, observation, turn) if (
        observation) else (len(turn), [])
    ids += [*turn[:kept], *after]
    own += [True] * kept + [False] * len(after)
  return ids, own
