"""Results and time of the main job with three seeds.

  python -m benchmarks.countdown --write

Runs configs/countdown.py to its end with seeds 0, 1 and 2, one after another
and without the cache of warm starts. It takes about 9 minutes on 2 cores.
`--write` saves the report in results/countdown.md and the first seed's curves
in docs/curves.png.
"""

import argparse
import datetime
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.rl_step import machine, markdown

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/countdown.md'
SEEDS = (0, 1, 2)


def run(seed: int, workdir: pathlib.Path) -> dict[str, Any]:
  """Runs the job in a new process; returns its summary and its wall time."""
  start = time.monotonic()
  subprocess.run(
      [sys.executable, '-m', 'jaxrl_llm.train',
       '--config=configs/countdown.py', f'--config.seed={seed}',
       f'--config.workdir={workdir}', '--config.sft.cache=none'],
      cwd=ROOT, check=True)
  found = json.loads((workdir / 'summary.json').read_text())
  return {**found, 'wall': time.monotonic() - start}


def report(found: dict[int, dict[str, Any]]) -> str:
  """Returns the report as Markdown."""
  names = 'pass@1', 'pass@8', 'greedy'

  def line(name, runs):
    mean = lambda values: statistics.mean(map(float, values))
    cells = [
        f'{mean(r[n]["start"] for r in runs):.3f} to '
        f'{mean(r[n]["final"] for r in runs):.3f}' for n in names]
    return [name, *cells, f'{mean(r["wall"] for r in runs):.0f}']

  rows = [line(str(seed), [result]) for seed, result in found.items()]
  rows.append(line('mean', list(found.values())))
  return f'''# The main job

`python -m benchmarks.countdown`, {datetime.date.today()}, {machine()}.

configs/countdown.py, {next(iter(found.values()))['steps']} steps, on all \
held-out problems before and after reinforcement learning.

{markdown(['seed', *names, 'seconds in all'], rows)}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--write', action='store_true', help=f'into {RESULT} and docs')
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    found = {
        seed: run(seed, pathlib.Path(folder, str(seed))) for seed in SEEDS}
    text = report(found)
    print(text)
    if args.write:
      RESULT.write_text(text)
      shutil.copy(
          pathlib.Path(folder, str(SEEDS[0]), 'curves.png'), ROOT / 'docs')


if __name__ == '__main__':
  main()
