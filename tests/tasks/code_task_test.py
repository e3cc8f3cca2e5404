r"""Tests of the code task: rows, programs in responses, and verdicts.

Problems of our own are always judged. Those of MBPP and HumanEval are if they
are in ../shared/data: a sample, and with `-m slow` all of them, with mutations
whose verdicts must equal those of plain runs.
"""

import copy
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import types

import pytest

from jaxrl_llm import rewards, tasks
from jaxrl_llm.rewards import code, sandbox
from tests.helpers.bubblewrap import NEEDED

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data'
TOKENIZER = types.SimpleNamespace(
    start='<s>', chat=lambda text: f'<u>{text}<m>')

MBPP = {
    'task_id': 601, 'text': 'Write a function to add two numbers.',
    'code': 'def sum(a, b):\r\n\treturn a + b',
    'test_setup_code': 'two = Pair(1, 1)',
    'test_list': ['assert sum(1, 2) == 3', 'assert sum(-1, 1) == 0',
                  'assert sum(two.a, two.b) == 2']}
BEFORE = "of 'setup' before the tests are no "
PAIR = ('class Pair:\n  def __init__(self, a, b): self.a, self.b = a, b\n')
MBPP['code'] = PAIR + MBPP['code'].replace('\r\n', '\n')
HUMANEVAL = {
    'task_id': 'own/0', 'entry_point': 'decoded',
    'prompt': 'import string\n\n\ndef encoded(s):\n    """Shift by one."""\n'
              '    return "".join(chr(ord(c) + 1) for c in s)\n\n\n'
              'def decoded(s):\n    """Undo encoded.\n    >>> decoded("bc")\n'
              '    \'ab\'\n    """\n',
    'canonical_solution': '    return "".join(chr(ord(c) - 1) for c in s)\n',
    'test': 'def check(candidate):\n    for s in ("ab", "", "xyz"):\n'
            '        assert candidate(encoded(s)) == s\n'
            '    assert decoded("b") == "a"\n'}
PLAIN = {'problem': 'Double a number.', 'tests': ['assert double(2) == 4'],
         'solution': 'def double(x):\n  return 2 * x'}
CASES = {'problem': 'Print the double of each line.', 'cases': [
    {'input': '1\n2\n', 'output': '2\n4'}, {'input': '', 'output': ''}],
         'solution': 'import sys\nfor line in sys.stdin: print(2 * int(line))'}
ROWS = [MBPP, HUMANEVAL, PLAIN, CASES]


def write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


@pytest.fixture
def make(tmp_path):
  made = []

  def make(*rows, **options):
    path = write(tmp_path / 'rows.jsonl', rows)
    made.append(tasks.get(
        'code', TOKENIZER, path=(path,), heldout_count=0, workers=1,
        **options))
    return made[-1]

  yield make
  for task in made:
    task.close()


def fenced(program):
  return f'Here it is:\n```python\n{program}\n```\nIt adds.'


@pytest.fixture(scope='module')
def by_row(tmp_path_factory):
  """Function that makes a task of one row once: its workers take a second."""
  made = {}

  def get(row):
    key = json.dumps(row)
    if key not in made:
      path = write(tmp_path_factory.mktemp('row') / 'rows.jsonl', [row])
      made[key] = tasks.get(
          'code', TOKENIZER, path=(path,), heldout_count=0, workers=1,
          sandbox='subprocess', allow_unsafe=True)
    return made[key]

  yield get
  for task in made.values():
    task.close()


@pytest.mark.parametrize('text, entry, found', [
    ('```python\na = 1\n```', '', 'a = 1\n'),
    ('```\na = 1\n```', '', 'a = 1\n'),
    ('~~~py\na = 1\n~~~', '', 'a = 1\n'),
    ('```python\ndef f(): 1\n```\nUse:\n```python\nf()\n```', 'f',
     'def f(): 1\n'),
    ('```python\ndef f(): 1\n```\nBetter:\n```python\ndef f(): 2\n```', 'f',
     'def f(): 2\n'),
    ('```python\ndef f(): 1', 'f', 'def f(): 1'),
    ('```bash\npip\n```\n```python\nx = 1\n```\n```text\n3\n```', '',
     'x = 1\n'),
    ('````python\ns = "```"\n````', '', 's = "```"\n'),
    ('<think>```python\nx = 0\n```</think>```python\nx = 1\n```', '',
     'x = 1\n'),
    ('<think>```python\nx = 0\n```', '', None),
    ('1. So:\n\n   ```python\n   def f(x):\n     return x\n   ```\n2. Done.',
     'f', 'def f(x):\n  return x\n'),
    ('<answer>```python\nx = 1\n```</answer>', '', 'x = 1\n'),
    ('<answer>\n```python\nx = 1\n```\n</answer>', '', 'x = 1\n'),
    ('```python\r\nif x:\r\n  x = 1\r\n```\r\nDone.', '',
     'if x:\n  x = 1\n'),
    ('```python\nx = 1\n```\nIt prints\n```\n3\n```', '', 'x = 1\n'),
    ('```python\nf()\n```\n```\ndef f(): 1\n```', 'f', 'def f(): 1\n'),
    ('Sure.\ndef f(x):\n  return x', 'f', 'def f(x):\n  return x'),
    ('I do not know.', 'f', None), ('', '', None), ('```python\n```', '', None),
    ('```json\n{}\n```', '', None)])
