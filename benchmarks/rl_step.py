r"""Time of one RL step on a CPU, against TRL and Tunix in the same run.

  python -m benchmarks.rl_step --trl-python=TRL/bin/python \
      --tunix-python=TUNIX/bin/python --write

Each peer has its own environment, made with `pip install trl==1.16.0
torch==2.13.0` or `pip install google-tunix==0.1.7`; a peer without an option is
skipped. All libraries do the same job (see `peers/job.py`), each in a
long-lived process. They take turns, so that other load on the machine affects
all of them. The first steps, which compile, do not count. It takes about 5
minutes on 2 cores. `--write` saves the report in results/rl_step.md.

`--size=0.6b` times a model of the shape of Qwen3-0.6B in a Hugging Face folder,
made for this, with our default settings, against TRL. The processes would not
fit into memory together, so each turn starts one: about 20 minutes for a round.
`--tokenizer` and `--problems` name a folder with tokenizer.json and a file of
JSON lines. The report is results/rl_step_0.6b.md. `--size=tiny` only
checks that everything runs.

`--model=FOLDER` times a model of your own, the folder of a Hugging Face model
that both load, in the same way: 4 problems of `--problems` in its chat format,
8 samples of at most 96 tokens. The report is results/rl_step_NAME.md, by the
name of the folder.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Callable, Iterable

from benchmarks.peers import job as job_lib

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/rl_step.md'

SIZES = {'1m': job_lib.Job(), '0.6b': job_lib.LARGE, 'tiny': job_lib.TINY}

Row = dict[str, Any]


class Library:
  """Process of a library that does a step on request."""

  def __init__(self, python: str, module: str, job: job_lib.Job):
    self._log = tempfile.TemporaryFile('w+')
    self._process = subprocess.Popen(
        [python, '-m', f'benchmarks.peers.{module}', job_lib.to_argument(job)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=self._log,
        env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'HF_HUB_OFFLINE': '1'})

  def step(self) -> Row:
    """Requests a step and returns its row; see `job.Turns`."""
    self._process.stdin.write('\n')
    self._process.stdin.flush()
    line = self._process.stdout.readline()
    if not line:
      self._log.seek(0)
      raise RuntimeError(
          f'{shlex.join(self._process.args)} has ended; its last output:\n'
          + self._log.read()[-3000:])
    return json.loads(line)

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait()


def alone(
    start: dict[str, Callable[[], Library]], *, warmup: int, rounds: int,
    steps: int) -> dict[str, list[list[Row]]]:
  """Does as `measure`, with one process at a time, started for its turn."""
  found = {name: [] for name in start}
  for _ in range(rounds):
    for name in start:
      found[name] += measure(
          {name: start[name]}, warmup=warmup, rounds=1, steps=steps)[name]
  return found


def measure(
    start: dict[str, Callable[[], Library]], *, warmup: int, rounds: int,
    steps: int) -> dict[str, list[list[Row]]]:
  """Lets the libraries take turns.

  Args:
    start: name to a function that starts the library. A library starts after
      the previous one has warmed up, so that the machine is idle.
    warmup: steps of each library that do not count.
    rounds: turns of each library.
    steps: steps of a turn.

  Returns:
    Dictionary from name to rounds to steps.
  """
  libraries = {}
  for name in start:
    print(f'{name}: {warmup} steps to warm up', file=sys.stderr)
    libraries[name] = start[name]()
    for _ in range(warmup):
      libraries[name].step()
  found = {name: [] for name in libraries}
  for i in range(rounds):
    for name, library in libraries.items():
      found[name].append([library.step() for _ in range(steps)])
    took = ', '.join(
        f'{name} {median(found[name][-1:], "seconds"):.2f} s' for name in found)
    print(f'round {i + 1} of {rounds}: {took}', file=sys.stderr)
  for library in libraries.values():
    library.close()
  return found


def median(rounds: Iterable[list[Row]], field: str) -> float:
  """Returns the median of a field over all steps of all rounds."""
  return statistics.median(row[field] for steps in rounds for row in steps)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a Markdown table."""
  lines = [list(head), ['---'] * len(list(head)), *map(list, rows)]
  return '\n'.join('| ' + ' | '.join(
      cell.replace('|', r'\|') for cell in line) + ' |' for line in lines)


def comparison(found: dict[str, list[list[Row]]], job: job_lib.Job) -> str:
  """Returns the table of all libraries; the first is ours."""
  ours = next(iter(found.values()))

  def ratio(rounds):
    if rounds is ours:
      return ''
    closest = min(
        median([theirs], 'seconds') / median([own], 'seconds')
        for theirs, own in zip(rounds, ours))
    whole = median(rounds, 'seconds') / median(ours, 'seconds')
    return f'**{whole:.1f}x** ({closest:.1f}x in the closest round)'

  def rate(rounds):
    return statistics.median(
        row['sampled'] / row['seconds'] for steps in rounds for row in steps)

  lines = {
      'seconds per step': lambda r: f'{median(r, "seconds"):.3f}',
      'ours is faster by': ratio,
      'processor seconds per step': lambda r: f'{median(r, "cpu"):.3f}',
      'of it sampling': lambda r: f'{median(r, "sample"):.3f}',
      'of it the update': lambda r: f'{median(r, "update"):.3f}',
      'most memory of the process, GB':
          lambda r: f'{max(x["peak"] for steps in r for x in steps) / 1e9:.1f}',
      'tokens sampled per step': lambda r: f'{median(r, "sampled"):.0f}',
      'tokens trained on per step': lambda r: f'{median(r, "trained"):.0f}',
      'mean response, tokens':
          lambda r: f'{median(r, "sampled") / job.rows:.1f}',
      'sampled tokens per second of step': lambda r: f'{rate(r):.0f}',
  }
  return markdown(
      ['', *(f'{name} {r[0][0]["version"]}' for name, r in found.items())],
      [[what, *map(cell, found.values())] for what, cell in lines.items()])


