"""Changes the package in one place at a time, and tells what the tests see.

  python -m tests.mutations --list
  python -m tests.mutations --seed=1 --count=20 --only=jaxrl_llm/ops

Places are drawn by the seed from all operators, comparisons, conditions,
numbers, truth values and bounds in the code; annotations, texts, errors, logs
and assertions are left out. Each change is made in a copy of the checkout. Its
module's own tests run first, then those that import it, then those that import
a module that imports it, until one fails. A test that fails without the change
too does not count. A minute or more of processor time for each change.

"perhaps the same" are changes that often make no difference: of a comparison at
equality alone, or of a constant of a module, such as a time limit. Exit code 1:
others survived.
"""

import argparse
import ast
import contextlib
import copy
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And}
_BOUNDS = ast.Lt, ast.LtE, ast.Gt, ast.GtE
_TEXTS = ast.JoinedStr, ast.List, ast.Tuple
# Calls whose arguments are for people, or for whoever changes the code.
_SAID = re.compile(r'(logging|chex|warnings|rich)\.|print$|.*\b_?(warn|note)$')


class Change(NamedTuple):
  """A change of one place.

  Attributes:
    path: of the file, in the checkout.
    line, column: where it begins; the column counts from 1.
    start, end: bytes of the file that are replaced.
    before, after: their texts.
    suspect: whether it often makes no difference.
  """
  path: pathlib.Path
  line: int
  column: int
  start: int
  end: int
  before: str
  after: str
  suspect: bool

  def __str__(self):
    return (f'{self.path}:{self.line}:{self.column}: '
            f'{self.before} -> {self.after}')


def nodes(node: ast.AST) -> Iterator[ast.AST]:
  """Yields a node and what is below it, but for what is left out."""
  yield node
  for name, value in ast.iter_fields(node):
    if name in ('annotation', 'returns', 'decorator_list'):
      continue
    for child in value if isinstance(value, list) else [value]:
      left_out = not isinstance(child, ast.AST) or isinstance(
          child, (ast.JoinedStr, ast.Raise, ast.Assert)) or (
              isinstance(child, ast.Call)
              and _SAID.match(ast.unparse(child.func))) or (
                  isinstance(child, ast.If)
                  and '__main__' in ast.unparse(child.test))
      if not left_out:
        yield from nodes(child)