def test_program_in_a_response(text, entry, found):
  assert code.code_of(text, entry=entry) == found


def test_many_fences_take_linear_time():
  text = '```python\nx = 1\n```\n' * 20_000 + '`' * 100_000
  assert code.code_of(text) == 'x = 1\n'


def test_prompts(make):
  task = make(*ROWS)
  add, decoded, double, _ = task.train
  assert add.prompt.startswith('<u>') and add.prompt.endswith('<m>')
  assert 'assert sum(-1, 1) == 0' in add.prompt
  assert HUMANEVAL['prompt'] in decoded.prompt
  assert add.info.entries == ('sum',)
  assert double.info.entries == ('double',)
  task = make(MBPP, HUMANEVAL, answer='completion', shown_tests=0)
  assert task.train[1].prompt == '<s>' + HUMANEVAL['prompt']
  assert 'assert' not in task.train[0].prompt


def test_statements_before_the_tests_may_be_a_list(make):
  listed = make({**PLAIN, 'setup': ['import math', 'x = 1']})
  assert listed.train[0].info.setup == 'import math\nx = 1'
  text = make({**MBPP, 'test_imports': 'import math'})
  assert text.train[0].info.setup.startswith('import math')
  lines = make({**PLAIN, 'setup': ['def g():', '  return 1']})
  assert lines.train[0].info.setup == 'def g():\n  return 1'
  # As rows of MBPP always had it: runs go on with the same problems.
  bare = make({**PLAIN, 'test_imports': ['import math']})
  assert bare.train[0].info.setup == 'import math\n'
  called = make({**PLAIN, 'tests': [
      'check(double)', 'x = 1\nassert x', 'double(1) == 2 or exit(1)',
      'double(1)[0]', '[1 / 0 for _ in [1] if double(1) != 2]']})
  assert len(called.train[0].info.tests) == 5


def test_rows_by_id(make):
  other = {**MBPP, 'task_id': 7, 'text': 'Another.'}
  assert [p.text for p in make(MBPP, other, ids='601-974').train] == [
      make(MBPP).train[0].text]
  with pytest.raises(ValueError, match='no problems with a task_id in 1-6'):
    make(MBPP, other, ids='1-6')
  with pytest.raises(ValueError, match='no range'):
    make(MBPP, ids='6')


@pytest.mark.parametrize('row, said', [
    ({'problem': 'x'}, "field 'tests' is missing"),
    ({'problem': 'x', 'tests': []}, "field 'tests' is missing, empty"),
    ({'tests': ['assert f()']}, "field 'problem' is missing"),
    ({'problem': 'x', 'tests': [{'input': '1', 'output': '2'}]},
     "test 1 is {'input'.* no text: .* are of `cases`"),
    ({'problem': 'x', 'tests': ['assert f(1)', 'f(1) == 2']},
     "test 2 is .*, which cannot fail: begin it with assert"),
    ({'problem': 'x', 'tests': ['']}, 'which cannot fail'),
    ({'problem': 'x', 'tests': ['r = f(1)\nr == 1']}, 'which cannot fail'),
    ({'problem': 'x', 'tests': ['import m\nf(1) == 2']}, 'which cannot fail'),
    ({'problem': 'x', 'tests': ['assert f(']}, 'no Python .*: correct it'),
    ({**PLAIN, 'setup': ['import math', 3]}, BEFORE + 'text'),
    ({**PLAIN, 'setup': 'import'}, BEFORE + 'Python'),
    ({**PLAIN, 'setup': 3}, BEFORE + 'text'),
    ({**PLAIN, 'setup': {'x': 1}}, BEFORE + 'text'),
    ({'problem': 'x', 'cases': [{'input': ['1'], 'output': 3}]},
     'texts or numbers'),
    ({**HUMANEVAL, 'prompt': 3}, "field 'prompt' is missing"),
    ({'problem': 'x', 'cases': [{'input': 1}]}, 'input and output')])
def test_bad_rows(make, row, said):
  with pytest.raises(ValueError, match=f'rows.jsonl, line 1: .*{said}'):
    make(row)


