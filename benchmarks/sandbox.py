"""The sandbox of programs: speed, what it stops, and what it leaves behind.

  python -m benchmarks.sandbox --mbpp=mbpp.jsonl.gz --write

Judges 256 reference programs of MBPP with their tests under each executor, in
turn; runs the hostile programs of tests/rewards/sandbox/hostile under both, and
10,000 programs in a row. It needs bubblewrap and takes about 40 minutes on 2
cores. Programs that could stop the machine outside of a sandbox are left out
there. `--write` saves the report in results/sandbox.md.
"""

import argparse
import collections
import datetime
import os
import pathlib
import statistics
import tempfile
import time
import types
from typing import Any, NamedTuple

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import rewards, tasks
from jaxrl_llm.rewards import sandbox
from jaxrl_llm.rewards.sandbox import process
from tests.helpers import hostile

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/sandbox.md'
TOKENIZER = types.SimpleNamespace(start='', chat=lambda text: text)
EXECUTORS = 'bubblewrap', 'subprocess'
# Without a sandbox these hit this machine, or the benchmark itself.
NOT_RUN = (
    'chroot_', 'daemon_', 'fork_', 'kill_', 'limits_', 'memory_many', 'mount_',
    'namespace_', 'outside_write_python', 'privilege_', 'proc_', 'trace_')


class Attack(NamedTuple):
  """Outcome of a hostile program.

  Attributes:
    theme: first word of its name.
    held: whether the verdict is right and nothing outside has changed; None if
      it was not run.
  """
  theme: str
  held: bool | None


def speed(name: str, path: str, count: int) -> float:
  """Returns the seconds for the references of MBPP, workers started before.

  Raises:
    RuntimeError: a reference did not pass.
  """
  task = tasks.get('code', TOKENIZER, path=(path,), heldout_count=0,
                   sandbox=name, allow_unsafe=name == 'subprocess')
  chosen = task.train[:count]
  texts = [f'```python\n{p.info.answer}\n```' for p in chosen]
  rewards.verify_all(task, chosen[:8], texts[:8], [False] * 8)
  began = time.monotonic()
  verdicts = rewards.verify_all(task, chosen, texts, [False] * len(chosen))
  seconds = time.monotonic() - began
  task.close()
  if bad := [v for v in verdicts if v.kind != 'correct']:
    raise RuntimeError(f'{name}: {bad}')
  return seconds


def attacks(name: str) -> dict[str, Attack]:
  """Runs the hostile programs; a new world after each that did harm."""
  executor = sandbox.make(name, allow_unsafe=True)
  found = {}
  for case in map(hostile.case, hostile.names()):
    theme = case.name.partition('_')[0]
    if name == 'subprocess' and (
        case.danger or case.name.startswith(NOT_RUN)):
      found[case.name] = Attack(theme, None)
      continue
    with tempfile.TemporaryDirectory() as folder, hostile.world(
        pathlib.Path(folder), executor) as world:
      for _ in range(2 if case.twice else 1):
        outcomes = executor.check(
            world.program(case.source), hostile.TESTS, limits=hostile.LIMITS)
      passed = [outcome.kind == 'passed' for outcome in outcomes]
      right = {'some': True, 'pass': all(passed), 'fail': not any(passed)}
      found[case.name] = Attack(theme, right[case.want] and not world.harm())
  return found


def soak(count: int) -> tuple[float, list[str]]:
  """Judges programs in a row; returns the seconds and what they left."""
  executor = sandbox.make('bubblewrap')
  seen = lambda: {
      'processes': len(process.tree(os.getpid())),
      'descriptors': len(os.listdir('/proc/self/fd')),
      'files': len(os.listdir(tempfile.gettempdir()))}
  # The first program starts what the executor keeps.
  executor.check('def f(x): return x', sandbox.Suite(['assert f(1) == 1']))
  before, began = seen(), time.monotonic()
  for number in range(count):
    outcomes = executor.check(
        f'def f(x): return x + {number % 7}',
        sandbox.Suite([f'assert f(1) == {1 + number % 7}']))
    if [outcome.kind for outcome in outcomes] != ['passed']:
      raise RuntimeError(f'program {number}: {outcomes}')
  seconds = time.monotonic() - began
  after = seen()
  return seconds, [f'{name}: {before[name]} became {after[name]}'
                   for name in before if after[name] != before[name]]


def report(times: dict[str, list[float]], count: int,
           found: dict[str, dict[str, Attack]], soaked: Any) -> str:
  """Returns the report as Markdown."""
  rows = [[name, f'{statistics.median(values):.1f}',
           ' '.join(f'{value:.1f}' for value in sorted(values))]
          for name, values in times.items()]
  themes = collections.defaultdict(lambda: [[0, 0, 0] for _ in EXECUTORS])
  for place, name in enumerate(EXECUTORS):
    for attack in found.get(name, {}).values():
      themes[attack.theme][place][
          2 if attack.held is None else 0 if attack.held else 1] += 1
  lines = [[theme, *(" / ".join(map(str, counts)) for counts in both)]
           for theme, both in sorted(themes.items())]
  opened = sorted(name for name, attack in found.get('subprocess', {}).items()
                  if attack.held is False)
  return f'''# The sandbox of programs

`python -m benchmarks.sandbox`, {datetime.date.today()}, {machine()}.

## Speed

Seconds for {count} reference programs of MBPP with their tests, checker \
included, on all cores; the executors take turns.

{markdown(['executor', 'median', 'all'], rows)}

## Hostile programs

Programs of tests/rewards/sandbox/hostile by theme: held (right verdict, no \
effect outside) / not held / not run. Under `subprocess`, those that would hit \
the machine were not run: nothing there holds them.

{markdown(['theme', *EXECUTORS], lines)}

Not held by `subprocess`: {', '.join(opened) or 'none'}.

## In a row

{soaked}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--mbpp', required=True)
  parser.add_argument('--count', type=int, default=256)
  parser.add_argument('--turns', type=int, default=3)
  parser.add_argument('--soak', type=int, default=10_000)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  times = {name: [] for name in EXECUTORS}
  for _ in range(args.turns):
    for name in EXECUTORS:
      times[name].append(speed(name, args.mbpp, args.count))
      print(name, times[name][-1], flush=True)
  found = {name: attacks(name) for name in EXECUTORS}
  seconds, left = soak(args.soak)
  text = report(times, args.count, found, (
      f'{args.soak} programs with one test each under bubblewrap, one at a '
      f'time, took {seconds:.0f} s. Left behind (processes, descriptors, '
      f'temporary files): {"; ".join(left) or "nothing"}.'))
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
