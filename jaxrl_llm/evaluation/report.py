"""Results of an evaluation as numbers, as a table and as Markdown."""

import collections
import math
import os
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
from rich import box
from rich.table import Table

from jaxrl_llm.evaluation import estimators
from jaxrl_llm.evaluation.responses import ResponseRecord


def summary(
    responses: Sequence[Sequence[ResponseRecord]], ks: Sequence[int],
) -> dict[str, Any]:
  """Computes the numbers reported for a set of problems.

  Args:
    responses: [P][N].
    ks: values of k for pass@k and maj@k.

  Returns:
    Dictionary with 'problems' (P), the entries of `estimators.estimate`,
    'tokens' (mean of a response), 'truncated' (share of the responses) and
    'invalid' (kind to count, of the responses that could not be judged).
  """
  flat = [r for row in responses for r in row]
  score = np.array([
      [r.reward if r.valid else np.nan for r in row] for row in responses])
  return dict(
      problems=len(responses),
      **estimators.estimate(
          score, ks, answers=[[r.answer for r in row] for row in responses],
          rewards={name: np.array([
              [r.rewards.get(name) for r in row] for row in responses], float)
                   for name in dict.fromkeys(
                       name for r in flat for name in r.rewards)}),
      tokens=float(np.mean([r.tokens for r in flat])),
      truncated=float(np.mean([r.truncated for r in flat])),
      invalid=dict(sorted(collections.Counter(
          r.verdict for r in flat if not r.valid).items())))


def title(result: Mapping[str, Any]) -> str:
  """Returns one line that names the checkpoint and the sampling settings."""
  which = 'initial parameters'
  if result['checkpoint'] != 'start':
    which = f'{result["checkpoint"]} checkpoint (step {result["step"]})'
  many = 'one response' if result['samples'] == 1 else (
      f'{result["samples"]} responses')
  return (
      f'{result["workdir"]}: {which}, {many} to each problem at temperature '
      f'{result["temperature"]:g}, max_response={result["max_response"]}')


def notes(result: Mapping[str, Any]) -> Iterator[str]:
  """Yields the lines below the table."""
  yield (f'± is the standard error over problems. A response has '
         f'{result["tokens"]:.1f} tokens on average; '
         f'{result["truncated"]:.1%} are truncated.')
  if result['invalid']:
    kinds = ', '.join(f'{n} {kind}' for kind, n in result['invalid'].items())
    yield f'Not judged, and left out: {kinds}.'
  silent = [name for name, numbers in result['files'].items()
            if not any(key.startswith('maj@') for key in numbers)]
  # There is no maj@1 in the table.
  if silent and any(name.startswith('pass@') for name in {*result} - {
      'pass@1', 'pass@1_error'}):
    where = '' if len(silent) == len(result['files']) else (
        f' for {", ".join(_short(silent))}')
    yield (f'maj@k is missing{where}: no response has an answer to vote with, '
           'because the reward or the task reads none, or none was found.')
  if result['left_out']:
    yield (f'Left out for prompts of more than max_prompt='
           f'{result["max_prompt"]} tokens: {result["left_out"]}.')


def _short(files: Sequence[str]) -> list[str]:
  """Drops the folder from each file name that stays unique without it."""
  short = [os.path.basename(name) for name in files]
  return [
      base if '.' in base and short.count(base) == 1 else name
      for base, name in zip(short, files)]


def cells(result: Mapping[str, Any]) -> list[list[str]]:
  """Returns the rows of the table: the head, each file, and all files."""
  every = [*zip(_short([*result['files']]), result['files'].values())]
  if len(every) > 1:
    every.append(('all', result))
  names = [
      name for kind in ('mean', 'rewards/', 'pass@', 'maj@') for name in result
      if name.startswith(kind) and f'{name}_error' in result
      and name != 'maj@1']  # equal to pass@1

  def text(numbers, name):
    value, error = numbers.get(name), numbers.get(f'{name}_error')
    if value is None or math.isnan(value):
      return '-'
    return f'{value:.3f} ± {error:.3f}'

  return [
      ['', 'problems', *(
          f'mean@{result["samples"]}' if n == 'mean' else n for n in names)],
      *([file, str(numbers['problems']), *(text(numbers, n) for n in names)]
        for file, numbers in every)]


def table(result: Mapping[str, Any]) -> Table:
  """Returns the table for `rich.print`."""
  head, *rows = cells(result)
  out = Table(box=box.SIMPLE)
  for i, name in enumerate(head):
    # On a narrow screen, an error wraps below its estimate.
    out.add_column(
        name, justify='right' if i else 'left', overflow='fold',
        min_width=len(name) if i == 1 else 7)
  for row in rows:
    out.add_row(*row)
  return out


def markdown(result: Mapping[str, Any]) -> str:
  """Returns the title, the table and the notes as Markdown."""
  head, *rows = (
      [cell.replace('|', '\\|') for cell in row] for row in cells(result))
  lines = [head, ['---', *['---:'] * (len(head) - 1)], *rows]
  return '\n\n'.join((
      title(result), '\n'.join(f'| {" | ".join(line)} |' for line in lines),
      *notes(result))) + '\n'