def test_rows_of_one_text_with_other_tests_are_problems(
    make, tmp_path, caplog):
  rows = [{**PLAIN, 'tests': [f'assert double({i}) == {2 * i}']}
          for i in range(5)]
  other = {**rows[2], 'solution': 'def double(x):\n  return x + x'}
  task = make(*rows, other, shown_tests=0)
  assert [p.info.tests for p in task.train] == [
      tuple(row['tests']) for row in rows]
  assert len({p.id for p in task.train}) == 5
  assert '1 of 6 problems, which are repeated' in caplog.text
  held = write(tmp_path / 'held.jsonl', [rows[1]])
  task = make(*rows, other, shown_tests=0, heldout=(held,))
  assert len(task.train) == 4


def test_bad_options(make, tmp_path):
  with pytest.raises(ValueError, match='allow_unsafe=True'):
    make(PLAIN, sandbox='subprocess')
  with pytest.raises(ValueError, match='task.address'):
    make(PLAIN, sandbox='remote')
  with pytest.raises(ValueError, match='does not contain'):
    make(PLAIN, template='chatt')
  with pytest.raises(ValueError, match='tokeniser of a model'):
    tasks.get('code', path=(write(tmp_path / 'a.jsonl', [PLAIN]),))


# Subprocesses show the same, and run where bubblewrap does not.
@pytest.fixture
def unsafe(make):
  return lambda *rows, **options: make(
      *rows, sandbox='subprocess', allow_unsafe=True, **options)


def test_references_pass(unsafe):
  task = unsafe(*ROWS)
  verdicts = rewards.verify_all(
      task, task.train, [fenced(p.info.answer) for p in task.train],
      [False] * 4)
  assert verdicts == [rewards.Verdict(1.0, 'correct')] * 4


@pytest.mark.parametrize('row, text, reward, kind', [
    (MBPP, fenced(PAIR + 'def sum(a, b): return 3'), 1 / 3, 'wrong'),
    (MBPP, fenced(PAIR + 'def other(a, b): return a + b'), 0, 'exception'),
    (MBPP, fenced('def sum(a, b): return a + b'), 0, 'exception'),
    (MBPP, fenced(PAIR + 'def sum(a, b:'), 0, 'syntax_error'),
    (MBPP, 'I cannot.', 0, 'no_code'),
    (HUMANEVAL, fenced('def encoded(s): return ""\ndef decoded(s): return ""'),
     0, 'wrong'),
    (HUMANEVAL, fenced('def decoded(s):\n  '
                       'return "".join(chr(ord(c) - 1) for c in s)'), 1,
     'correct'),
    (HUMANEVAL, fenced('    return "".join(chr(ord(c) - 1) for c in s)'), 1,
     'correct'),
    (CASES, fenced('import sys\nfor l in sys.stdin: print(2 * int(l), "")'), 1,
     'correct'),
    (CASES, fenced('print(2)\nprint(4)'), .5, 'wrong'),
    (CASES, fenced('print(input() * 0)\nprint(4'), 0, 'syntax_error'),
    (CASES, fenced('x = input()\nx[9]'), 0, 'exception')])
def test_verdicts(by_row, row, text, reward, kind):
  task = by_row(row)
  verdict = task.verify(task.train[0], text, False)
  assert (verdict.kind, verdict.valid) == (kind, True), verdict
  assert verdict.reward == pytest.approx(reward)
  if reward < 1:
    strict = copy.copy(task)  # with the same workers
    strict.options = dataclasses.replace(task.options, reward='all')
    assert strict.verify(task.train[0], text, False).reward == 0


def test_completion(unsafe):
  task = unsafe(HUMANEVAL, answer='completion')
  text = HUMANEVAL['canonical_solution'] + '\n\ndef other():\n    return (('
  assert task.verify(task.train[0], text, False).kind == 'correct'


def test_a_sandbox_that_fails_is_no_verdict(make, monkeypatch):
  monkeypatch.setenv('PATH', '/nowhere')
  task = make(PLAIN)
  with pytest.raises(ValueError, match='apt install bubblewrap'):
    task.ready()
  verdict = task.verify(task.train[0], fenced('x = 1'), False)
  assert (verdict.kind, verdict.valid) == ('error', False)
  assert 'apt install bubblewrap' in verdict.detail


def test_held_out_problems_know_their_file_among_several(tmp_path):
  files = [write(tmp_path / f'{name}.jsonl', rows) for name, rows in (
      ('train', [CASES]), ('a', [MBPP, PLAIN]), ('b', [PLAIN, HUMANEVAL]))]
  task = tasks.get('code', TOKENIZER, path=(files[0],), heldout=files[1:])
  assert [p.source for p in task.heldout] == ['a', 'a', 'b']
  alone = tasks.get('code', TOKENIZER, path=(files[0],), heldout=files[2:])
  assert [p.source for p in alone.heldout] == ['', '']


