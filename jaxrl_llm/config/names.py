"""Answers to names that are not fields: misspelt ones, other libraries' ones.

The tables of docs/coming_from_trl.md have the names of other libraries. The
page is part of the package by a link.
"""

import difflib
import fnmatch
import functools
import pathlib
import re
from typing import Iterable, Iterator, NamedTuple, Sequence

from jaxrl_llm.config.table import elsewhere

_NEAR = 0.8  # likeness of a misspelt name to the field that was meant
_PAGE = pathlib.Path(__file__).with_name('coming_from_trl.md')
_HEADING = '## Names of '
_NAMES = '`[^`|]+`(?:, `[^`|]+`)*'
_ROW = re.compile(rf'\| *({_NAMES}) *\| *({_NAMES}|-) *\| *([^|]*?) *\|')


class ForeignOption(NamedTuple):
  """Names that another library has for one thing, and ours.

  Attributes:
    names: the library's names, dotted where its config has sections; * stands
      for any letters.
    ours: fields, or choices such as 'overlong.mode=mask'; () if there is none.
    note: what differs, or why there is none; fields are in backticks.
  """
  names: tuple[str, ...]
  ours: tuple[str, ...]
  note: str


@functools.cache
def libraries() -> dict[str, list[ForeignOption]]:
  """Returns the rows of each library, which docs/coming_from_trl.md has."""
  return read(_PAGE.read_text(encoding='utf-8'))


def read(page: str) -> dict[str, list[ForeignOption]]:
  """Returns the rows of each library from the text of the page.

  Raises:
    ValueError: a line under the heading of a library is no row.
  """
  found, rows = {}, None
  for number, line in enumerate(page.splitlines(), 1):
    if line.startswith('#'):
      library = line.removeprefix(_HEADING)
      rows = None if library == line else found.setdefault(library, [])
    elif rows is not None and line and not line.startswith(
        (f'| {library} |', '|---')):
      if not (row := _ROW.fullmatch(line)):
        raise ValueError(
            f'{_PAGE.name}, line {number}: write a row as "| `name`, `name` | '
            f'`field` or - | what differs |", not {line!r}.')
      names, ours, note = row.groups()
      rows.append(ForeignOption(*(tuple(re.findall('`(.+?)`', cell))
                        for cell in (names, ours)), note))
  return found


def unknown(name: str, known: Iterable[str]) -> str:
  """Returns the sentence about an unknown field, with the one to use.

  Args:
    name: dotted; or a section, or the last part of a name.
    known: the fields that there are.
  """
  known = tuple(known)
  if name.partition('.')[0] == 'warm_start':  # the name that it had
    now = name.replace('warm_start', 'sft', 1)
    return f'{name} is {now} now.' if now in (*known, 'sft') else (
        unknown(now, known))
  inside = [other for other in known if other.startswith(name + '.')]
  if inside:
    return f'{name} is a section: set one of its fields, such as {inside[0]}.'
  if choice := elsewhere(name):
    return (f'{name} has no effect without {choice}: leave it out, or choose '
            'that.')
  no_field = f'{name} is not a field of this config'
  if not (found := meanings(name)):
    for library, rows in libraries().items():
      if any(other.startswith(f'{name}.')
             for row in rows for other in row.names):
        return (f'{no_field}, but a section of {library}: '
                f'--help={library.lower()} lists its names and ours.')
    if nearest := near(name, known):
      return f'{no_field}: did you mean {nearest}? --help=all lists them all.'
    # A library's name after a section that it does not have there.
    section, _, leaf = name.rpartition('.')
    found = [one for one in meanings(leaf) if one[1] == leaf]
  if found:
    uses = '; and of '.join(_uses(found, name, known))
    return f'{no_field}, but a name of {uses}.'
  group = section if any(
      other.startswith(f'{section}.') for other in known) else 'all'
  return f'{no_field}: --help={group} lists them all.'


def meanings(name: str) -> list[tuple[str, str, ForeignOption]]:
  """Looks up a name of another library.

  Args:
    name: with or without the sections before it, such as 'rollout.n' for
      'actor_rollout_ref.rollout.n'; hyphens count as underscores.

  Returns:
    (library, whole name, row) of each: those of this name, and in libraries
    without one those that end with it; if there are none, those with a star.
  """
  name, found = name.replace('-', '_'), []
  for matches in (lambda other: other == name or other.endswith(f'.{name}'),
                  lambda other: '*' in other and _covers(other, name)):
    for library, rows in libraries().items():
      these = [(library, other, row) for row in rows for other in row.names
               if matches(other)]
      found += [one for one in these if one[1] == name] or these
    if found:
      break
  return found


def _covers(pattern: str, name: str) -> bool:
  """Returns whether a name with a star fits, with or without its sections."""
  parts = pattern.split('.')
  # A last part with a star alone would fit too much.
  ends = [pattern, *('.'.join(parts[i:]) for i in range(1, len(parts) - 1))]
  return any(fnmatch.fnmatchcase(name, end) for end in ends)


def _uses(
    found: Iterable[tuple[str, str, ForeignOption]], name: str,
    known: Sequence[str],
) -> Iterator[str]:
  """Yields a clause for each use of a name, with the libraries that have it."""
  clauses = {}
  for library, whole, row in found:
    more = [row.note] * bool(row.note)
    for field in (field.partition('=')[0] for field in row.ours):
      if field not in known and (choice := elsewhere(field)):
        more.insert(0, f'with {choice}')
    use = f'use {" or ".join(row.ours)}' if row.ours else (
        'it has no counterpart')
    if more:
      use += f' ({"; ".join(more)})'.replace('`', '')
    other = '' if '*' in whole or whole == name else f' ({whole})'
    clauses.setdefault(use, {}).setdefault(library, library + other)
  for use, libraries in clauses.items():
    yield f'{", ".join(libraries.values())}: {use}'


def near(name: str, known: Sequence[str]) -> str:
  """Returns the field that a misspelt name means, those with the same last
  part, or ''.

  Args:
    name: dotted, or the last part of a name. In a section that there is, only
      fields of that section are near, or one with the same last part.
    known: the fields that there are.
  """
  section, _, leaf = name.rpartition('.')
  within = [other for other in known
            if section and other.rpartition('.')[0] == section]

  def ratio(a, b):
    return difflib.SequenceMatcher(None, a, b).ratio()

  def likeness(other):
    last = other.rpartition('.')[2]
    initials = ''.join(word[:1] for word in last.split('_'))
    short = len(leaf) > 1 and (leaf == initials or last.startswith(leaf))
    same_letters = sorted(leaf) == sorted(last)  # two were exchanged
    return max(short, same_letters, ratio(leaf, last)), ratio(name, other)

  nearest = max(within or known, key=likeness)
  same = [other for other in known if other.rpartition('.')[2] == leaf]
  if not section and len(same) > 1:
    return ' or '.join(same)
  if likeness(nearest)[0] >= _NEAR:
    return nearest
  return same[0] if len(same) == 1 else ''
