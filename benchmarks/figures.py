"""The papers' figures, drawn from the files of runs.

  python -m benchmarks.figures speed_4 x.png rloo=runs/a speed=runs/b

Each run is NAME=FOLDER, with its `metrics.jsonl`. The figures, by paper:

  speed_2   pass rates before training, from the responses of
            `jaxrl_llm.evaluate`, and seconds of sampling and updates; one run
  speed_4   reward of the rows in train batches, and the gradient's norm
  cbs_4     entropy and held-out pass@1
  cbs_8     entropy, in a panel per objective; NAME is OBJECTIVE/ARM
  cbs_10    held-out pass@1 at the end, and seconds of the selection, by the
            rows of the buffer; NAME is their number
  cbs_cases rollouts that the selection left out, and trained on, as Markdown;
            from `samples.jsonl`
"""

import argparse
import collections
import itertools
import json
import pathlib
import statistics
from typing import Any, Callable, Mapping, Sequence

from jaxrl_llm.base import plain
from jaxrl_llm.monitoring import metrics, plots

Row = Mapping[str, Any]
Runs = Mapping[str, Sequence[Row]]

LAST = 3  # evaluations that the figure at the end is a mean of
_COLORS = plots.COLORS


def pass_rates(responses: Sequence[Row]) -> list[float]:
  """Returns the mean reward of each problem's valid responses."""
  rewards = collections.defaultdict(list)
  for response in responses:
    if response['valid']:
      rewards[response['file'], response['problem_id']].append(
          response['reward'])
  return [statistics.fmean(found) for found in rewards.values()]


def _values(rows: Sequence[Row], metric: str) -> list[float]:
  """Returns a metric where rows have it; ValueError if none has."""
  found = [row[metric] for row in rows if plain.is_finite(row.get(metric))]
  if not found:
    raise ValueError(
        f'No row of {len(rows)} has {metric}: give metrics.jsonl of a run that '
        'records it.')
  return found


def _mean(rows: Sequence[Row], metric: str) -> float:
  return statistics.fmean(_values(rows, metric))


def speed_2(responses: Sequence[Row], rows: Sequence[Row]) -> Any:
  """Draws how many problems have which pass rate, and the seconds of a step.

  Args:
    responses: rows of responses.jsonl, of an evaluation of the training
      problems before training, with many samples.
    rows: rows of metrics.jsonl. Steps that compile are in the means.

  Returns:
    matplotlib Figure.
  """
  figure, (rates, seconds) = _panels(2)
  rates.hist(pass_rates(responses), bins=20, range=(0, 1), color=_COLORS[0])
  rates.set(title='Problems by pass rate', xlabel='pass rate')
  names = {'sample': 'inference', 'update': 'training'}
  seconds.bar(
      [*names.values()],
      [_mean(rows, f'seconds/{name}') for name in names], color=_COLORS[:2])
  seconds.set_title('Seconds of a step')
  return figure


def speed_4(runs: Runs) -> Any:
  """Draws the training reward and the gradient's norm of runs.

  Of a run with `curriculum=speed`, the reward is that of the rows in train
  batches, as in the paper; of others, that of all responses.

  Args:
    runs: name to rows of metrics.jsonl.

  Returns:
    matplotlib Figure.
  """
  figure, (reward, norm) = _panels(2)
  for color, (name, rows) in zip(itertools.cycle(_COLORS), runs.items()):
    screens = any('screening/screened' in row for row in rows)
    metric = 'batch/reward' if screens else 'reward/mean'
    plots.curve(reward, plots.Line(metric, name, color), rows)
    plots.curve(norm, plots.Line('update/grad_norm', name, color), rows)
  reward.set(title='Mean reward in training', ylim=(0, 1))
  norm.set_title('Norm of the gradient')
  norm.legend()
  return figure


def cbs_4(runs: Runs) -> Any:
  """Draws entropy and held-out pass@1 of runs.

  Args:
    runs: name to rows of metrics.jsonl, such as CBS and CBS with
      `cbs.ablate=no_entropy`.

  Returns:
    matplotlib Figure.
  """
  figure, (entropy, score) = _panels(2)
  _lines(entropy, runs, 'response/entropy')
  _lines(score, runs, 'eval/pass@1')
  entropy.set_title('Entropy (nats per token)')
  score.set(title='Held-out pass@1', ylim=(0, 1))
  score.legend()
  return figure


