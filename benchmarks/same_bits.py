"""Checks whether two checkouts of this project train to the same bits.

  python -m benchmarks.same_bits --before=../old

Use it for changes that move code and must not change a number. It runs short
jobs, see `JOBS`, with the code of each checkout, in this Python environment. It
compares every row of metrics.jsonl (without times and memory), every row of
samples.jsonl, and every array of the last checkpoint. An array, a metric or a
key of samples that only the older checkout has is a difference; so is an array
that only the newer one has. New metrics and keys of samples are named, not
compared. A job fails if one of the metrics that it is there for is 0. Exit code
1 means that something differs or fails. Two jobs run at a time; all take about
15 minutes on 2 cores.

The job `goes_on` takes a run of the older checkout back to its first
checkpoint, and the newer one continues it.

If the command is run again with the same --workdir, a job is repeated where its
command or a Python file of the checkout has changed. `--only NAME NAME` runs
some of the jobs.
"""

import argparse
import collections
from concurrent import futures
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import checkpoint
from tests.helpers import tiny_hf

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEASURED = (
    'seconds/', 'speed/tokens', 'speed/flops_share', 'memory/', 'turns/waited')
LIMIT = 3600.0  # seconds of a program, also on a busy machine
# Newer fields and defaults, with the values that older checkouts had.
SINCE = {'sampling.buckets': 'none', 'sampling.unroll': 'false'}
# Beginnings of names of arrays in older checkouts, with today's.
RENAMED = {'learner.': 'learners.0.'}
AT_ONCE = 2  # jobs
# Prints {config: names of its fields}.
ASK = '''
import json, sys
from jaxrl_llm import config
print(json.dumps({
    spec: [*config.flatten(config.load(spec))] for spec in sys.argv[1:]}))
'''


_locks: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)


class Job(NamedTuple):
  """A short run.

  Attributes:
    config: its config.
    fields: values of it.
    acts: metrics that must not be 0 in some two rows.
    programs: run one after another.
    processes: of each program.
    of: the job of which the older checkout's run is continued.
  """
  config: str
  fields: Mapping[str, Any]
  acts: Sequence[str]
  programs: Sequence[str] = ('train',)
  processes: int = 1
  of: str | None = None


_LENGTH = {
    'steps': 8, 'eval.every': 4, 'checkpoint.every': 4, 'eval.samples': 4,
    'eval.k': '1,4', 'learner.updates': 2, 'sampling.slots': 8,
    'processes.patience': 120, 'log.samples': 1000}
_SIZE = {
    **_LENGTH, 'prompts_per_step': 8, 'samples_per_prompt': 4,
    'model.width': 32, 'model.heads': 2, 'model.kv_heads': 1,
    'model.mlp_width': 64, 'sft.steps': 300, 'sft.batch': 32,
    'sft.learning_rate': 1e-2, 'optimizer.learning_rate': 2e-3,
    'optimizer.warmup_steps': 0, 'sampling.buckets': 'none'}
# All have the same warm start, which a checkout makes once.
_COUNTDOWN = {
    **_SIZE, 'task.kinds': 'two', 'task.train': 200, 'task.heldout': 16,
    'task.solved': .6}
_SPEED = {'speed.n_init': 2, 'curriculum_prompts': 16}
_CBS = {'cbs.warmup': 1, 'cbs.epsilon': .2}
_ALL_FOUR = Job(
    'all_four', {**_COUNTDOWN, **_SPEED, **_CBS, 'pkpo.k': '0:2,4:1'},
    ('eval/pass@1', 'screening/continued', 'cbs/gain', 'batch/replayed',
     'batch/age', 'update/obrs_kl_before'))