def own_parts(rounds: list[list[Row]]) -> str:
  """Returns the table of the times within our step."""
  step, rate = median(rounds, 'seconds'), median(rounds, 'rate')
  work = [row['flops'] for steps in rounds for row in steps]

  def line(name, seconds, flops=None):
    cells = [name, f'{seconds:.4f}', f'{seconds / step:.1%}']
    if flops is None:
      return [*cells, '', '']
    return [*cells, f'{flops / 1e9:.2f}', f'{flops / seconds / rate:.1%}']

  sample, update = (
      statistics.median(w[phase] for w in work)
      for phase in ('sample', 'update'))
  parts = median(rounds, 'sample'), median(rounds, 'update')
  rest = statistics.median(
      row['seconds'] - row['sample'] - row['update']
      for steps in rounds for row in steps)
  return markdown(
      ['ours', 'seconds', 'of the step', 'model GFLOP',
       f'of {rate / 1e9:.0f} GFLOP/s'],
      [line('sampling', parts[0], sample), line('update', parts[1], update),
       line('other phases', rest),
       line('whole step', step, sample + update),
       line('host work, in all phases', median(rounds, 'host'))])


def machine() -> str:
  """Returns the number of cores, the processor, the system and Python."""
  name = platform.processor() or platform.machine()
  info = pathlib.Path('/proc/cpuinfo')
  if info.exists():
    name = next((line.partition(': ')[2] for line in
                 info.read_text().splitlines() if 'model name' in line), name)
  return (f'{len(os.sched_getaffinity(0))} cores of {name}, '
          f'{platform.system()}, Python {platform.python_version()}')


def report(
    found: dict[str, list[list[Row]]], job: job_lib.Job, command: str,
    model: str) -> str:
  """Returns the report as Markdown."""
  ours = found['jaxrl_llm']
  return f'''# One RL step

`{command}`, {datetime.date.today()}, {machine()}.

One GRPO step of {model}: \
{job.prompts} prompts of {'at most ' if job.folder else ''}{job.max_prompt} \
tokens x {job.samples} samples of at most {job.max_response} tokens, \
temperature 1, one AdamW update on all of them. Every library has the same \
prompts, sizes and reward; medians of {len(ours)} turns of {len(ours[0])} \
steps each.

{comparison(found, job)}

Host work is the processor time of the Python thread, which sleeps while a \
device program runs. GFLOP are model FLOPs, with the prompt of each response; \
ours computes the prompt of a group once. They are compared with the rate of \
products of 768 x 768 matrices on all cores, measured in our process. Our \
slots were busy in {median(ours, 'slot_use'):.0%} of their steps.

{own_parts(ours)}
'''


def described(job: job_lib.Job, folder: pathlib.Path | None) -> str:
  """Returns the model in words: the one in the folder, or the made-up one."""
  if folder is None:
    return (
        f'a Qwen3 with random weights (width {job.width}, {job.layers} layers, '
        f'{job.heads} heads of {job.head_dim}, {job.kv_heads} of them for keys '
        f'and values, MLP {job.mlp_width}, vocabulary {job.vocab_size}, '
        'float32)')
  raw = json.loads((folder / 'config.json').read_text())
  return (
      f'{folder.name} ({raw["model_type"]}, width {raw["hidden_size"]}, '
      f'{raw["num_hidden_layers"]} layers, vocabulary {raw["vocab_size"]}, '
      'float32)')


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--trl-python', help='Python that has TRL')
  parser.add_argument('--tunix-python', help='Python that has Tunix')
  parser.add_argument('--warmup', type=int, default=3)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--steps', type=int, default=3, help='in a turn')
  parser.add_argument('--size', choices=SIZES, default='1m')
  parser.add_argument(
      '--model', type=pathlib.Path, help='folder to time, in place of --size')
  parser.add_argument('--tokenizer', help='folder; else one is trained')
  parser.add_argument('--problems', help='file; else some are made up')
  parser.add_argument('--write', action='store_true', help='into results/')
  args = parser.parse_args()
  job = job_lib.OWN if args.model else SIZES[args.size]
  large = job in (job_lib.LARGE, job_lib.OWN)
  with tempfile.TemporaryDirectory() as folder:
    if large:
      job = dataclasses.replace(job, folder=folder)
      options = [f'--{name}={value}' for name in (
          'model', 'tokenizer', 'problems')
                 if (value := getattr(args, name))]
      subprocess.run(
          [args.trl_python or sys.executable, '-m',
           'benchmarks.peers.hf_folder', job_lib.to_argument(job), *options],
          cwd=ROOT, check=True)
    wanted = {
        'jaxrl_llm': (sys.executable, 'jaxrl_llm_grpo', job),
        'TRL': (args.trl_python, 'trl_grpo', job)}
    if not large:
      wanted['google-tunix'] = (args.tunix_python, 'tunix_grpo', job)
    start = {
        name: functools.partial(Library, *how)
        for name, how in wanted.items() if how[0]}
    found = (alone if large else measure)(
        start, warmup=args.warmup, rounds=args.rounds, steps=args.steps)
  name = args.model.name if args.model else args.size
  text = report(
      found, job, 'python -m benchmarks.rl_step' + (
          f' --model={name}' if args.model else
          f' --size={name}' * (name != '1m')), described(job, args.model))
  print(text)
  if args.write:
    result = RESULT.with_stem(f'rl_step_{name}') if large else RESULT
    result.parent.mkdir(exist_ok=True)
    result.write_text(text)


if __name__ == '__main__':
  main()
