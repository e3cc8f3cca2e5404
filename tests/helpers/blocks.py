"""Code blocks of the README and of docs/, with their marks.

A mark is a comment in the line before a block, which is shown nowhere:
`<!-- run -->` (the tests execute it), `<!-- slow -->` (those of `make
test-slow` do) or `<!-- parse -->` (its names are checked). Blocks of `text` and
`math` have none.
"""

import functools
import importlib.util
import pathlib
import re
from typing import Any, Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ['README.md', 'CONTRIBUTING.md', *sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / 'docs').glob('*.md'))]
MARKS = 'run', 'slow', 'parse'
_BLOCK = re.compile(
    r'(?:^ *<!-- (\w+) -->\n)?^( *)```(\w*)\n(.*?)^ *```$',
    re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
  """A fenced block.

  Attributes:
    page: path of its page.
    mark: one of MARKS, or ''.
    language: such as 'python' and 'sh', or ''.
    code: its text.
  """
  page: str
  mark: str
  language: str
  code: str


def of_text(page: str, text: str) -> Iterator[Block]:
  """Yields the blocks of a text."""
  for mark, indent, language, code in _BLOCK.findall(text):
    yield Block(page, mark, language, ''.join(
        line.removeprefix(indent) for line in code.splitlines(True)))


def every(*, mark: str | None = None, language: str | None = None,
          page: str | None = None) -> list[Block]:
  """Returns the blocks of all pages, or those with this mark and so on."""
  found = [block for name in PAGES
           for block in of_text(name, (ROOT / name).read_text())]
  return [b for b in found if mark in (None, b.mark)
          and language in (None, b.language) and page in (None, b.page)]


def lines(block: Block) -> list[str]:
  """Returns the commands of a block of `sh`, each in one line."""
  return [line for line in block.code.replace('\\\n', ' ').splitlines()
          if line.strip() and not line.startswith('#')]


@functools.cache
def hooks() -> Any:
  """Returns the module of the site's hooks, which is in no package."""
  spec = importlib.util.spec_from_file_location('hooks', ROOT / 'docs/hooks.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