JOBS = {
    # More than one epoch, and sampling in buckets.
    'countdown': Job('countdown', {
        **_COUNTDOWN, 'learner.updates': 1, 'prompts_per_step': 32,
        'sampling.buckets': 'auto'}, ('eval/pass@1', 'update/grad_norm')),
    'pkpo': Job('pkpo/countdown', {
        **_COUNTDOWN, 'pkpo.k': '0:2,4:1', 'max_response': 9},
        ('response/truncated', 'update/kl_old')),
    # Fine-tuning by itself, on rows of a file, then RL, of a model of the hub's
    # format in bfloat16.
    'words': Job('grpo/qwen3_1p7b_math', {
        **_LENGTH, 'model.dtype': 'bfloat16', 'task.heldout': '',
        'task.heldout_count': 5, 'task.take': 'number',
        'task.template': 'question', 'sft.heldout_count': 9, 'sft.steps': 4,
        'sft.batch': 8, 'sft.eval_every': 2, 'sft.learning_rate': 3e-3,
        'max_prompt': 150, 'max_response': 24, 'prompts_per_step': 4,
        'samples_per_prompt': 4, 'learner.attention': 'xla', 'mesh.data': 1,
        'mesh.fsdp': 1, 'mesh.tensor': 1, 'sampling.chunk': 'none',
        'sampling.buckets': 'none', 'loss.kl_coef': .05,
        'optimizer.learning_rate': 3e-3, 'steps': 4, 'eval.every': 2,
        'eval.problems': 5, 'checkpoint.every': 2},
        ('sft/heldout_loss', 'update/grad_norm'), ('sft', 'train')),
    'jackpot': Job('jackpot/countdown', {
        **_COUNTDOWN, 'learner.updates': 4, 'sampling.weights': 'int8',
        'sampling.kv': 'int8'},
        ('update/obrs_kl_before', 'update/obrs_rejected_positive')),
    'cbs': Job('cbs/countdown:dapo', {**_COUNTDOWN, **_CBS},
               ('cbs/gain', 'batch/replayed', 'update/clip_high')),
    'speed': Job('speed/countdown', {**_COUNTDOWN, **_SPEED},
                 ('screening/continued', 'update/grad_norm')),
    'all_four': _ALL_FOUR,
    'actor': Job('jackpot/countdown_actor', {
        **_COUNTDOWN, 'actor.model.width': 16, 'actor.model.layers': 1,
        'actor.model.heads': 2, 'actor.model.kv_heads': 1,
        'actor.model.mlp_width': 32},
        ('update/obrs_kl_before', 'update/actor_loss')),
    'turns': Job('turns/game', _SIZE, ('eval/pass@1', 'update/grad_norm')),
    'lora': Job('countdown', {
        **_COUNTDOWN, 'lora.rank': 4, 'actor.lag': 1, 'loss.kl_coef': .1},
        ('batch/staleness', 'update/kl_anchor')),
    'devices': Job('countdown', {
        **_COUNTDOWN, 'model.kv_heads': 2, 'mesh.cpu_devices': 8,
        'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2,
        'selection': 'replay', 'replay.rounds': 2},
        ('eval/pass@1', 'batch/replayed')),
    'processes': Job('speed/countdown', {
        **_COUNTDOWN, **_SPEED, 'selection': 'cbs', **_CBS,
        'mesh.cpu_devices': 1},
        ('screening/continued', 'cbs/gain', 'batch/replayed'), processes=2),
    'goes_on': _ALL_FOUR._replace(of='all_four')}


class Checkout(NamedTuple):
  """A checkout.

  Attributes:
    path: its folder.
    code: hash of its Python files.
    known: config -> the names of its fields.
  """
  path: pathlib.Path
  code: str
  known: Mapping[str, Sequence[str]]


def environment(checkout: pathlib.Path) -> dict[str, str]:
  """Returns the environment of programs with a checkout's code."""
  return {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(checkout)}


def look_at(path: pathlib.Path) -> Checkout:
  """Reads a checkout's code, and asks it for the fields of all configs."""
  files = sorted(file for folder in ('jaxrl_llm', 'configs', 'examples')
                 for file in (path / folder).rglob('*.py'))
  code = hashlib.sha256(b'\0'.join(
      part for file in files
      for part in (str(file.relative_to(path)).encode(), file.read_bytes())))
  done = subprocess.run(
      [sys.executable, '-c', ASK, *{job.config for job in JOBS.values()}],
      cwd=path, capture_output=True, text=True, env=environment(path))
  if done.returncode:
    sys.exit(f'{path} does not know the configs:\n{done.stderr[-3000:]}')
  return Checkout(path, code.hexdigest(), json.loads(done.stdout))


def command(
    job: Job, checkout: Checkout, others: Checkout, model: pathlib.Path,
) -> list[str]:
  """Returns the flags of a job, without its folders.

  Args:
    job: see `JOBS`.
    checkout: that runs it.
    others: with which it is compared.
    model: folder of the model of the job `words`, with its rows beside it.
  """
  fields = {
      **{name: value for name, value in SINCE.items()
         if name not in others.known[job.config]},
      **job.fields, 'log.display': False, 'log.tensorboard': False}
  if 'sft' in job.programs:
    rows = model.parent / 'problems.jsonl'
    fields.update({'model.hf': model, 'task.path': rows, 'sft.path': rows})
  known = checkout.known[job.config]
  return [f'--config={job.config}', *(
      f'--config.{name}={value}' for name, value in fields.items()
      if name in known or name not in SINCE)]


