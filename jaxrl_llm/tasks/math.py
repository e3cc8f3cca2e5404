"""Problems with a mathematical answer, read from the user's files.

A row has a problem and its answer; `rows.py` says how they are found. The
answer field may hold the bare answer, a solution with the answer in a box, or a
solution that ends with #### and the answer. Worker processes judge the
responses, see `rewards/math.py` and `rewards/math_verify.py`; or functions of
the user do, see `own_reward.py`.
"""

import dataclasses
import numbers
import os
from typing import Annotated, Any, Literal, Sequence

from jaxrl_llm import answers
from jaxrl_llm.base import own_code
from jaxrl_llm.rewards import Facts, math_verify, Verdict
from jaxrl_llm.rewards.pool import Pool, Pooled
from jaxrl_llm.tasks import (
  own_reward,
  Problem,
  problem_files,
  references,
  rows,
  sets,
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
    problem: name of the field with the problem, a text or a list of messages;
      a dot leads into a dictionary (empty: problem or prompt, or without them
      question).
    answer: name of the field with the answer, alone or in a solution. A row
      without answer may have solution, ground_truth or
      reward_model.ground_truth. With reward, a file need not have it.
    kind: name of the field with the problem's kind, for metrics by kind (empty:
      the file's name).
    template: text around the problem; chat, qwen, qwen_math, question, none, a
      text that contains {problem}, or a FILE.txt with one. auto is chat, but
      leaves messages, and texts of a field prompt, as they stand.
    markup: whether the text is a user's message in the model's chat markup;
      chat, none, or auto (yes for the templates chat and auto, and for
      messages).
    system: system message in front of the user's, or a FILE.txt with one.
    reward: functions that judge in place of the verifier, FILE.py:NAME or
      PACKAGE.MODULE:NAME with commas between them, called as TRL calls them
      (empty: the verifier).
    reward_weights: factor of each function's reward in their sum (empty: 1).
    judge: what compares an answer with the reference; answers (this library's
      own grammar) or math_verify (the library of this name, an extra).
    take: part of a response that is its answer; boxed (the last box), number
      (the last number), either (without a box the expression or the number that
      it ends with) or marked (the number after ####).
    reasoning_tags: names of the tags of reasoning, such as think; only what
      follows the last end tag is judged, and a block without end has no answer.
    tolerance: largest error of a number, relative to the answer (0: exact); not
      in inequalities, unions of intervals or expressions with variables.
    any_order: whether the parts of a tuple may come in another order.
    timeout: time limit in seconds for judging one response.
    workers: number of processes that judge (0: one per core, at most 8).
    seed: seed for the choice of the held-out problems.
  """
  path: Annotated[tuple[str, ...], 'problems'] = ()
  heldout: Annotated[tuple[str, ...], 'problems'] = ()
  heldout_count: Annotated[int, '[0, inf)', 'problems'] = 100
  problem: str = ''
  answer: str = 'answer'
  kind: str = ''
  template: own_code.FileText = own_code.FileText('auto')
  markup: Literal['auto', 'chat', 'none'] = 'auto'
  system: own_code.FileText = own_code.FileText('')
  reward: tuple[own_code.Name, ...] = ()
  reward_weights: tuple[float, ...] = ()
  judge: Literal['answers', 'math_verify'] = 'answers'
  take: Literal['boxed', 'number', 'either', 'marked'] = 'boxed'
  reasoning_tags: tuple[str, ...] = ('think',)
  tolerance: Annotated[float, '[0, 1)'] = 0.0
  any_order: bool = False
  timeout: Annotated[float, '(0, 86400]'] = 5.0
  workers: Annotated[int, '[0, inf)', 'free'] = 0
  seed: int = 0

  def __post_init__(self):
    self.worded()
    for name in self.reward:
      own_code.file_of(name)
    if self.reward_weights and len(self.reward_weights) != len(self.reward):
      raise ValueError(
          f'task.reward_weights={self.reward_weights} has '
          f'{len(self.reward_weights)} numbers for the {len(self.reward)} '
          'functions of task.reward: give one for each, or none.')
    if self.judge == 'math_verify':
      for name in ('reward', 'tolerance', 'any_order'):
        if value := getattr(self, name):
          raise ValueError(
              f'task.{name}={value} means nothing to task.judge=math_verify: '
              'leave one of the two out.')

  def worded(self) -> templates.Template:
    """Returns the template of problems without a wording of their own."""
    return templates.make_template(
        self.template, markup=self.markup, system=self.system)

  def template_of(
      self, field: str, problem: str | templates.Messages,
  ) -> templates.Template:
    """Returns the template of a problem.

    Args:
      field: name of the field with the problem.
      problem: its text or messages.
    """
    made, messages = self.worded(), not isinstance(problem, str)
    if self.template == 'auto' and (messages or field == rows.PROMPT):
      # As TRL takes them.
      return made._replace(text='{problem}', chat=(
          messages or self.markup == 'chat' or bool(self.system)))
    return made


_DEFAULTS = Options()
_Located = tuple[str, Problem]  # a problem's file and line, and the problem
JUDGES = {'answers': 'math', 'math_verify': 'math_verify'}  # their modules


def _warn(found: Sequence[_Located], options: Options) -> None:
  """Warns of references that the judge of this library cannot read."""
  if not options.reward and options.judge == 'answers':
    references.warn_of_unreadable([(where, p.info) for where, p in found])


def _read(source: str, options: Options, tokenizer) -> list[_Located]:
  """Reads the problems of a file or data set.

  Args:
    source: a file, or a data set on the hub.
    options: names of the fields, and the template.
    tokenizer: the model's tokeniser.

  Returns:
    The problems, in the order of the source, each with its file and line.

  Raises:
    ValueError: rows are not valid. The message says how many, and names the
      file and the lines of the first ones.
  """
  problems, faults = [], []
  stem = os.path.basename(source).partition('.')[0]
  for where, row in problem_files.rows(source, faults):
    try:
      field, asked = rows.problem(row, options.problem)
      answer = rows.answer(row, options.answer, sure=not options.reward)
      info = _row(row, field, answer, options) if options.reward else (
          references.checked(rows.text(row, answer)))
      kind = rows.text(row, options.kind) if options.kind else stem
    except ValueError as error:
      faults.append((where, str(error)))
      continue
    try:
      prompt = templates.render(
          options.template_of(field, asked), asked, tokenizer)
    except templates.RowError as error:
      faults.append((where, str(error)))
      continue
    text = rows.shown(asked)
    # Depends on the problem's text alone, not on file, order or template.
    problems.append((where, Problem(
        sets.number(text), prompt, kind, info=info, text=text)))
  problem_files.refuse(faults)
  if not problems:
    raise ValueError(f'{source} has no problems.')
  return problems


def _row(
    row: problem_files.Row, problem: str, answer: str,
    options: Options) -> own_reward.ProblemRow:
  """Returns what the reward functions learn of a row.

  Args:
    row: of a file.
    problem: name of the field with the problem.
    answer: name of the field with the answer, if there is one.
    options: of the task.
  """
  columns = {k: v for k, v in row.items() if k != problem}
  for name in own_reward.GIVEN:
    if name in columns:
      raise ValueError(
          f'the field {name!r} has the name of an argument that '
          f'task.reward={",".join(options.reward)} gets anyway: rename the '
          'field.')
  value, asked = rows.lookup(row, answer), rows.lookup(row, problem)
  rows.refuse_infinity(answer, value)
  has_text = isinstance(value, (str, numbers.Number))
  return own_reward.ProblemRow(
      asked if isinstance(asked, list) else str(asked),
      references.reference(str(value)) if has_text else '', columns)


class Problems(Pooled):
  """The problems of the user's files; the part of a task that does not judge.

  Attributes:
    options: options of the task.
    tokenizer: the model's tokeniser.
    train: training problems.
    heldout: evaluation problems.
    stops: texts that end a response, as the template shows them.
    key: see `tasks.Task`.
  """

  def __init__(self, options: Options, tokenizer):
    self.options, self.tokenizer = options, tokenizer
    self.stops = templates.stops(options.worded(), tokenizer)
    self.key = _key(options)
    train, heldout = (
        _all(options.path, options, tokenizer, {}),
        _all(options.heldout, options, tokenizer,
             problem_files.names(options.heldout)))
    _warn([*train, *heldout], options)
    self.train, self.heldout = sets.split(
        *(sets.once([problem for _, problem in found], self.key, sources)
          for found, sources in (
              (train, options.path), (heldout, options.heldout))),
        options.heldout_count, key=self.key, rank=sets.by_seed(options.seed),
        origin=f'task.path={options.path}')

  def load(self, source: str) -> list[Problem]:
    """Reads the problems of another file or data set, with these options."""
    found = _read(source, self.options, self.tokenizer)
    _warn(found, self.options)
    return [problem for _, problem in found]


class Math(Problems):
  """Task of problems with a mathematical answer; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer):
    if options.judge == 'math_verify':
      math_verify.check()
    super().__init__(options, tokenizer)

  def submit(self, problem: Problem, text: str, truncated: bool):
    """Starts to judge a response; see `rewards.submit`."""
    del truncated  # a truncated response may still contain its answer
    text = answers.with_opened(
        problem.prompt, text, self.options.reasoning_tags)
    if self._pool is None:
      self._pool = Pool(
          f'jaxrl_llm.rewards.{JUDGES[self.options.judge]}:judge',
          seconds=self.options.timeout,
          workers=self.options.workers or min(os.cpu_count() or 1, 8))
    reply = self._pool.submit(dict(
        answer=problem.info, response=text, take=self.options.take,
        tags=self.options.reasoning_tags,
        tolerance=self.options.tolerance, any_order=self.options.any_order))
    return lambda: _verdict(reply.result())

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response: reward 1 if its answer equals the reference, else 0.

    The verdict's kind is correct, wrong, no_answer, timeout or error. An answer
    that takes too long is wrong, since a model could learn to be slow; the last
    kind is not valid: such a response leaves its group.
    """
    return self.submit(problem, text, truncated)()


class Rewarded(Problems):
  """Task of problems that functions of the user judge; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer):
    self.rewards = own_reward.Rewards(options.reward, options.reward_weights)
    super().__init__(options, tokenizer)
    # Held-out problems of the same files may lack what few rows have.
    for problems in (self.train, self.heldout) if options.heldout else (
        [*self.train, *self.heldout],):
      self.rewards.declare(p.info for p in problems)

  def judge(
      self, problems: Sequence[Problem], texts: Sequence[str],
      truncated: Sequence[bool], facts: Facts | None = None) -> list[Verdict]:
    """Judges responses in one call; see `own_reward.Rewards.judge`."""
    del truncated  # the functions get what TRL's get
    facts = facts or Facts([self.tokenizer.encode(text) for text in texts])
    return self.rewards.judge([p.info for p in problems], texts, facts)

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges one response; see `judge`."""
    return self.judge([problem], [text], [truncated])[0]


def _verdict(reply) -> Verdict:
  kind = reply['kind']
  return Verdict(
      float(kind == 'correct'), kind, kind != 'error',
      reply.get('detail', ''), reply.get('answer', ''), reply.get('trace', ''))


def _key(options: Options) -> sets.Key:
  """Returns what tells problems apart, for functions of `sets`.

  To the verifier it is the text. A function of the user may judge by any
  column, so that rows with other columns are other problems to it.
  """
  if options.reward:
    return lambda problem: (problem.prompt, sets.digest(problem.info))
  return lambda problem: problem.text


def _all(sources, options, tokenizer, names) -> list[_Located]:
  """Returns the problems of all sources, repeated ones too.

  Args:
    sources: files or data sets.
    options: of the task.
    tokenizer: the model's tokeniser.
    names: source to `Problem.source`; none for problems to train on.

  Raises:
    ValueError: rows are not valid, or the verifier gets two answers to one
      problem.
  """
  found = [
      (where, dataclasses.replace(problem, source=names.get(source, '')))
      for source in sources
      for where, problem in _read(source, options, tokenizer)]
  if not options.reward:
    first = {problem.text: (where, problem.info)
             for where, problem in reversed(found)}
    references.refuse_contradictions([
        (first[problem.text], (where, problem.info))
        for where, problem in found if where != first[problem.text][0]])
  return found


def create(
    tokenizer: Any, options: Options = _DEFAULTS) -> Math | Rewarded:
  """Makes the task for a model's tokeniser, which it cannot do without."""
  templates.check_tokenizer(options.worded(), tokenizer, 'math')
  if options.reward:
    return Rewarded(options, tokenizer)
  return Math(options, tokenizer)
