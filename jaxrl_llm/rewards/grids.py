"""Grids of colours, as text and back, and how much of an answer is right.

A grid is a list of rows, each a list of colours from 0 to 9. Its text has one
line a row. A cell is one digit; the digits of a row are joined ('077') or have
spaces between them ('0 7 7'). Reading takes both, and commas and brackets as in
a JSON list.
"""

import re
from typing import Iterator, Sequence

from jaxrl_llm.rewards import Verdict

Grid = Sequence[Sequence[int]]

LARGEST = 30  # rows or columns of an ARC grid
KINDS = (
    'no_grid', 'wrong_colour', 'ragged', 'wrong_shape', 'wrong', 'correct')
_DIGITS = frozenset('0123456789')
_BETWEEN = str.maketrans(dict.fromkeys('[](),|;', ' '))
_JSON_ROWS = re.compile(r'\][ \t]*,[ \t]*\[')
_JSON = re.compile(r'\[\s*(\[[^][]*\](?:[\s,]*\[[^][]*\])*)[\s,]*\]')
_ROW = re.compile(r'[^][]+')


def write(grid: Grid, *, spaced: bool = False) -> str:
  """Returns the text of a grid: a line a row, a digit a cell."""
  between = ' ' if spaced else ''
  return '\n'.join(between.join(map(str, row)) for row in grid)


def cells(line: str) -> list[str]:
  """Returns the cells of a line; [] if it is not a row of a grid.

  A row has nothing but numbers. A number alone on its line is a row of joined
  digits; of several, each is a cell. A cell is right only as one ASCII digit.
  """
  words = line.translate(_BETWEEN).split()
  # No number is converted: int() refuses long ones and takes other scripts.
  if not all(word.lstrip('+-').isdigit() for word in words):
    return []
  return [*words[0]] if len(words) == 1 else words


def blocks(text: str, count: int = 1) -> list[list[list[str]]]:
  """Returns the cells of the last `count` grids of a text, in their order.

  A grid is a run of rows. Every other line ends it, such as prose, a blank line
  or the fence of a code block. A list of JSON is a grid of its own, also within
  a line. Of a grid that is too large, only the last rows
  are returned, one more than `LARGEST`.
  """
  found: list[list[list[str]]] = []
  within = False
  for line in reversed([*_lines(_JSON.sub(_as_lines, text))]):
    row = cells(line)
    if row and not within:
      if len(found) == count:
        break
      found.append([])
    within = bool(row)
    if row and len(found[-1]) <= LARGEST:
      found[-1].append(row)
    elif row and len(found) == count:
      break  # the rest changes nothing
  return [block[::-1] for block in reversed(found)]


def _as_lines(found: re.Match[str]) -> str:
  """Returns a list of JSON with a line for each row, and empty ones around."""
  rows = (' '.join(row.split()) for row in _ROW.findall(found[1]))
  return '\n\n{}\n\n'.format('\n'.join(
      row for row in rows if row.strip(' ,')))


def _lines(text: str) -> Iterator[str]:
  """Returns the lines of a text; rows of JSON have one each."""
  for line in text.split('\n'):
    yield from _JSON_ROWS.sub(']\n[', line).split('\n') if cells(line) else [
        line]


def compare(block: Sequence[Sequence[str]], answer: Grid) -> tuple[str, float]:
  """Compares a grid of a response with the answer.

  Args:
    block: rows of cells, as from `blocks`; [] for no grid.
    answer: the right grid.

  Returns:
    The verdict, one of KINDS, and the share of cells that are right: 0 unless
    the shape is right.
  """
  if not block:
    return 'no_grid', 0.0
  if not all(_DIGITS.issuperset(row) for row in block):
    return 'wrong_colour', 0.0
  if len({*map(len, block)}) > 1:
    return 'ragged', 0.0
  if (len(block), len(block[0])) != (len(answer), len(answer[0])):
    return 'wrong_shape', 0.0
  right = sum(
      cell == str(colour) for row, colours in zip(block, answer)
      for cell, colour in zip(row, colours))
  total = len(answer) * len(answer[0])
  return ('correct' if right == total else 'wrong'), right / total


def judge(
    text: str, answers: Sequence[Grid], *, partial: bool = False) -> Verdict:
  """Judges the last grids of a text.

  Args:
    text: the response, without its reasoning.
    answers: right grids, one or more, in the order in which they must come.
    partial: reward the mean share of right cells, not 1 for all and else 0.

  Returns:
    The verdict. Its kind is 'correct' only if all grids are, else that of KINDS
    that comes first. Where there are fewer grids than answers, it is 'no_grid':
    nothing says which of them is missing.
  """
  found = blocks(text, len(answers))
  if len(found) < len(answers):
    return Verdict(0.0, 'no_grid')
  pairs = [compare(block, answer) for block, answer in zip(found, answers)]
  kind = min((kind for kind, _ in pairs), key=KINDS.index)
  share = sum(share for _, share in pairs) / len(pairs)
  said = '\n\n'.join('\n'.join(map(''.join, block)) for block in found)
  readable = KINDS.index(kind) >= KINDS.index('wrong_shape')
  is_small = all(max(len(block), len(block[0])) <= LARGEST for block in found)
  return Verdict(
      share if partial else float(kind == 'correct'), kind,
      detail='' if kind == 'correct' else f'{share:.1%} of the cells are right',
      answer=said if readable and is_small else '')


def turned(grid: Grid, number: int) -> list[list[int]]:
  """Returns a grid turned or mirrored in one of 8 ways.

  Args:
    grid: any grid.
    number: 0 to 7; number % 4 clockwise quarter turns, of the transposed grid
      from 4 on. 0 is the grid itself.
  """
  rows = [*zip(*grid)] if number >= 4 else grid
  for _ in range(number % 4):
    rows = [*zip(*rows[::-1])]
  return [[*row] for row in rows]


def recoloured(grid: Grid, colours: Sequence[int]) -> list[list[int]]:
  """Returns a grid whose colour c has become colours[c]."""
  return [[colours[colour] for colour in row] for row in grid]


def fault(grid: object) -> str:
  """Returns the fault of a grid of a problem file; '' without one."""
  if not isinstance(grid, list) or not grid or not all(
      isinstance(row, list) and row for row in grid):
    return 'is not a list of rows with cells'
  if len({*map(len, grid)}) > 1:
    return 'has rows of different lengths'
  if max(len(grid), len(grid[0])) > LARGEST:
    return (f'has {len(grid)} rows and {len(grid[0])} columns, more than '
            f'{LARGEST}')
  for row in grid:
    for colour in row:
      if type(colour) is not int or not 0 <= colour <= 9:
        return f'has the colour {colour!r:.20}, not a whole number from 0 to 9'
  return ''
