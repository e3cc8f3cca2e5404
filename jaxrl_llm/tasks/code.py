"""Problems that a Python program solves, judged by tests in a sandbox.

A row of a problem file has one of these forms:

  MBPP       text, test_list, and optionally test_setup_code, code
  HumanEval  prompt, entry_point, test
  any        problem, tests (Python statements), and optionally setup,
             entry_point, solution; or problem, cases (input and output)

The reward is the share of tests that pass. The whole of HumanEval's `check` is
one test. `rewards/code.py` says how a program is found in a response, and
`rewards/sandbox/` how it is judged.
"""

import ast
import dataclasses
import os
from typing import Annotated, Any, Hashable, Literal, Mapping, Sequence
import warnings
import zlib

from jaxrl_llm import answers
from jaxrl_llm.base import own_code, plain
from jaxrl_llm.rewards import code, sandbox, Verdict
from jaxrl_llm.rewards.pool import Pool, Pooled
from jaxrl_llm.tasks import Problem, problem_files, sets, templates

_WRITE = ('Write a Python program for this task. Reply with the code in one '
          'Markdown code block.\n\nTask: {text}')
_TESTS = '\n\nYour code should pass these tests:\n'
_COMPLETE = ('Complete this Python function. Reply with the whole function in '
             'one Markdown code block.\n\n```python\n{text}```')
