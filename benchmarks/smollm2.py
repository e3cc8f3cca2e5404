"""Results of the real job, by level, and what of its gain is form.

  python -m benchmarks.smollm2 --write

Runs configs/real/smollm2.py to its end with seeds 0, 1 and 2, each with its own
problems, one after another. Then it samples the held-out problems with the
weights before and after, and reads every response in three ways:

  strict    as the task judges it: a response that has ended with the number
  last      leniently: the last number, whatever follows it
  anywhere  more leniently: some number in the response is the answer

The last one counts too much where the answer is also a number of the problem,
so it is an upper bound of what the model knew before. It takes about an hour on
2 cores. `--write` saves the report in results/smollm2.md and the first seed's
curves beside it. Runs are kept in --out; the same command goes on.
"""

import argparse
import collections
import datetime
import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import types
from typing import Any, Mapping, NamedTuple, Sequence

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import tasks

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/smollm2.md'
READINGS = 'strict', 'last', 'anywhere'
TIMES = 'start', 'last'


class Run(NamedTuple):
  """A run that is done.

  Attributes:
    summary: content of its summary.json.
    problems: id to held-out problem.
    responses: one of TIMES to rows of responses to them.
  """
  summary: Mapping[str, Any]
  problems: Mapping[int, tasks.Problem]
  responses: Mapping[str, Sequence[Mapping[str, Any]]]


def readings(row: Mapping[str, Any], answer: int) -> dict[str, bool]:
  """Reads a response in each way.

  Args:
    row: of the file of responses.
    answer: to its problem.

  Returns:
    Reading to whether the response is right by it.
  """
  numbers = [int(found) for found in re.findall(
      r'(?<!\d)-?\d{1,9}(?!\d)', row['response'])]
  return dict(strict=row['reward'] == 1, last=numbers[-1:] == [answer],
              anywhere=answer in numbers)


def run(seed: int, workdir: pathlib.Path, more: Sequence[str]) -> Run:
  """Trains and evaluates with a seed; what is done already is kept.

  Args:
    seed: of the run and of its problems.
    workdir: of the run.
    more: further arguments of the training.
  """
  call = lambda module, *args: subprocess.run(
      [sys.executable, '-m', f'jaxrl_llm.{module}', *args], cwd=ROOT,
      check=True)
  if not (workdir / 'summary.json').exists():
    call('train', '--config=configs/real/smollm2.py', f'--config.seed={seed}',
         f'--config.task.seed={seed}', f'--config.workdir={workdir}', *more)
  responses = {}
  for time in TIMES:
    call('evaluate', f'--config={workdir}/config.json', f'--checkpoint={time}')
    path = json.loads((workdir / 'evaluation.json').read_text())['responses']
    responses[time] = [
        json.loads(line) for line in pathlib.Path(path).open()]
  # Texts and answers do not depend on the chat format.
  plain = types.SimpleNamespace(chat=str)
  return Run(json.loads((workdir / 'summary.json').read_text()), {
      problem.id: problem for problem in tasks.get(
          'jaxrl_llm.examples.arithmetic', plain, seed=seed).heldout},
             responses)


def share(run: Run, time: str, level: str, reading: str) -> tuple[float, float]:
  """Returns the share of right responses, and its standard error.

  Args:
    run: a run.
    time: one of TIMES.
    level: of the problems; '' for all.
    reading: one of READINGS.
  """
  right: dict[int, list[bool]] = {}
  for row in run.responses[time]:
    problem = run.problems[row['problem_id']]
    if level in ('', problem.kind):
      right.setdefault(problem.id, []).append(
          readings(row, int(problem.answer))[reading])
  means = [statistics.mean(values) for values in right.values()]
  return statistics.mean(means), statistics.stdev(means) / len(means)**0.5


def levels(runs: Sequence[Run]) -> str:
  """Returns a table of the runs' mean shares, by level and reading."""
  rows = []
  for level in (*dict.fromkeys(
      p.kind for p in runs[0].problems.values()), ''):
    cells = []
    for reading in READINGS:
      means = [statistics.mean(
          share(run, time, level, reading)[0] for run in runs)
               for time in TIMES]
      cells.append(f'{means[0]:.3f} to {means[1]:.3f}')
    rows.append([level or 'all', *cells])
  return markdown(['level', *READINGS], rows)


def seeds(found: Mapping[int, Run]) -> str:
  """Returns a table of the strict shares, with a row for each seed."""
  rows = []
  for seed, run in found.items():
    (before, error), (after, other) = (
        share(run, time, '', 'strict') for time in TIMES)
    gain, of_gain = after - before, math.hypot(error, other)
    rows.append([
        str(seed), f'{before:.3f} ± {error:.3f}', f'{after:.3f} ± {other:.3f}',
        f'{gain:.3f}', f'{gain / of_gain:.1f}',
        f'{run.summary["seconds"] / 60:.1f}'])
  return markdown(
      ['seed', 'before', 'after', 'gain', 'gain / standard error', 'minutes'],
      rows)


def samples(run: Run, count: int = 2) -> str:
  """Returns the first responses of each level, before and after."""
  rows = []
  first = {time: {row['problem_id']: row for row in reversed(
      run.responses[time])} for time in TIMES}
  seen = collections.Counter()
  for problem in run.problems.values():
    if (seen.update([problem.kind]) or seen[problem.kind]) <= count:
      said = [repr(first[time][problem.id]['response']) for time in TIMES]
      rows.append([problem.text, *said, problem.answer])
  return markdown(['problem', 'before', 'after', 'answer'], rows)


def report(found: Mapping[int, Run]) -> str:
  """Returns the report as Markdown."""
  runs = [*found.values()]
  return f'''# The real job

`python -m benchmarks.smollm2`, {datetime.date.today()}, {machine()}.

configs/real/smollm2.py, {runs[0].summary['steps']} steps: pass@1 on the \
{len(runs[0].problems)} held-out problems at the temperature of the training, \
with standard errors over problems.

{seeds(found)}

By level, mean of the seeds. "strict" is the reward: the response has ended \
with the right number. "last" takes the last number, whatever follows it, and \
"anywhere" any number of the response: their gain is the gain in the values, \
the rest of the gain in "strict" is form.

{levels(runs)}

The first responses of seed {next(iter(found))}.

{samples(runs[0])}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--seeds', type=int, nargs='+', default=[0, 1, 2], help='one run each')
  parser.add_argument(
      '--out', type=pathlib.Path, default=ROOT / 'runs/smollm2_seeds',
      help='folder of the runs')
  parser.add_argument(
      '--write', action='store_true', help=f'into {RESULT}')
  args, more = parser.parse_known_args()
  found = {seed: run(seed, args.out / str(seed), more) for seed in args.seeds}
  text = report(found)
  print(text)
  if args.write:
    RESULT.write_text(text)
    shutil.copy(args.out / str(args.seeds[0]) / 'curves.png',
                RESULT.with_name('smollm2.png'))


if __name__ == '__main__':
  main()
