"""The table of a sweep's results, on the screen and as Markdown."""

import collections
import difflib
import re
import statistics
from typing import Any, Iterator, Mapping, Sequence

from rich import box, console
from rich import table as rich_table

from jaxrl_llm import config as config_lib
from jaxrl_llm.monitoring import health

Logged = Sequence[Mapping[str, Any]]  # rows of a trial's metrics.jsonl


def rows_of(
    settings: Sequence[Mapping[str, Any]], states: Sequence[str],
    logged: Sequence[Logged], metrics: Sequence[str]) -> list[dict[str, str]]:
  """Returns the rows of the final table, each a dictionary of column to text.

  The columns are the trial's number, the fields that differ between trials,
  the state, the last step, and each metric's last and best (highest) value;
  and the kinds of warnings about a trial that looks sick.
  Trials that differ only in their seed also get a row of means and standard
  deviations.

  Args:
    settings: fields of each trial.
    states: 'done' or a failure of each trial.
    logged: rows of each trial's metrics.jsonl.
    metrics: names in those rows.
  """
  names = dict.fromkeys(name for given in settings for name in given)
  differs = [
      name for name in names
      if len({repr(given.get(name)) for given in settings}) > 1]
  rows, groups = [], collections.defaultdict(list)
  for i, (given, state, steps) in enumerate(zip(settings, states, logged)):
    fields = {name: config_lib.to_text(given.get(name)) for name in differs}
    numbers = {}
    for metric in metrics:
      values = [row[metric] for row in steps if row.get(metric) is not None]
      if values:
        numbers |= {metric: values[-1], f'{metric} best': max(values)}
    doubts = dict.fromkeys(one.kind for one in health.warnings(steps))
    rows.append({
        'trial': str(i), **fields, 'state': state.partition(':')[0],
        'step': str(steps[-1].get('step', '')) if steps else '',
        **{k: f'{v:.4g}' for k, v in numbers.items()},
        **({'doubts': ', '.join(doubts)} if doubts else {})})
    groups[tuple((k, v) for k, v in fields.items() if k != 'seed')].append(
        numbers)
  for fields, members in groups.items():
    if len(members) > 1:
      shared = set.intersection(*(set(member) for member in members))
      rows.append({'trial': f'mean of {len(members)}', **dict(fields), **{
          k: _spread([m[k] for m in members])
          for k in members[0] if k in shared}})
  return rows


def _spread(values: Sequence[float]) -> str:
  return f'{statistics.fmean(values):.4g} ± {statistics.stdev(values):.2g}'


def unmeasured(
    logged: Sequence[Logged], metrics: Sequence[str]) -> Iterator[str]:
  """Yields a sentence for each metric that no trial has measured."""
  known = {name for steps in logged for row in steps
           for name, value in row.items() if value is not None}
  for metric in metrics:
    if known and metric not in known:
      near = difflib.get_close_matches(metric, sorted(known), 3, 0.3)
      yield (f'No trial has measured {metric}: choose with --metrics, for '
             f'example {", ".join(near or sorted(known)[:3])}.')


def short(names: Sequence[str]) -> list[str]:
  """Drops the sections of each name that stays unique without them."""
  tails = [re.split(r'[./](?=[^./]*$)', name)[-1] for name in names]
  return [tail if tails.count(tail) == 1 else name
          for tail, name in zip(tails, names)]


def cells(rows: Sequence[dict[str, str]]) -> list[list[str]]:
  """Returns the lines of the table: its head, then the rows.

  It has the columns that occur, without the sections of their names.
  """
  columns = [*dict.fromkeys(name for row in rows for name in row)]
  return [short(columns), *(
      [row.get(name, '') for name in columns] for row in rows)]


def show_table(lines: Sequence[Sequence[str]]) -> None:
  """Prints the table; on a narrow screen, in parts that fit without cuts."""
  out = console.Console(highlight=False, markup=False)
  names, *columns = zip(*lines)
  part = [names]
  for column in columns:
    # With up to three characters between columns.
    if sum(_narrowest(c) + 3 for c in (*part, column)) > out.width:
      out.print(_table(part))
      part = [names]
    part.append(column)
  out.print(_table(part))


def _table(columns: Sequence[Sequence[str]]) -> rich_table.Table:
  table = rich_table.Table(
      box=box.SIMPLE, collapse_padding=True, pad_edge=False)
  for column in columns:
    table.add_column(column[0], min_width=_narrowest(column))
  for row in [*zip(*columns)][1:]:
    table.add_row(*row)
  return table


def _narrowest(column: Sequence[str]) -> int:
  """Returns the least width of a column that cuts no word."""
  return max(len(word) for cell in column for word in cell.split())


def markdown(lines: Sequence[Sequence[str]]) -> str:
  """Returns the table as Markdown."""
  head, *rows = ([cell.replace('|', '\\|') for cell in line]
                 for line in lines)
  return ''.join(f'| {" | ".join(line)} |\n' for line in (
      head, ['---'] * len(head), *rows))
