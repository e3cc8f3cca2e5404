"""Time of one RL step against its tokens, the model's size and the devices.

  python -m benchmarks.scaling --write

Each point is a process of its own, which does the GRPO steps of `peers/job.py`.
A curve changes one size: the tokens that a step samples (1,000 to 1,000,000, by
its rows), the model's parameters, or the devices that a CPU counts as. The last
have the same cores, slots and rows, so that their curve is the overhead of
sharding alone. A point is the median of 3 to 9 steps, after 2 that compile; the
spread is from the fastest to the slowest. It takes about 20 minutes on 2 cores.
`--write` saves the report and its plot in results/scaling.md and
results/scaling.png. `--tiny` only checks that everything runs.
"""

import argparse
import dataclasses
import datetime
import pathlib
import statistics
import sys
import time
from typing import Any, Callable, NamedTuple, Sequence

import jax

from benchmarks.peers import job as job_lib
from benchmarks.rl_step import Library, machine, markdown
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.monitoring import plots

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/scaling.md'

WARMUP = 2
FEWEST, MOST, ENOUGH = 3, 9, 10.0  # steps of a point; seconds that end it

Row = dict[str, Any]

SMALL = job_lib.Job(
    prompts=16, samples=16, max_response=32, width=64, layers=2, heads=4,
    kv_heads=2, head_dim=16, mlp_width=256)


class Curve(NamedTuple):
  """A curve: what changes, and the jobs of its points.

  Attributes:
    title: of its panel and table.
    label: of the x-axis.
    jobs: one for each point.
    x: (job, rows of its steps) -> place on the x-axis.
  """
  title: str
  label: str
  jobs: Sequence[job_lib.Job]
  x: Callable[[job_lib.Job, list[Row]], float]


def parameters(job: job_lib.Job) -> int:
  """Returns the number of the model's parameters."""
  return ModelConfig(**{
      name: getattr(job, name) for name in (
          'vocab_size', 'width', 'layers', 'heads', 'kv_heads', 'head_dim',
          'mlp_width')}).parameter_count()