def cbs_8(runs: Runs) -> Any:
  """Draws entropies, in a panel per objective.

  Args:
    runs: 'OBJECTIVE/ARM' to rows of metrics.jsonl.

  Returns:
    matplotlib Figure.
  """
  panels = collections.defaultdict(dict)
  for name, rows in runs.items():
    objective, _, arm = name.rpartition('/')
    panels[objective][arm] = rows
  figure, grid = _panels(len(panels))
  for axes, (objective, arms) in zip(grid, panels.items()):
    _lines(axes, arms, 'response/entropy')
    axes.set_title(objective)
  grid[0].set_ylabel('entropy (nats per token)')
  grid[-1].legend()
  return figure


def cbs_10(runs: Runs) -> Any:
  """Draws pass@1 at the end, and the selection's seconds, by buffer size.

  Args:
    runs: rows of the buffer to rows of metrics.jsonl.

  Returns:
    matplotlib Figure.
  """
  figure, (score, seconds) = _panels(2)
  score.bar([*runs], [
      statistics.fmean(_values(rows, 'eval/pass@1')[-LAST:])
      for rows in runs.values()])
  seconds.bar(
      [*runs], [_mean(rows, 'seconds/select') for rows in runs.values()])
  score.set_title('Held-out pass@1 at the end')
  seconds.set_title('Seconds of the selection, per step')
  for axes in score, seconds:
    axes.set_xlabel('rows of the buffer')
  return figure


def cbs_cases(records: Sequence[Row], count: int = 1) -> str:
  """Returns cases of the selection as Markdown: the latest left out and used.

  Args:
    records: rows of samples.jsonl. Those whose groups no round was made for
      have no `used`, and are no cases.
    count: cases of each kind.
  """
  parts = []
  for title, used in ('Left out', False), ('Trained on', True):
    found = [record for record in records if record['used'] is not None
             and (record['used'] > 0) == used]
    for record in found[::-1][:count]:
      parts.append(
          f'## {title}: step {record["step"]}, reward {record["reward"]:g}\n\n'
          f'Prompt:\n\n    {_indented(record["prompt"])}\n\n'
          f'Answer: {record["reference"]}\n\n'
          f'Response:\n\n    {_indented(record["response"])}\n')
  return '\n'.join(parts)


def _indented(text: str) -> str:
  return str(text).replace('\n', '\n    ')


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
  """Returns a figure with panels side by side, and their axes."""
  import matplotlib
  from matplotlib.figure import Figure
  with matplotlib.rc_context(plots.STYLE):
    figure = Figure(
        figsize=(4.5 * count, 3.2), dpi=150, layout='constrained')
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _lines(axes: Any, runs: Runs, metric: str) -> None:
  """Draws a metric of each run by the step."""
  for color, (name, rows) in zip(itertools.cycle(_COLORS), runs.items()):
    plots.curve(axes, plots.Line(metric, name, color), rows)
  axes.set_xlabel('step')


def _speed_2(folders: Mapping[str, pathlib.Path]) -> Any:
  """Draws speed_2 of the first folder."""
  folder = next(iter(folders.values()))
  found = [*folder.glob('evaluation/*/responses.jsonl')]
  if len(found) != 1:
    raise ValueError(
        f'{folder}/evaluation has {len(found)} folders with responses.jsonl, '
        'not one: run jaxrl_llm.evaluate once, with --checkpoint=start.')
  # The last line of an evaluation that goes on is partial.
  lines = found[0].read_text().split('\n')[:-1]
  return speed_2([*map(json.loads, lines)],
                 metrics.read(folder / 'metrics.jsonl'))


def _of_runs(
    draw: Callable[[Runs], Any]) -> Callable[[Mapping[str, pathlib.Path]], Any]:
  return lambda folders: draw({
      name: metrics.read(folder / 'metrics.jsonl')
      for name, folder in folders.items()})


FIGURES = {
    'speed_2': _speed_2, **{draw.__name__: _of_runs(draw) for draw in (
        speed_4, cbs_4, cbs_8, cbs_10)}}


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('figure', choices=[*FIGURES, 'cbs_cases'])
  parser.add_argument('out', type=pathlib.Path, help='file to write')
  parser.add_argument('runs', nargs='+', metavar='NAME=FOLDER')
  args = parser.parse_args()
  folders = {}
  for run in args.runs:
    name, is_named, folder = run.rpartition('=')
    if not is_named:
      parser.error(f'{run} is no NAME=FOLDER: name the run.')
    folders[name] = pathlib.Path(folder)
  try:
    if args.figure == 'cbs_cases':
      args.out.write_text('\n'.join(
          cbs_cases(metrics.read(folder / 'samples.jsonl'))
          for folder in folders.values()))
    else:
      FIGURES[args.figure](folders).savefig(args.out)
  except ValueError as error:
    parser.error(str(error))


if __name__ == '__main__':
  main()