def problems(name):
  """Returns the task and the problems of a file of the public data."""
  path = DATA / f'{name}.jsonl.gz'
  if not path.exists():
    pytest.skip(f'{path.name} is not in ../shared/data')
  task = tasks.get('code', TOKENIZER, path=(str(path),), heldout_count=0)
  return task, task.train


def judged(task, chosen, programs):
  try:
    return rewards.verify_all(
        task, chosen, [fenced(p) for p in programs], [False] * len(chosen))
  finally:
    task.close()


@NEEDED
@pytest.mark.parametrize('name', ['mbpp', 'humaneval'])
def test_public_references_pass(name):
  task, known = problems(name)
  # The problems that need more than one function of the program.
  special = [p for p in known if any(w in p.info.setup + p.info.tests[0]
                                     for w in ('Node(', 'Pair(', 'poly(',
                                               'getsizeof', 'encode_'))]
  chosen = special + random.Random(0).sample(known, 4)
  verdicts = judged(task, chosen, [p.info.answer for p in chosen])
  assert {v.kind for v in verdicts} == {'correct'}


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize('name', ['mbpp', 'humaneval'])
def test_all_public_references_pass(name):
  task, known = problems(name)
  verdicts = judged(task, known, [p.info.answer for p in known])
  assert [(p.text, v) for p, v in zip(known, verdicts)
          if v.kind != 'correct'] == []


OPERATORS = {'+': '-', '-': '+', '*': '+', '<': '<=', '<=': '<', '>': '>=',
             '>=': '>', '==': '!=', '!=': '==', 'and': 'or', 'or': 'and',
             'True': 'False', 'False': 'True', '%': '*', '//': '/', 'not': '',
             'min': 'max', 'max': 'min', 'if': 'while'}


def mutated(program, rng):
  """Changes one token of a program: an operator, a number, a name."""
  import io
  import tokenize
  tokens = [*tokenize.generate_tokens(io.StringIO(program).readline)]
  names = sorted({t.string for t in tokens if t.type == tokenize.NAME
                  and t.string.isidentifier()})
  spots = [t for t in tokens if t.type in (
      tokenize.NAME, tokenize.NUMBER, tokenize.OP)]
  t = rng.choice(spots)
  new = OPERATORS.get(t.string)
  if new is None:
    new = (str(int(t.string) + rng.choice([-1, 1]))
           if t.string.isdigit() else rng.choice(names))
  lines = program.splitlines(keepends=True)
  row, start, end = t.start[0] - 1, t.start[1], t.end[1]
  lines[row] = lines[row][:start] + new + lines[row][end:]
  return ''.join(lines)


def plain_kind(checks, program, folder):
  """Returns whether each test passes in a plain Python run."""
  passed = []
  for test in checks.tests:
    # The end of the whole program, which exiting early does not reach.
    source = '\n'.join([
        program, '' if checks.head else checks.setup, test,
        'open("end", "w").close()'])
    (folder / 'program.py').write_text(source)
    (folder / 'end').unlink(missing_ok=True)
    try:
      subprocess.run(
          [sys.executable, '-I', '-S', 'program.py'], cwd=folder, timeout=20,
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
      pass
    passed.append((folder / 'end').exists())
  return passed


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize('name', ['mbpp', 'humaneval'])
def test_mutations_are_judged_as_plain_runs_are(name, tmp_path):
  """One mutation of each reference; plain runs are of our data's own code."""
  task, known = problems(name)
  rng = random.Random(1)
  programs = [mutated(p.info.answer, rng) for p in known]
  verdicts = judged(task, known, programs)
  differ, failing = [], 0
  for problem, program, verdict in zip(known, programs, verdicts):
    passed = plain_kind(problem.info, program, tmp_path)
    failing += not all(passed)
    if abs(verdict.reward - sum(passed) / len(passed)) > 1e-9:
      differ.append((program, verdict, passed))
  assert failing >= len(known) / 2
  assert differ == []


def test_a_case_that_waits_leaves_time_to_the_others():
  walls = []

  def run(program, *, stdin, limits):
    walls.append(limits.wall)
    return sandbox.Result(
        'timeout' if stdin == b'1' else 'ok', 0, stdin, b'', 0, 0)

  outcomes = code.check_cases(
      types.SimpleNamespace(run=run), '', [('1', '1'), ('2', '2')],
      sandbox.ProgramLimits(wall=8))
  assert [outcome.kind for outcome in outcomes] == ['timeout', 'passed']
  assert walls == [4, 4]
