"""A run as a page: curves, figures, samples and flags in one HTML file.

  python -m jaxrl_llm.evaluation.page runs/a runs/b --out=report.html

The file needs no network, only a browser of 2023 or later. Runs may be under
way, or cut off. Responses of `jaxrl_llm.evaluate` in a run's folder are shown
too. A run writes its own page, report.html, at its end, and its evaluations
write it again.
"""

import argparse
import base64
import collections
import gzip
import html
import json
import os
import pathlib
import re
import sys
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from absl import logging
import scipy.special

from jaxrl_llm.base import plain
from jaxrl_llm.evaluation import flags
from jaxrl_llm.monitoring import health, metrics
from jaxrl_llm.storage import paths

FILE = 'report.html'
TRAIN = 'train'  # source of the samples of samples.jsonl
_FILES = pathlib.Path(__file__).with_name('page_files')
_CHARACTERS = 60_000_000  # of the responses of a page, all runs together
_TOKENS = 500_000  # of a page that have values
_VALUES = ('token_chars', 'token_logprobs', 'token_acceptance')

Row = dict[str, Any]


class RunContent(NamedTuple):
  """Content of a run's folder.

  Attributes:
    name: on the page.
    path: the folder.
    rows: rows of metrics.jsonl.
    samples: rows of samples.jsonl, then responses of evaluations, each with
      its 'source': `TRAIN`, or the set of problems.
    flags: of the rows and the samples of training.
    config: field to value.
    figures: held-out estimate to its value at the 'start' and the 'final' one.
    done: steps done and the seconds they took, of a run that has ended.
  """
  name: str
  path: str
  rows: list[Row]
  samples: list[Row]
  flags: list[flags.Flag]
  config: dict[str, Any]
  figures: dict[str, Any]
  done: dict[str, float]


def read(folder: paths.Text, name: str = '', path: str = '') -> RunContent:
  """Reads the folder of a run; a partial last line of a file is left out.

  Args:
    folder: with metrics.jsonl; all other files may be missing.
    name: on the page; by default the folder's.
    path: on the page; by default `folder`.

  Raises:
    ValueError: there is no metrics.jsonl, or a line of a file is not JSON.
    OSError: a bucket cannot be read.
  """
  place = paths.absolute(folder)
  if not (place / 'metrics.jsonl').exists():
    raise ValueError(
        f'{folder} has no metrics.jsonl: name the folder of a run.')
  rows = metrics.read(place / 'metrics.jsonl')
  samples = [
      {**row, 'source': TRAIN} for row in metrics.read(place / 'samples.jsonl')
      if isinstance(row.get('response'), str)]
  found = flags.find(rows, samples)
  summary = _json(place / 'summary.json')
  return RunContent(
      name or place.name, path or os.fspath(folder), rows,
      [*samples, *_evaluated(place)], found, _json(place / 'config.json'),
      figures={name: value for name, value in summary.items()
               if isinstance(value, dict) and 'final' in value},
      done={name: summary[name] for name in ('steps', 'seconds')
            if name in summary})


def _json(path: paths.Path) -> Row:
  """Returns the object of a JSON file; an empty one if it has none."""
  try:
    value = json.loads(path.read_text())
  except (OSError, ValueError):
    return {}
  return value if isinstance(value, dict) else {}


def _evaluated(place: paths.Path) -> list[Row]:
  """Returns the responses of a run's evaluations.

  Start weights have step 0; the step of the latest evaluation is known.

  Raises:
    ValueError: a line that is whole is not a response.
  """
  latest, found = _json(place / 'evaluation.json'), []
  known = pathlib.PurePath(str(latest.get('responses'))).parent.name
  for file in sorted(place.glob('evaluation/*/responses.jsonl')):
    of = file.parent.name
    step = latest.get('step') if of == known else None
    if str(_json(file.parent / 'settings.json').get('weights')).startswith(
        'start'):
      step = 0
    for number, line in enumerate(file.read_bytes().split(b'\n')[:-1], 1):
      try:
        row = json.loads(line)
        found.append(dict(
            row, step=step, source=row['file'], group=row['problem_id'], of=of,
            response=row['response']))
      except (ValueError, TypeError, KeyError):
        raise ValueError(
            f'{file}, line {number} is not a response: delete the '
            'line.') from None
  return found


