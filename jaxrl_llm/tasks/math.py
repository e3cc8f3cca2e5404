"""Problems with a mathematical answer, read from the user's files.

A row has a problem and its answer; the options name these two fields. The
answer field may hold the bare answer, a solution with the answer in a box, or a
solution that ends with #### and the answer. Worker processes judge the
responses, see `rewards/math.py`; or a function of the user does, see
`own_reward.py`.
"""

import dataclasses
import hashlib
import numbers
import os
from typing import Annotated, Any, Literal, Sequence
import zlib

from absl import logging

from jaxrl_llm.plugs import modules
from jaxrl_llm.rewards import answers, Verdict
from jaxrl_llm.rewards.pool import Pool
from jaxrl_llm.tasks import (
  closest,
  own_reward,
  Problem,
  problem_files,
  references,
  templates,
)


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the problems, their prompts and their verification.

  Attributes:
    path: files of training problems (.jsonl, .jsonl.gz, .json, .parquet), or
      data sets on the hub (org/name, org/name/subset:split).
    heldout: files or data sets of held-out problems; they are not trained on.
      Evaluations on several are reported for each file too.
    heldout_count: number of problems of path to hold out if heldout is empty.
    problem: name of the field with the problem.
    answer: name of the field with the answer, alone or in a solution. With
      reward, a file need not have it.
    kind: name of the field with the problem's kind, for metrics by kind (empty:
      the file's name).
    template: prompt format; chat, qwen, qwen_math, question, none, or a text
      that contains {problem}.
    reward: function that judges in place of the verifier, FILE.py:NAME or
      PACKAGE.MODULE:NAME, called as TRL calls it (empty: the verifier).
    take: part of a response that is its answer; boxed (the last box), number
      (the last number), either (without a box the expression or the number that
      it ends with) or marked (the number after ####).
    reasoning_tags: names of the tags of reasoning, such as think; only what
      follows the last end tag is judged, and a block without end has no answer.
    tolerance: largest error of a number, relative to the answer (0: exact).
    any_order: whether the parts of a tuple may come in another order.
    timeout: time limit in seconds for judging one response.
    workers: number of processes that judge (0: one per core, at most 8).
    seed: seed for the choice of the held-out problems.
  """
  path: Annotated[tuple[str, ...], 'problems'] = ()
  heldout: Annotated[tuple[str, ...], 'problems'] = ()
  heldout_count: Annotated[int, '[0, inf)', 'problems'] = 100
  problem: str = 'problem'
  answer: str = 'answer'
  kind: str = ''
  template: str = 'chat'
  reward: modules.Name = modules.Name('')
  take: Literal['boxed', 'number', 'either', 'marked'] = 'boxed'
  reasoning_tags: tuple[str, ...] = ('think',)
  tolerance: Annotated[float, '[0, 1)'] = 0.0
  any_order: bool = False
  timeout: Annotated[float, '(0, 86400]'] = 5.0
  workers: Annotated[int, '[0, inf)', 'free'] = 0
  seed: int = 0

  def __post_init__(self):
    if not templates.known(self.template):
      raise ValueError(
          f'task.template={self.template!r} is not a known format and does not '
          f'contain {{problem}}.{closest(self.template, templates.FORMATS)}')
    modules.check_file(self.reward)


_DEFAULTS = Options()


def read(source: str, options: Options, tokenizer) -> list[Problem]:
  """Reads the problems of a file or data set.

  Args:
    source: a file, or a data set on the hub.
    options: names of the fields, and the template.
    tokenizer: the model's tokeniser.

  Returns:
    The problems, in the order of the source.

  Raises:
    ValueError: rows are not valid. The message says how many, and names the
      file and the lines of the first ones.
  """
  return [problem for _, problem in _read(source, options, tokenizer)]


def _read(
    source: str, options: Options, tokenizer) -> list[tuple[str, Problem]]:
  """Returns the problems of a source, each with its file and line."""
  problems, faults = [], []
  stem = os.path.basename(source).partition('.')[0]
  for where, row in problem_files.rows(source, faults):
    try:
      text = _field(row, options.problem)
      info = _row(row, options) if options.reward else references.checked(
          where, _field(row, options.answer))
      kind = _field(row, options.kind) if options.kind else stem
    except ValueError as error:
      faults.append((where, str(error).removeprefix(f'{where}: ')))
      continue
    # Depends on the problem's text alone, not on file, order or template.
    ident = zlib.crc32(text.encode()) >> 1
    problems.append((where, Problem(
        ident, templates.render(options.template, text, tokenizer), kind,
        info=info, text=text)))
  problem_files.refuse(faults)
  if not problems:
    raise ValueError(f'{source} has no problems.')
  if not options.reward:
    references.warn_of_unreadable([(where, p.info) for where, p in problems])
  return problems


def _field(row: problem_files.Row, name: str) -> str:
  """Returns a field as text, or raises an error if it is missing or empty."""
  if name not in row:
    raise ValueError(
        f'there is no field {name!r}.{closest(name, [*row])} Set '
        'config.task.problem, .answer and .kind to the names of your fields.')
  value = row[name]
  # Some tables store NaN for a missing value; NaN differs from itself.
  if value is None or value != value or not (text := str(value).strip()):
    raise ValueError(f'field {name!r} is empty.')
  if isinstance(value, bool) or not isinstance(value, (str, numbers.Number)):
    raise ValueError(
        f'field {name!r} is {value!r:.60}, not a text or a number.')
  _refuse_infinity(name, value)
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f'field {name!r} is not valid text ({error}).') from None
  return text


def _refuse_infinity(name: str, value: Any) -> None:
  """Raises ValueError for Infinity, and for numbers beyond all, as 1e400."""
  if isinstance(value, float) and abs(value) == float('inf'):
    raise ValueError(
        f'field {name!r} is a number without end or beyond 1e308 ({value}): '
        'write it as a text, such as "\\infty" or "10^{400}".')


def _row(row: problem_files.Row, options: Options) -> own_reward.Row:
  """Returns what a reward function learns of a row."""
  columns = {k: v for k, v in row.items() if k != options.problem}
  for name in own_reward.TEXTS:
    if name in columns:
      raise ValueError(
          f'the field {name!r} has the name of an argument that '
          f'task.reward={options.reward} gets anyway: rename the field.')
  answer = columns.get(options.answer)
  _refuse_infinity(options.answer, answer)
  has_text = isinstance(answer, (str, numbers.Number))
  return own_reward.Row(
      str(row[options.problem]),
      references.reference(str(answer)) if has_text else '', columns)


class Problems:
  """The problems of the user's files; the part of a task that does not judge.

  Attributes:
    options: options of the task.
    tokenizer: the model's tokeniser.
    train: training problems.
    heldout: evaluation problems.
    stops: texts that end a response, as the template shows them.
  """

  def __init__(self, options: Options, tokenizer):
    self.options, self.tokenizer = options, tokenizer
    self.stops = templates.stops(options.template, tokenizer)
    self.train = _all(options.path, options, tokenizer)
    self.heldout = _all(
        options.heldout, options, tokenizer,
        problem_files.names(options.heldout))
    if not options.heldout:
      # By rank: a few more problems in the file change few held-out ones.
      self.heldout = sorted(self.train, key=self._rank)[:options.heldout_count]
    known = {p.id for p in self.heldout}
    self.train = [p for p in self.train if p.id not in known]
    if options.path and not self.train:
      raise ValueError(
          f'All problems of task.path={options.path} are held out: lower '
          f'task.heldout_count={options.heldout_count}, or set task.heldout to '
          'other files.')

  def _rank(self, problem: Problem) -> bytes:
    return hashlib.sha256(f'{self.options.seed} {problem.id}'.encode()).digest()

  def load(self, source: str) -> list[Problem]:
    """Reads the problems of another file or data set, with these options."""
    return read(source, self.options, self.tokenizer)


class Math(Problems):
  """Task of problems with a mathematical answer; see `tasks.Task`."""

  _pool: Pool | None = None

  def submit(self, problem: Problem, text: str, truncated: bool):
    """Starts to judge a response; see `rewards.submit`."""
    del truncated  # a truncated response may still contain its answer
    text = answers.with_opened(
        problem.prompt, text, self.options.reasoning_tags)
    if self._pool is None:
      self._pool = Pool(
          'jaxrl_llm.rewards.math:judge', seconds=self.options.timeout,
          workers=self.options.workers or min(os.cpu_count() or 1, 8))
    reply = self._pool.submit(dict(
        answer=problem.info, response=text, take=self.options.take,
        tags=self.options.reasoning_tags,
        tolerance=self.options.tolerance, any_order=self.options.any_order))
    return lambda: _verdict(reply.result())

  def close(self) -> None:
    """Ends the worker processes; the next response starts new ones."""
    if self._pool is not None:
      self._pool.close()
      self._pool = None

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response: reward 1 if its answer equals the reference, else 0.

    The verdict's kind is correct, wrong, no_answer, timeout or error. The last
    two are not valid: such a response leaves its group.
    """
    return self.submit(problem, text, truncated)()


class Rewarded(Problems):
  """Task of problems that a function of the user judges; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer):
    self._reward = own_reward.Reward(options.reward)
    super().__init__(options, tokenizer)
    self._reward.declare(p.info for p in (*self.train, *self.heldout))

  def judge(
      self, problems: Sequence[Problem], texts: Sequence[str],
      truncated: Sequence[bool]) -> list[Verdict]:
    """Judges responses in one call; see `own_reward.Reward.judge`."""
    del truncated  # the function gets what TRL's get
    return self._reward.judge([p.info for p in problems], texts)

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges one response; see `judge`."""
    return self.judge([problem], [text], [truncated])[0]


def _verdict(reply) -> Verdict:
  kind = reply['kind']
  return Verdict(
      float(kind == 'correct'), kind, kind not in ('timeout', 'error'),
      reply.get('detail', ''), reply.get('answer', ''), reply.get('trace', ''))


def _all(sources, options, tokenizer, names=None) -> list[Problem]:
  """Returns the problems of all sources, without duplicates.

  Args:
    sources: files or data sets.
    options: of the task.
    tokenizer: the model's tokeniser.
    names: source to `Problem.source`; None for problems to train on.
  """
  problems, again, names = {}, [], names or {}
  for source in sources:
    for where, problem in _read(source, options, tokenizer):
      problem = dataclasses.replace(problem, source=names.get(source, ''))
      first = problems.setdefault(problem.prompt, (where, problem))
      if first[1] is not problem:
        again.append((first, (where, problem)))
  if again:
    logging.warning(
        'Left out of %s: %d of %d problems, which are repeated.',
        ', '.join(sources), len(again), len(again) + len(problems))
  if not options.reward:
    references.refuse_contradictions([
        tuple((where, p.info) for where, p in pair) for pair in again])
  return [problem for _, problem in problems.values()]


def create(
    tokenizer: Any, options: Options = _DEFAULTS) -> Math | Rewarded:
  """Makes the task for a model's tokeniser, which it cannot do without."""
  if tokenizer is None:
    raise ValueError(
        'task.name=math needs the tokeniser of a model: set config.model.hf to '
        'a Hugging Face model.')
  templates.warn_of_unknown_tokens(options.template, tokenizer)
  if options.reward:
    return Rewarded(options, tokenizer)
  return Math(options, tokenizer)