def start(
    checkout: Checkout, program: str, arguments: Sequence[str],
    log: pathlib.Path, count: int) -> None:
  """Runs a program with a checkout's code.

  Args:
    checkout: of the code.
    program: 'train' or 'sft'.
    arguments: of the command line.
    log: file that gets the output.
    count: number of processes.

  Raises:
    RuntimeError: a process fails; the text has the end of the output.
  """
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  with log.open('a+') as said:
    processes = [subprocess.Popen(
        [sys.executable, '-m', f'jaxrl_llm.{program}', *arguments, *([
            f'--process_count={count}', f'--process_id={index}',
            f'--coordinator=localhost:{port}'] if count > 1 else [])],
        cwd=checkout.path, stdout=said, stderr=said,
        env=environment(checkout.path)) for index in range(count)]
    try:
      codes = [process.wait(LIMIT) for process in processes]
    except subprocess.TimeoutExpired:
      raise RuntimeError(
          f'{checkout.path}: {program} has not ended after {LIMIT:.0f} s:\n'
          f'{log.read_text()[-3000:]}') from None
    finally:
      for process in processes:
        process.kill()
        process.wait()
  if any(codes):
    raise RuntimeError(
        f'{checkout.path}: {program} ended with {codes}:\n'
        f'{log.read_text()[-3000:]}')


def run(
    job: Job, name: str, checkout: Checkout, arguments: Sequence[str],
    root: pathlib.Path, origin: pathlib.Path | None = None) -> None:
  """Runs a job with a checkout's code, unless its result is there.

  Args:
    job: see `JOBS`.
    name: of its folder.
    checkout: of the code.
    arguments: from `command`.
    root: parent of all folders.
    origin: a finished run to go on with, from the checkpoint before its last.

  Raises:
    RuntimeError: a program fails.
  """
  workdir, mark, log = (root / f'{name}{end}' for end in ('', '.key', '.log'))
  key = '\n'.join([
      checkout.code, os.environ.get('XLA_FLAGS', ''), *arguments,
      origin.with_suffix('.key').read_text() if origin else ''])
  if mark.exists() and mark.read_text() == key:
    return
  shutil.rmtree(workdir, ignore_errors=True)
  log.unlink(missing_ok=True)
  if origin:
    shutil.copytree(origin, workdir)
    (workdir / 'summary.json').unlink()
    last = checkpoint.steps(workdir / 'checkpoints')[-1]
    shutil.rmtree(workdir / 'checkpoints' / str(last))
  for program in job.programs:
    start(checkout, program, [
        *arguments, f'--config.workdir={workdir}',
        f'--config.sft.cache={root}/sft-{checkout.code[:16]}',
        f'--config.compilation_cache={root}/programs'], log, job.processes)
  mark.write_text(key)


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a file of JSON lines, without measured times and memory."""
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  return [{k: v for k, v in row.items() if not k.startswith(MEASURED)}
          for row in rows]


def renamed(name: str) -> str:
  """Returns today's name of an array."""
  for old, new in RENAMED.items():
    if name.startswith(old):
      return new + name.removeprefix(old)
  return name


def arrays(root: pathlib.Path) -> dict[str, Any]:
  """Returns dtype, shape and hash of all arrays of the last checkpoint."""
  steps = checkpoint.steps(root)
  if not steps:
    raise RuntimeError(f'{root} has no checkpoint.')
  path = root / str(steps[-1]) / 'tree' / 'metadata'
  nested: dict[str, Any] = {}
  for name, (shape, kind) in json.loads(path.read_text()).items():
    *sections, leaf = name.split('.')
    at = nested
    for section in sections:
      at = at.setdefault(section, {})
    at[leaf] = np.zeros(shape, kind)
  restored = checkpoint.restore(root, nested)
  if restored is None:
    raise RuntimeError(f'{root} has no whole checkpoint.')
  return {
      renamed(jax.tree_util.keystr(keys, simple=True, separator='.')):
          [str(leaf.dtype), leaf.shape, hashlib.sha256(
              np.ascontiguousarray(leaf).tobytes()).hexdigest()]
      for keys, leaf in jax.tree_util.tree_leaves_with_path(restored.state)}


