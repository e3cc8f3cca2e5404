"""Verifier for programs: takes the code out of a response and runs its tests.

`judge` runs in a worker process, see `pool.py`. It starts the program and its
tests in sandboxes, see `sandbox/`, and never runs or imports either itself.
"""

import dataclasses
import functools
import re
import time
from typing import Any, Sequence

from jaxrl_llm import answers
from jaxrl_llm.rewards import sandbox

# A tag of the answer may stand around it.
_FENCE = re.compile(
    r'^([ \t]*)(?:<\w+>[ \t]*)?(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*\n'
    r'(.*?)(?:^[ \t]*\2[ \t]*(?:</\w+>[^\n]*)?$|\Z)',
    re.MULTILINE | re.DOTALL)
_PYTHON = 'python', 'python3', 'py', 'py3'
# First line of a program that stands in a response without a fence.
_CODE = re.compile(
    r'^(?:def |class |async def |import |from \w|@\w|if |for |while |try:|'
    r'with |print\(|[A-Za-z_]\w*\s*=(?!=))', re.MULTILINE)
# Where a base model that completes a function goes on to something else.
_NEXT = re.compile(r'\n(?:def |class |async def |@|if |print\(|#|```)')


def code_of(
    text: str, *, entry: str = '', tags: Sequence[str] = answers.TAGS,
) -> str | None:
  """Returns the program in a response.

  This is the last block of Markdown that defines `entry`, else the last one
  that is marked as Python, else the last one that is not marked. A block
  without an end goes to the end of the text. Without a block, it is the text
  from the first line that begins as a program does.

  Args:
    text: the response.
    entry: name of the function that is asked for; '' for none.
    tags: see `answers.final_part`.

  Returns:
    The program, or None if there is none.
  """
  text = answers.final_part(text, tags).replace('\r\n', '\n')
  blocks = [(mark, _dedented(block, len(indent))) for indent, _, mark, block in
            map(re.Match.groups, _FENCE.finditer(text))
            if block.strip() and mark.lower() in ('', *_PYTHON)]
  if blocks:
    wanted = [b for b in blocks if entry and defines(b[1], entry)]
    return (wanted or [b for b in blocks if b[0]] or blocks)[-1][1]
  first = _CODE.search(text)
  return text[first.start():] if first else None


def _dedented(block: str, indent: int) -> str:
  """Returns a block in a list, which is indented as its fence is."""
  return re.sub(rf'^[ \t]{{0,{indent}}}', '', block, flags=re.MULTILINE)


def defines(code: str, name: str) -> bool:
  """Returns whether a program's text defines a function or a class."""
  return bool(re.search(
      rf'^(?:async\s+def|def|class)\s+{re.escape(name)}\b', code, re.MULTILINE))


def completion_of(text: str) -> str:
  """Returns the part of a text that still completes a function's body."""
  end = _NEXT.search(text)
  return text[:end.start()] if end else text


def assembled(code: str, head: str, entry: str) -> str:
  """Returns a program from the beginning that was given and the answer.

  Args:
    code: the answer: the whole function, or its body.
    head: beginning of the program; it ends with the head of `entry`.
    entry: name of the function that is asked for.
  """
  if not head:
    return code
  if not defines(code, entry):
    return head + code
  before = re.split(
      rf'^(?:async\s+def|def)\s+{re.escape(entry)}\b', head,
      flags=re.MULTILINE)[0]
  return f'{before}\n{code}'


_executor = functools.lru_cache(1)(sandbox.make)


def judge(item: dict[str, Any]) -> dict[str, Any]:
  """Judges a program.

  Args:
    item: `program`; `tests`, fields of `sandbox.Suite`, or `cases`, pairs of
      standard input and output; `limits`, fields of `sandbox.ProgramLimits`;
      `sandbox`, arguments of `sandbox.make`.

  Returns:
    `kind`: 'correct' or the kind of the first test that failed; `reward`: the
    share of tests that passed; `detail`: number and reason of that test.
  """
  executor = _executor(**item['sandbox'])
  limits = sandbox.ProgramLimits(**item['limits'])
  if cases := item.get('cases'):
    outcomes = check_cases(executor, item['program'], cases, limits)
  else:
    outcomes = executor.check(
        item['program'], sandbox.Suite(**item['tests']), limits=limits)
  bad = [(i, o) for i, o in enumerate(outcomes, 1) if o.kind != 'passed']
  if not bad:
    return {'kind': 'correct', 'reward': 1.0}
  number, first = bad[0]
  return {
      'kind': first.kind,
      'reward': (len(outcomes) - len(bad)) / len(outcomes),
      'detail': f'test {number} of {len(outcomes)}: {first.detail}'}


def check_cases(
    executor: sandbox.Executor, program: str, cases: Sequence[Sequence[str]],
    limits: sandbox.ProgramLimits) -> list[sandbox.Outcome]:
  """Runs a program once for each pair of standard input and expected output.

  Spaces at the end of a line, and empty lines at the end, do not count. All
  cases together have `limits.wall` seconds, and each has half of them.
  """
  outcomes = []
  end = time.monotonic() + limits.wall
  for given, expected in cases:
    left = end - time.monotonic()
    if left <= 0:
      outcomes.append(sandbox.Outcome('timeout', 'no time was left'))
      continue
    result = executor.run(
        program, stdin=given.encode('utf-8', 'replace'),
        limits=dataclasses.replace(
            limits, wall=min(left, limits.wall / 2)))
    outcomes.append(_outcome(result, expected))
  return outcomes


def _outcome(result: sandbox.Result, expected: str) -> sandbox.Outcome:
  """Returns the outcome of one run."""
  if result.status == 'ok':
    same = _lines(result.stdout.decode('utf-8', 'replace')) == _lines(expected)
    return sandbox.Outcome('passed' if same else 'wrong')
  last = result.stderr.decode('utf-8', 'replace').strip().rpartition('\n')[2]
  kind = {'timeout': 'timeout', 'memory': 'memory'}.get(result.status, 'killed')
  if result.status == 'exit':
    name = last.partition(':')[0]
    kind = {'MemoryError': 'memory', 'SyntaxError': 'syntax_error',
            'IndentationError': 'syntax_error', 'TabError': 'syntax_error'}.get(
                name, 'exception')
  return sandbox.Outcome(kind, last[:300])


def _lines(text: str) -> list[str]:
  return [line.rstrip() for line in text.rstrip().splitlines()]