# Prompt formats; {problem} is replaced by the problem with its instruction.
FORMATS = {
    'chat': '{problem}', 'question': '{problem}\n\n', 'none': '{problem}'}


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the problems, their prompts and the sandbox.

  Attributes:
    path: files of training problems (.jsonl, .jsonl.gz, .json, .parquet), or
      data sets on the hub (org/name, org/name/subset:split).
    heldout: files or data sets of held-out problems; they are not trained on.
      Evaluations on several are reported for each file too.
    heldout_count: number of problems of path to hold out if heldout is empty.
    ids: first and last task_id of the rows of path to train on, such as
      601-974 (MBPP's training set); empty for all.
    template: text around the problem; chat, question, none, a text that
      contains {problem}, or a FILE.txt with one.
    markup: whether the text is a user's message in the model's chat markup;
      chat, none, or auto (yes for the template chat).
    system: system message in front of the user's, or a FILE.txt with one.
    answer: what a response is; block (a program, in Markdown or alone) or
      completion (the rest of a function whose beginning is the prompt).
    shown_tests: tests that the prompt shows, of rows with Python statements.
    reward: tests (share of the tests that pass) or all (1 if all pass, else 0).
    reasoning_tags: names of the tags of reasoning, such as think; only what
      follows the last end tag is judged, and a block without end has no answer.
    sandbox: where programs run; bubblewrap (Linux), remote (a machine that runs
      jaxrl_llm.rewards.sandbox.serve) or subprocess (no sandbox at all).
    allow_unsafe: whether sandbox=subprocess is allowed.
    address: of the service for sandbox=remote, such as http://10.0.0.5:8037.
    token: file with the service's token.
    timeout: processor seconds of a test.
    wall: seconds by the clock of all tests of a program.
    memory: bytes of memory of a program.
    workers: number of processes that judge (0: one per core, at most 8).
  """
  path: Annotated[tuple[str, ...], 'problems'] = ()
  heldout: Annotated[tuple[str, ...], 'problems'] = ()
  heldout_count: Annotated[int, '[0, inf)', 'problems'] = 100
  ids: Annotated[str, 'problems'] = ''
  template: own_code.FileText = own_code.FileText('chat')
  markup: Literal['auto', 'chat', 'none'] = 'auto'
  system: own_code.FileText = own_code.FileText('')
  answer: Literal['block', 'completion'] = 'block'
  shown_tests: Annotated[int, '[0, inf)'] = 3
  reward: Literal['tests', 'all'] = 'tests'
  reasoning_tags: tuple[str, ...] = ('think',)
  sandbox: Annotated[
      Literal['bubblewrap', 'remote', 'subprocess'], 'free'] = 'bubblewrap'
  allow_unsafe: Annotated[bool, 'free'] = False
  address: Annotated[str, 'free'] = ''
  token: Annotated[str, 'free'] = ''
  timeout: Annotated[float, '(0, 3600]'] = 10.0
  wall: Annotated[float, '(0, 86400]'] = 60.0
  memory: Annotated[int, '[50000000, inf)'] = 512 << 20
  workers: Annotated[int, '[0, inf)', 'free'] = 0

  def __post_init__(self):
    self.worded()
    if self.ids and not _range(self.ids):
      raise ValueError(
          f'task.ids={self.ids!r} is no range of ids: write 601-974.')

  def worded(self) -> templates.Template:
    """Returns the template."""
    return templates.make_template(
        self.template, FORMATS, markup=self.markup, system=self.system)


_DEFAULTS = Options()


@dataclasses.dataclass(frozen=True)
class Checks:
  """Checks of a program; `Problem.info`.

  Attributes:
    tests: Python statements.
    setup: statements before each test.
    entries: names that are tested.
    cases: pairs of standard input and output, in place of tests.
    head: beginning of the program, with the head of its last function.
    answer: a program that solves the problem, for the reader; '' for none.
  """
  tests: tuple[str, ...] = ()
  setup: str = ''
  entries: tuple[str, ...] = ()
  cases: tuple[tuple[str, str], ...] = ()
  head: str = ''
  answer: str = ''


def parse(row: Mapping[str, Any], shown_tests: int) -> tuple[str, Checks]:
  """Returns the text of a row's problem with its instruction, and its checks.

  Raises:
    ValueError: the row has none of the forms at the top of this file.
  """
  if 'entry_point' in row and 'test' in row:
    head, entry = _text(row, 'prompt'), _text(row, 'entry_point')
    solution = row.get('canonical_solution') or ''
    return _COMPLETE.replace('{text}', head), Checks(
        (f'{_text(row, "test")}\ncheck({entry})',), head, (entry,), (), head,
        f'{head}{solution}' if solution else '')
  if 'cases' in row:
    cases = _list(row, 'cases')
    try:
      pairs = tuple((c['input'], c['output']) for c in cases)
    except (KeyError, TypeError):
      pairs = ((None, None),)
    if not all(isinstance(given, (str, int, float)) and isinstance(
        output, (str, int, float)) for given, output in pairs):
      raise ValueError(
          "'cases' must be a list of objects with input and output, texts or "
          'numbers.')
    pairs = tuple((str(given), str(output)) for given, output in pairs)
    return _WRITE.replace('{text}', _text(row, 'problem')), Checks(
        cases=pairs, answer=str(row.get('solution') or ''))
  mbpp = 'test_list' in row
  tests = _list(row, 'test_list' if mbpp else 'tests')
  for number, test in enumerate(tests, 1):
    if fault := _fault(test):
      raise ValueError(f'test {number} is {plain.shown(test)}, {fault}')
  solution = str(row.get('code' if mbpp else 'solution') or '')
  setup = [*_lines(row, 'test_imports')]
  setup += _lines(row, 'test_setup_code' if mbpp else 'setup') or ['']
  entry = str(row.get('entry_point') or '')
  text = _WRITE.replace('{text}', _text(
      row, 'problem' if not mbpp else 'text' if 'text' in row else 'prompt'))
  if shown := tests[:shown_tests]:
    text += _TESTS + '\n'.join(shown)
  return text, Checks(
      tuple(tests), '\n'.join(setup),
      (entry,) if entry else _tested(solution, tests), answer=solution)


def _text(row: Mapping[str, Any], name: str) -> str:
  value = row.get(name)
  if not isinstance(value, str) or not value.strip():
    raise ValueError(
        f'field {name!r} is missing, empty or no text: a row has text and '
        'test_list, or prompt, entry_point and test, or problem and tests or '
        'cases.')
  return value


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
  value = row.get(name)
  if not isinstance(value, (list, tuple)) or not len(value):
    raise ValueError(f'field {name!r} is missing, empty or no list of tests.')
  return list(value)


def _lines(row: Mapping[str, Any], name: str) -> list[str]:
  """Returns the texts of a field of Python statements: a text or a list."""
  given = row.get(name) or []
  given = list(given) if isinstance(given, (list, tuple)) else [given]
  texts = all(isinstance(text, str) for text in given)
  if fault := _unread('\n'.join(given) if texts else given):
    raise ValueError(f'the statements of {name!r} before the tests are {fault}')
  return given


def _unread(text: Any) -> str:
  """Says why a text is no Python; '' if it is some."""
  if not isinstance(text, str):
    return 'no text: write Python statements; input and output are of `cases`.'
  try:
    with warnings.catch_warnings(action='ignore'):  # escapes such as '\\w'
      ast.parse(text)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    return f'no Python ({plain.shown(str(error))}): correct it.'
  return ''


def _fault(test: Any) -> str:
  """Says why a test can judge no program; '' if it can."""
  if fault := _unread(test):
    return fault
  with warnings.catch_warnings(action='ignore'):
    lines = ast.parse(test).body
  lines = [line for line in lines if not isinstance(
      line, (ast.Import, ast.ImportFrom, ast.Assign))] or lines
  # Such as a comparison whose value nobody reads.
  return '' if any(
      not isinstance(line, ast.Expr) or not isinstance(
          line.value, (ast.Compare, ast.Constant, ast.Name))
      for line in lines) else 'which cannot fail: begin it with assert.'


def _tested(solution: str, tests: Sequence[str]) -> tuple[str, ...]:
  """Returns the names that tests call and a solution defines.

  Without a solution, a name of Python's own is Python's; see `checker.py`.
  """
  try:
    with warnings.catch_warnings(action='ignore'):  # escapes such as '\\w'
      defined = {n.name for n in ast.parse(solution).body
                 if hasattr(n, 'name')}
      called = {n.func.id for test in tests for n in ast.walk(ast.parse(test))
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return ()
  return tuple(sorted(defined & called))


def _range(text: str) -> range | None:
  first, dash, last = text.partition('-')
  if not (dash and first.isdecimal() and last.isdecimal()):
    return None
  return range(int(first), int(last) + 1)


class Code(Pooled):
  """Task of problems that a program solves; see `tasks.Task`."""

  def __init__(self, options: Options, tokenizer: Any):
    """Reads the problems.

    Raises:
      ValueError: a file or a row is not valid, or nothing is left to train on.
    """
    self.options, self.tokenizer = options, tokenizer
    self.stops = templates.stops(options.worded(), tokenizer)
    names = problem_files.names(options.heldout)
    self.train, self.heldout = sets.split(
        self._all(options.path, _range(options.ids)),
        self._all(options.heldout, None, names), options.heldout_count,
        key=self.key, rank=lambda problem: zlib.crc32(b'%d' % problem.id),
        origin=f'task.path={options.path}')

  def _all(
      self, sources: Sequence[str], ids: range | None,
      names: Mapping[str, str] | None = None) -> list[Problem]:
    """Returns the problems of all sources, without repeated ones."""
    return sets.once([
        dataclasses.replace(problem, source=(names or {}).get(source, ''))
        for source in sources for problem in self._read(source, ids)],
        self.key, sources)

  def key(self, problem: Problem) -> Hashable:
    """Returns what tells a problem from others: its prompt and its tests."""
    return problem.prompt, dataclasses.replace(problem.info, answer='')

  def load(self, source: str) -> list[Problem]:
    """Reads the problems of another file or data set, with these options."""
    return self._read(source, None)

  def _read(self, source: str, ids: range | None) -> list[Problem]:
    problems, faults = [], []
    stem = os.path.basename(source).partition('.')[0]
    for where, row in problem_files.rows(source, faults):
      try:
        if ids and row.get('task_id') not in ids:
          continue
        text, checks = parse(row, self.options.shown_tests)
      except ValueError as error:
        faults.append((where, str(error)))
        continue
      problems.append(Problem(
          sets.number(text),
          self._prompt(text, checks), stem, info=checks, text=text))
    problem_files.refuse(faults)
    if not problems:
      raise ValueError(
          f'{source} has no problems'
          + (f' with a task_id in {self.options.ids}.' if ids else '.'))
    return problems

  def _prompt(self, text: str, checks: Checks) -> str:
    """Returns the prompt of a problem."""
    if self.options.answer == 'completion':
      return templates.render(
          templates.make_template('none'), checks.head or text, self.tokenizer)
    return templates.render(self.options.worded(), text, self.tokenizer)

  def submit(self, problem: Problem, text: str, truncated: bool):
    """Starts to judge a response; see `rewards.submit`."""
    del truncated  # a truncated response may still contain its program
    program = self.program(problem, answers.with_opened(
        problem.prompt, text, self.options.reasoning_tags))
    if program is None:
      return lambda: Verdict(0.0, 'no_code')
    checks, options = problem.info, self.options
    if self._pool is None:
      # The sandbox has its own limits; this one is for one that hangs.
      self._pool = Pool(
          'jaxrl_llm.rewards.code:judge', seconds=2 * options.wall + 60,
          workers=options.workers or min(os.cpu_count() or 1, 8))
    reply = self._pool.submit(dict(
        program=program, cases=checks.cases, tests=dict(
            tests=checks.tests, setup=checks.setup, entries=checks.entries),
        limits=dict(seconds=options.timeout, wall=options.wall,
                    memory=options.memory),
        sandbox=self._sandbox))
    return lambda: self._verdict(reply.result())

  def program(self, problem: Problem, text: str) -> str | None:
    """Returns the program that a response makes, or None."""
    checks, options = problem.info, self.options
    entry = checks.entries[0] if checks.entries else ''
    if options.answer == 'completion' and checks.head:
      return checks.head + code.completion_of(text)
    found = code.code_of(text, entry=entry, tags=options.reasoning_tags)
    return found and code.assembled(found, checks.head, entry)

  @property
  def _sandbox(self) -> dict[str, Any]:
    options = self.options
    return dict(name=options.sandbox, allow_unsafe=options.allow_unsafe,
                address=options.address, token=options.token)

  def ready(self) -> None:
    """Tries the sandbox.

    Raises:
      ValueError: it does not work here; with what to do.
    """
    sandbox.make(**self._sandbox)

  def _verdict(self, reply: Mapping[str, Any]) -> Verdict:
    if 'reward' not in reply:  # the sandbox failed, not the program
      return Verdict(0.0, 'error', False, reply.get('detail', ''),
                     trace=reply.get('trace', ''))
    reward = reply['reward']
    if self.options.reward == 'all':
      reward = float(reward == 1)
    return Verdict(reward, reply['kind'], True, reply.get('detail', ''))

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response by the tests of its problem.

    The verdict's kind is correct, no_code, or that of the first test that
    failed: wrong, syntax_error, exception, timeout, memory or killed. A failure
    of the sandbox itself is an error, and not valid.
    """
    return self.submit(problem, text, truncated)()


def create(tokenizer: Any, options: Options = _DEFAULTS) -> Code:
  """Makes the task for a model's tokeniser, which it cannot do without."""
  templates.check_tokenizer(options.worded(), tokenizer, 'code')
  if options.sandbox == 'subprocess' and not options.allow_unsafe:
    raise ValueError(
        'task.sandbox=subprocess runs programs of the model as this user: set '
        'task.allow_unsafe=True if this machine has nothing to lose, or use '
        'bubblewrap or remote.')
  if options.sandbox == 'remote' and not options.address:
    raise ValueError(
        'task.sandbox=remote needs task.address, such as http://10.0.0.5:8037, '
        'of a machine that runs jaxrl_llm.rewards.sandbox.serve.')
  return Code(options, tokenizer)