def found(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the results of a run, and those of its supervised phase."""
  results: dict[str, Any] = {}
  for metrics in sorted(workdir.rglob('metrics.jsonl')):
    folder = metrics.parent
    name = folder.relative_to(workdir)
    results[str(name / 'metrics')] = lines(metrics)
    if (folder / 'samples.jsonl').exists():
      results[str(name / 'samples')] = lines(folder / 'samples.jsonl')
    results[str(name / 'arrays')] = arrays(folder / 'checkpoints')
  return results


def idle(job: Job, results: Mapping[str, Any]) -> list[str]:
  """Returns the metrics that are to act and are 0 in all rows but one."""
  counts = collections.Counter(
      name for part, rows in results.items() if part.endswith('metrics')
      for row in rows for name, value in row.items() if value)
  return [name for name in job.acts if counts[name] < 2]


def compared(
    a: Mapping[str, Any],
    b: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
  """Compares two results.

  Args:
    a: results of the older checkout.
    b: results of the newer one.

  Yields:
    For each part its name, its first difference or '', and the metrics or keys
    of samples that are new.
  """
  for part in sorted({*a, *b}):
    x, y, new = a.get(part), b.get(part), set()
    if isinstance(x, list) and isinstance(y, list):
      new = {key for row in y for key in row} - {
          key for row in x for key in row}
      y = [{k: v for k, v in row.items() if k not in new} for row in y]
    difference = '' if digest(x) == digest(y) else first_difference(x, y)
    yield part, difference, sorted(new)


def digest(value: Any) -> str:
  """Returns the hash of a JSON value as sixteen hex digits."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(a: Any, b: Any, where: str = '') -> str:
  """Returns the first place where two values differ, and both values."""
  if isinstance(a, dict) and isinstance(b, dict):
    for key in sorted({*a, *b}):
      x, y = (of.get(key, 'absent') for of in (a, b))
      if digest(x) != digest(y):
        return first_difference(x, y, f'{where}.{key}')
  if isinstance(a, list) and isinstance(b, list):
    for i, (x, y) in enumerate(zip(a, b)):
      if digest(x) != digest(y):
        return first_difference(x, y, f'{where}[{i}]')
    return f'{where}: {len(a)} rows -> {len(b)} rows'
  return f'{where}: {str(a)[:60]} -> {str(b)[:60]}'


def check(
    name: str, before: Checkout, after: Checkout,
    root: pathlib.Path) -> tuple[bool, float]:
  """Runs a job with both checkouts, and prints its differences.

  Args:
    name: of the job.
    before: the older checkout.
    after: the newer one.
    root: folder of all runs, with the model of the job `words`.

  Returns:
    Whether it is the same, and the seconds that it took.
  """
  since = time.monotonic()
  job, model = JOBS[name], root / 'origin' / 'model'
  old, new = f'{job.of or name}-before', f'{name}-after'
  try:
    with _locks[old]:
      run(job, old, before, command(job, before, after, model), root)
    run(job, new, after, command(job, after, before, model), root,
        root / old if job.of else None)
    a, b = found(root / old), found(root / new)
  except (OSError, RuntimeError, ValueError) as error:
    print(f'{name}: {error}', flush=True)
    return False, time.monotonic() - since
  idles = idle(job, a)
  if idles:
    print(f'{name} proves too little: {", ".join(idles)} is 0 in all rows but '
          'one: change its fields.')
  same = not idles
  for part, difference, added in compared(a, b):
    print(f'{name} {part}: {difference or "same " + digest(a[part])}' + (
        f'; new: {", ".join(added)}' if added else ''), flush=True)
    same &= not difference
  return same, time.monotonic() - since


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--before', type=pathlib.Path, required=True,
                      help='the other checkout')
  parser.add_argument('--workdir', type=pathlib.Path,
                      help='folder of the runs (default: a temporary one)')
  parser.add_argument('--only', choices=JOBS, nargs='+', default=[*JOBS],
                      help='some jobs')
  args = parser.parse_args()
  if not (args.before / 'jaxrl_llm').is_dir():
    parser.error(f'--before={args.before} is no checkout of this project.')
  since = time.monotonic()
  with (tempfile.TemporaryDirectory() as folder,
        futures.ThreadPoolExecutor(AT_ONCE) as pool):
    root = (args.workdir or pathlib.Path(folder)).resolve()
    model = root / 'origin' / 'model'
    if not model.exists():
      model.parent.mkdir(parents=True)
      rows = tiny_hf.gsm8k(120)
      tiny_hf.write(model.parent / 'problems.jsonl', rows)
      tiny_hf.make(model, rows, dtype=tiny_hf.torch.bfloat16)
    before, after = look_at(args.before.resolve()), look_at(ROOT)
    results = [*pool.map(
        lambda name: check(name, before, after, root), args.only)]
  print(f'{time.monotonic() - since:.0f} seconds: ' + ', '.join(
      f'{name} {seconds:.0f}' for name, (_, seconds) in zip(
          args.only, results)))
  sys.exit(0 if all(same for same, _ in results) else 1)


if __name__ == '__main__':
  main()