def thinned(
    runs: Sequence[RunContent], most: int = _CHARACTERS, tokens: int = _TOKENS,
) -> list[list[tuple[int, bool]]]:
  """Returns which samples of each run a page has room for.

  Whole groups are left out, evenly over a run, until the responses of all runs
  together have at most about `most` characters; then values of tokens in the
  same way, until there are at most about `tokens`.

  Returns:
    For each run the positions of its samples, group by group, each with
    whether the page has the values of its tokens.
  """
  groups = []
  for run in runs:
    of_run = collections.defaultdict(list)
    for i, row in enumerate(run.samples):
      of_run[row['source'], row.get('of'), row['step'],
             row.get('group')].append(i)
    groups.append([*of_run.values()])
  groups = _evenly(runs, groups, most, lambda row: len(row['response']))
  with_values = _evenly(
      runs, groups, tokens, lambda row: sum(
          len(part.get('token_chars') or ())
          for part in row.get('turns') or [row]))
  known = [{i for group in of_run for i in group} for of_run in with_values]
  return [[(i, i in of_values) for group in of_run for i in group]
          for of_run, of_values in zip(groups, known)]


def _evenly(
    runs: Sequence[RunContent], groups: list[list[list[int]]], most: int,
    size: Callable[[Row], int]) -> list[list[list[int]]]:
  """Leaves out groups of each run evenly, until all are as small as asked."""
  total = sum(size(run.samples[i]) for run, of_run in zip(runs, groups)
              for group in of_run for i in group)
  share = min(1.0, most / max(total, 1))
  # Group i is kept where i * share passes a whole number.
  return [[group for i, group in enumerate(of_run)
           if int((i + 1) * share + 1e-9) > int(i * share + 1e-9)]
          for of_run in groups]


def contents(
    runs: Sequence[RunContent], most: int = _CHARACTERS,
    tokens: int = _TOKENS) -> dict[str, Any]:
  """Returns the data of the page's script: columns, with each text once.

  Args:
    runs: at least one.
    most, tokens: see `thinned`.
  """
  texts: dict[str, int] = {}
  columns: dict[str, list[Any]] = collections.defaultdict(list)
  values: dict[int, list[Any]] = {}
  places: list[dict[int, int]] = [{} for _ in runs]

  def text(value):
    return texts.setdefault(plain.text(value), len(texts))

  for number, kept in enumerate(thinned(runs, most, tokens)):
    for i, has_values in kept:
      row = runs[number].samples[i]
      turns = row.get('turns') or []
      places[number][i] = at = len(columns['run'])
      for name, value in (
          ('run', number), ('step', row['step']),
          *((name, row.get(name)) for name in ('group', 'sample')),
          *((name, _short(row.get(name))) for name in ('reward', 'advantage')),
          # The turns have the text of a trajectory, which is told once.
          ('response', '' if turns else plain.text(row['response'])),
          ('turns', [[plain.text(turn.get('text')),
                      plain.text(turn.get('observation')), turn.get('reward')]
                     for turn in turns]),
          *((name, row.get(name)) for name in ('rewards', 'extra')),
          *((name, text(row.get(name))) for name in (
              'prompt', 'reference', 'kind', 'verdict', 'detail', 'source',
              'of'))):
        columns[name].append(value)
      found = [
          [part.get(name) for name in _VALUES] if part.get('token_chars')
          else None for part in turns or [row]]
      if has_values and any(found):
        values[at] = found if turns else found[0]
  # Student's t of the 95% intervals of 2, 3, ... runs.
  quantiles = scipy.special.stdtrit(range(1, max(len(runs), 2)), .975)
  return plain.json(dict(
      runs=[*map(_of_run, runs, places)], texts=[*texts],
      samples=dict(columns), tokens=values, quantiles=quantiles))