def wide(width: int, layers: int, **changes: int) -> job_lib.Job:
  """Returns the job with a model of another size."""
  return dataclasses.replace(
      SMALL, width=width, layers=layers, heads=width // 16,
      kv_heads=width // 32, mlp_width=4 * width, **changes)


def rows(prompts: int, samples: int) -> job_lib.Job:
  """Returns the job with another number of responses."""
  return dataclasses.replace(SMALL, prompts=prompts, samples=samples)


def curves(tiny: bool) -> list[Curve]:
  """Returns the curves."""
  tokens = [rows(4, 12), rows(16, 12), rows(64, 12), rows(256, 12),
            rows(256, 48), rows(512, 96)]
  models = [wide(*size, prompts=8) for size in (
      (32, 2), (64, 2), (128, 4), (256, 4), (512, 4))]
  devices = [dataclasses.replace(SMALL, devices=n) for n in (1, 2, 4, 8)]
  if tiny:
    tokens, models = [rows(2, 4), rows(4, 4)], models[:1]
    devices = [dataclasses.replace(rows(2, 4), devices=n) for n in (1, 2)]
  return [
      Curve('Tokens per step', 'tokens that a step samples', tokens,
            lambda job, steps: median(steps, 'sampled')),
      Curve('Size of the model', 'parameters', models,
            lambda job, steps: parameters(job)),
      Curve('Devices on the same cores', 'emulated devices', devices,
            lambda job, steps: job.devices)]


def median(steps: list[Row], name: str) -> float:
  """Returns the median of a number over steps."""
  return statistics.median(row[name] for row in steps)


def measure(job: job_lib.Job) -> list[Row]:
  """Returns the rows of the steps of a point, see `job.Turns`."""
  library = Library(sys.executable, 'jaxrl_llm_grpo', job)
  try:
    for _ in range(WARMUP):
      library.step()
    steps, began = [], time.monotonic()
    while len(steps) < FEWEST or (
        len(steps) < MOST and time.monotonic() - began < ENOUGH):
      steps.append(library.step())
  finally:
    library.close()
  return steps


def shares(steps: list[Row]) -> dict[str, float]:
  """Returns the medians of a point, by the columns of its table."""
  seconds = [row['seconds'] for row in steps]
  return {
      'seconds': statistics.median(seconds), 'fastest': min(seconds),
      'slowest': max(seconds),
      'rate': statistics.median(
          row['sampled'] / row['seconds'] for row in steps),
      **{name: statistics.median(row[name] / row['seconds'] for row in steps)
         for name in ('sample', 'update', 'host')},
      'flops': statistics.median(
          sum(row['flops'].values()) / row['seconds'] / row['rate']
          for row in steps)}


def table(curve: Curve, points: list[list[Row]]) -> str:
  """Returns the table of a curve."""
  lines = []
  for job, steps in zip(curve.jobs, points):
    found = shares(steps)
    lines.append([
        f'{curve.x(job, steps):,.0f}', f'{job.rows:,}', f'{len(steps)}',
        f'{found["seconds"]:.3f}',
        f'{found["fastest"]:.3f} to {found["slowest"]:.3f}',
        f'{found["rate"]:,.0f}', f'{found["sample"]:.0%}',
        f'{found["update"]:.0%}', f'{found["host"]:.1%}',
        f'{found["flops"]:.1%}'])
  return markdown(
      [curve.label, 'responses', 'steps', 'seconds per step', 'spread',
       'sampled tokens/s', 'sampling', 'update', 'host work',
       'model FLOPs of matrix products'], lines)


def draw(
    found: list[tuple[Curve, list[list[Row]]]], path: pathlib.Path) -> None:
  """Draws seconds per step, and below the share of the host's work."""
  import matplotlib
  from matplotlib.figure import Figure
  with matplotlib.rc_context(plots.STYLE):
    figure = Figure(figsize=(10, 5.6), dpi=150, layout='constrained')
    grid = figure.subplots(
        2, len(found), sharex='col', height_ratios=(2, 1), squeeze=False)
    for (curve, points), (above, below) in zip(found, grid.T):
      x = [curve.x(job, steps) for job, steps in zip(curve.jobs, points)]
      each = [shares(steps) for steps in points]
      y = [point['seconds'] for point in each]
      above.errorbar(
          x, y, fmt='o-', color='#2a6fbb', markersize=4, capsize=3, yerr=[
              [a - point['fastest'] for a, point in zip(y, each)],
              [point['slowest'] - a for a, point in zip(y, each)]])
      if max(x) > 16 * min(x):
        above.set_xscale('log')
        above.set_yscale('log')
        # A step whose time is proportional to x.
        above.plot(
            x, [y[-1] * a / x[-1] for a in x], '--', color='#8d99ae',
            linewidth=1, label='proportional')
        above.legend(loc='upper left')
      else:
        above.set_xscale('log', base=2)
        above.set_xticks(x, [f'{a:.0f}' for a in x])
        above.set_ylim(0, 1.3 * max(point['slowest'] for point in each))
      above.set_title(curve.title)
      below.plot(
          x, [point['host'] for point in each], 'o-', color='#d1495b',
          markersize=4)
      below.set_ylim(0, None)
      below.yaxis.set_major_formatter(
          matplotlib.ticker.PercentFormatter(1))
      below.set_xlabel(curve.label)
    grid[0][0].set_ylabel('seconds per step')
    grid[1][0].set_ylabel('host work')
    figure.savefig(path)


def report(found: list[tuple[Curve, list[list[Row]]]], name: str) -> str:
  """Returns the report as Markdown, with a plot of this name."""
  rate = statistics.median(
      row['rate'] for _, points in found for steps in points for row in steps)
  text = f'''# Scaling of one RL step

`python -m benchmarks.scaling`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__}.

![seconds per step and share of host work]({name})

GRPO steps of a Qwen3 with random weights in float32, {SMALL.samples} samples \
of at most {SMALL.max_response} tokens to each prompt, one AdamW update on all \
of them. Unless it is what changes, the model has {parameters(SMALL):,} \
parameters (width {SMALL.width}, {SMALL.layers} layers) and the CPU counts as \
one device per core. Medians of {FEWEST} to {MOST} steps after {WARMUP} that \
compile; the spread is from the fastest to the slowest step. Host work is the \
processor time of the Python thread, which sleeps while a device program runs. \
FLOPs are compared with products of 768 x 768 matrices on all cores, \
{rate / 1e9:.0f} GFLOP/s.
'''
  for curve, points in found:
    text += f'\n## {curve.title}\n\n{table(curve, points)}\n'
  return text + '''
Emulated devices share the cores and the decode slots, so more of them only \
add overhead.
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--tiny', action='store_true', help='toy sizes')
  parser.add_argument(
      '--write', action='store_true', help='results/scaling.md and its plot')
  args = parser.parse_args()
  found = []
  for curve in curves(args.tiny):
    points = []
    for job in curve.jobs:
      points.append(measure(job))
      print(f'{curve.title}: {curve.x(job, points[-1]):,.0f}: '
            f'{median(points[-1], "seconds"):.3f} s', file=sys.stderr)
    found.append((curve, points))
  picture = RESULT.with_suffix('.png')
  text = report(found, picture.name)
  print(text)
  if args.write:
    RESULT.write_text(text)
    draw(found, picture)


if __name__ == '__main__':
  main()