def replacements(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
  """Yields what may be replaced at a node, and by what."""
  new = copy.copy(node)
  match node:
    case ast.Compare(ops=[op]):
      new.ops = [SWAPS[type(op)]()]
      yield node, new
    case ast.BinOp(left, op, right) if type(op) in SWAPS and not any(
        isinstance(x, _TEXTS) or isinstance(getattr(x, 'value', 0), str)
        for x in (left, right)):
      new.op = SWAPS[type(op)]()
      yield node, new
    case ast.BoolOp(op=op):
      new.op = SWAPS[type(op)]()
      yield node, new
    case ast.UnaryOp(op=ast.Not() | ast.USub()):
      yield node, node.operand
    case ast.Constant(value=bool()):
      yield node, ast.Constant(not node.value)
    case ast.Constant(value=int()):
      yield node, ast.Constant(node.value + 1)
    case ast.Constant(value=float()):
      yield node, ast.Constant(node.value * 2 or 1.0)
    case ast.If() | ast.IfExp() | ast.While():
      yield node.test, ast.UnaryOp(ast.Not(), node.test)
    case (ast.Call(func=ast.Name(id='range'), args=[*_, bound])
          | ast.Slice(upper=bound)) if bound and not isinstance(
              bound, ast.Constant):
      yield bound, ast.BinOp(bound, ast.Sub(), ast.Constant(1))


def changes(path: pathlib.Path) -> Iterator[Change]:
  """Yields all changes of a file."""
  source = (ROOT / path).read_bytes()
  lines = [0, *itertools.accumulate(map(len, source.splitlines(True)))]
  tree = ast.parse(source)
  top = {id(child) for node in tree.body if isinstance(node, ast.Assign)
         for child in ast.walk(node)}
  for node in nodes(tree):
    for old, new in replacements(node):
      start = lines[old.lineno - 1] + old.col_offset
      end = lines[old.end_lineno - 1] + old.end_col_offset
      yield Change(
          path, old.lineno, old.col_offset + 1, start, end, ast.unparse(old),
          ast.unparse(new),
          id(old) in top and isinstance(old, ast.Constant)
          or isinstance(old, ast.Compare) and isinstance(old.ops[0], _BOUNDS)
          and old is node)


def drawn(seed: int, count: int, only: str) -> list[Change]:
  """Returns the changes of a seed."""
  files = sorted(
      path.relative_to(ROOT) for path in (ROOT / 'jaxrl_llm').rglob('*.py')
      if str(path.relative_to(ROOT)).startswith(only))
  found = [change for path in files for change in changes(path)]
  return random.Random(seed).sample(found, min(count, len(found)))


def module(path: pathlib.Path) -> str:
  """Returns a file's module; that of `__init__.py` is its folder."""
  return '.'.join(path.with_suffix('').parts).removesuffix('.__init__')


def imported(path: pathlib.Path) -> set[str]:
  """Returns the names that a file imports, with those of their packages."""
  found = set()
  for node in ast.walk(ast.parse((ROOT / path).read_text())):
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      found.update([node.module] * ('.' in node.module))
      found.update(f'{node.module}.{alias.name}' for alias in node.names)
  return found


def tests_of(path: pathlib.Path, wide: int) -> list[list[str]]:
  """Returns the tests that may notice a change of a file, nearest first.

  Args:
    path: the file.
    wide: most files that do not import it themselves.
  """
  uses = {file.relative_to(ROOT): imported(file.relative_to(ROOT))
          for files in ('tests/**/*_test.py', 'jaxrl_llm/**/*.py')
          for file in sorted(ROOT.glob(files))}
  tests = [file for file in uses if file.name.endswith('_test.py')]
  folder, stem = path.parent.relative_to('jaxrl_llm'), path.stem
  own = [file for file in tests if (
      file.parent == 'tests' / folder and file.name.startswith(stem)
      or file.parent.name == 'tests' and folder.name
      and file.name.startswith(folder.name))]
  name = module(path)
  # Those beside its own first, and those that need few modules.
  tests.sort(key=lambda file: (file.parent != 'tests' / folder,
                               len(uses[file])))
  direct = [file for file in tests if name in uses[file]]
  above = {module(file) for file, names in uses.items()
           if file.parts[0] == 'jaxrl_llm' and name in names}
  wider = [file for file in tests if above & uses[file]]
  stages, seen = [], set()
  for stage in (own, direct, wider):
    new = [file for file in stage if file not in seen]
    seen.update(new)
    stages.append([str(file) for file in new])
  stages[-1] = stages[-1][:wide]
  return [stage for stage in stages if stage]


class Copy:
  """A copy of the checkout, in which the tests run."""

  def __init__(self, folder: pathlib.Path, limit: float):
    """Copies it to a folder; `limit` is the seconds of a file of tests."""
    self._root, self._limit = folder / 'copy', limit
    self._now = time.time()
    shutil.copytree(
        ROOT, self._root, symlinks=True, ignore=shutil.ignore_patterns(
            '.git', '.venv', 'runs', '__pycache__', '.pytest_cache'))

  def write(self, path: pathlib.Path, content: bytes) -> None:
    """Writes a file, with a time that no compiled module of it has."""
    (self._root / path).write_bytes(content)
    self._now += 2
    os.utime(self._root / path, (self._now, self._now))

  def failure(self, tests: list[str]) -> str:
    """Returns the first test that fails, 'time limit', or ''."""
    process = subprocess.Popen(
        [sys.executable, '-m', 'pytest', '-x', '-q', '-rfE', '-p',
         'no:cacheprovider', *tests], cwd=self._root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, 'JAX_PLATFORMS': 'cpu',
             'PYTHONPATH': str(self._root)})
    try:
      said, _ = process.communicate(timeout=self._limit * len(tests))
    except subprocess.TimeoutExpired:
      return 'time limit'
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # and what it started
      process.wait()
    if process.returncode in (0, 5):  # 5: all of them are slow ones
      return ''
    found = re.search(r'^(?:FAILED|ERROR) ([^\s[]+)', said, re.M)
    return found[1] if found else said[-300:]

  def killer(self, change: Change, wide: int) -> str:
    """Returns the test that notices a change, 'time limit', or ''."""
    source = (ROOT / change.path).read_bytes()
    mutated = b''.join((
        source[:change.start], f'({change.after})'.encode(),
        source[change.end:]))
    for stage in tests_of(change.path, wide):
      self.write(change.path, mutated)
      try:
        failed = self.failure(stage)
      finally:
        self.write(change.path, source)
      if failed and (failed == 'time limit' or not self.failure([failed])):
        return failed
    return ''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  add = parser.add_argument
  add('--seed', type=int, default=0)
  add('--count', type=int, default=100, help='of changes')
  add('--only', default='jaxrl_llm', help='file, or beginning of its path')
  add('--limit', type=float, default=200.0, help='seconds of a file of tests')
  add('--wide', type=int, default=6, help='test files that do not import it')
  add('--list', action='store_true', help='show the changes, run nothing')
  args = parser.parse_args()
  found = drawn(args.seed, args.count, args.only)
  if args.list:
    print(*found, sep='\n')
    return
  counts = {}
  with tempfile.TemporaryDirectory() as folder:
    copied = Copy(pathlib.Path(folder), args.limit)
    for number, change in enumerate(found, 1):
      killer = copied.killer(change, args.wide)
      what = killer if killer == 'time limit' else (
          'killed' if killer else
          'perhaps the same' if change.suspect else 'survived')
      counts[what] = counts.get(what, 0) + 1
      by = f' by {killer}' if what == 'killed' else ''
      print(f'{number}. {what}{by}\n   {change}', flush=True)
  print(', '.join(f'{count} {what}' for what, count in counts.items()))
  sys.exit('survived' in counts)


if __name__ == '__main__':
  main()