def _of_run(run: RunContent, places: Mapping[int, int]) -> dict[str, Any]:
  """Returns the part of the page about one run.

  Args:
    run: the run.
    places: position of its samples among those of the page.
  """
  names = dict.fromkeys(name for row in run.rows for name in row)
  return dict(
      name=run.name, path=run.path, config=run.config, figures=run.figures,
      done=run.done, total=len(run.samples),
      metrics={name: [_short(row.get(name)) for row in run.rows]
               for name in names},
      warnings=[symptom._asdict() for symptom in health.warnings(run.rows)],
      flags=[dict(name=flag.name, text=flag.text, samples=[
          places[i] for i in flag.samples if i in places])
             for flag in run.flags])


def _short(value: Any) -> Any:
  """Returns a number with six digits, which takes less room."""
  return float(f'{value:.6g}') if isinstance(value, float) else value


def page(runs: Sequence[RunContent]) -> str:
  """Returns the HTML of a page of these runs.

  What runs have written stands in it as base64 alone, so that no text of a
  response can be read as a part of the page.
  """
  names = ', '.join(run.name for run in runs) if len(runs) < 4 else (
      f'{len(runs)} runs')
  # Mode 'wb' of gzip has the time in it; the same runs have the same page.
  packed = gzip.compress(
      json.dumps(contents(runs), allow_nan=False, separators=(',', ':'),
                 ensure_ascii=False).encode(), 6, mtime=0)
  parts = {
      'TITLE': html.escape(names), 'DATA': base64.b64encode(packed).decode(),
      **{name: (_FILES / file).read_text(encoding='utf8') for name, file in (
          ('STYLE', 'page.css'), ('RUNS', 'runs.js'), ('SCRIPT', 'page.js'))}}
  return re.sub(
      r'\{\{(\w+)\}\}', lambda match: parts[match[1]],
      (_FILES / 'page.html').read_text(encoding='utf8'))


def write(folders: Sequence[paths.Text], out: paths.Text) -> list[RunContent]:
  """Writes the page of some runs, and returns their contents.

  Raises:
    ValueError: a folder has no run, or a line of its files is not JSON.
    OSError: the page cannot be written, or a bucket cannot be read.
  """
  last = [paths.absolute(folder).name for folder in folders]
  runs = [
      read(folder, name if last.count(name) == 1 else os.fspath(folder))
      for folder, name in zip(folders, last)]
  paths.write_whole(paths.absolute(out), page(runs))
  return runs


def renew(folder: paths.Path, path: paths.Path) -> bool:
  """Writes report.html of a run, or writes it again; warns if that fails.

  Args:
    folder: with the run's files.
    path: folder of the run, which may be in a bucket.

  Returns:
    Whether it is written.
  """
  try:
    paths.write_whole(
        folder / FILE, page([read(folder, path.name, str(path))]))
  except Exception as error:  # pylint: disable=broad-exception-caught
    # A run of days must not fail for its page.
    logging.warning('%s could not be written (%s).', FILE, plain.error(error))
    return False
  return True


def main() -> None:
  """The program."""
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.evaluation.page RUN [RUN ...] [--out=FILE]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', nargs='+', metavar='RUN', help='folder of a run')
  parser.add_argument(
      '--out', help=f'file to write (default: {FILE} in the folder of one run, '
      'or here for several)')
  args = parser.parse_args()
  out = args.out or (
      FILE if len(args.runs) > 1 else os.path.join(args.runs[0], FILE))
  try:
    runs = write(args.runs, out)
  except (ValueError, OSError) as error:
    parser.error(str(error))
  for run in runs:
    for flag in run.flags:
      sys.stdout.write(f'{run.name}: {flag.name}. {flag.text}\n')
  sys.stdout.write(f'Written to {out}\n')


if __name__ == '__main__':
  main()
