"""Checks whether two checkouts of this project train to the same bits.

  python -m benchmarks.same_bits --before=../old

Use it for changes that move code and must not change a number. It runs three
short jobs with the code of each checkout, in this Python environment:
configs/countdown.py (47 steps, its first epoch), configs/pkpo/countdown.py (30
steps), and four steps of GRPO on word problems with a new tiny Qwen3 with
bfloat16 weights. It compares every row of metrics.jsonl (without times and
memory), every row of samples.jsonl, and every array of the last checkpoint, and
prints a hash of each. Metrics, keys of samples and arrays that only the newer
checkout has are named, not compared. Exit code 1 means that something differs.
It takes about 6 minutes on 2 cores.

If the command is run again with the same --workdir, finished jobs are not
repeated. `--only=NAME` runs one job.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Sequence

import jax
import numpy as np

from jaxrl_llm import checkpoint
from tests.helpers import tiny_hf

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEASURED = ('seconds/', 'speed/tokens', 'speed/flops_share', 'memory/')
JOBS = ('countdown', 'pkpo', 'words')
# Newer fields and defaults, with the values that older checkouts had.
SINCE = {'sampling.buckets': 'none', 'sampling.unroll': 'false'}


def fields(job: str, model: pathlib.Path) -> list[str]:
  """Returns the command line of a job, without its workdir."""
  if job == 'countdown':
    return ['--config=configs/countdown.py', '--config.steps=47']
  if job == 'pkpo':
    return ['--config=configs/pkpo/countdown.py', '--config.steps=30']
  return [
      '--config=configs/grpo/qwen3_1p7b_math.py',
      f'--config.model.hf={model}', '--config.model.dtype=bfloat16',
      f'--config.task.path={model.parent}/problems.jsonl',
      '--config.task.heldout=', '--config.task.heldout_count=5',
      '--config.task.take=number', '--config.task.template=question',
      '--config.max_prompt=150', '--config.max_response=24',
      '--config.prompts_per_step=4', '--config.samples_per_prompt=4',
      '--config.learner.updates=2', '--config.learner.attention=xla',
      '--config.mesh.data=1', '--config.mesh.fsdp=1', '--config.mesh.tensor=1',
      '--config.sampling.slots=8', '--config.sampling.chunk=none',
      '--config.loss.kl_coef=0.05', '--config.optimizer.learning_rate=3e-3',
      '--config.steps=4', '--config.eval.every=2', '--config.eval.samples=4',
      '--config.eval.k=1,4', '--config.eval.problems=5']


def run(checkout: pathlib.Path, workdir: pathlib.Path,
        arguments: Sequence[str]) -> None:
  """Runs a job with a checkout's code, unless the folder has its result."""
  if (workdir / 'summary.json').exists():
    return
  shutil.rmtree(workdir, ignore_errors=True)
  known = ''.join(
      path.read_text() for path in checkout.glob('jaxrl_llm/config/*fields.py'))
  command = [
      sys.executable, '-m', 'jaxrl_llm.train', *arguments,
      *(f'--config.{name}={value}' for name, value in SINCE.items()
        if f"'{name}'" in known),
      f'--config.workdir={workdir}', '--config.log.display=false',
      f'--config.sft.cache={workdir}/cache',
      '--config.log.tensorboard=false', '--config.log.samples=1000']
  done = subprocess.run(
      command, cwd=checkout, capture_output=True, text=True,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(checkout)})
  if done.returncode:
    sys.exit(f'{checkout}: {" ".join(command)} failed:\n{done.stderr[-3000:]}')


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a file of JSON lines, without measured times and memory."""
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  return [{k: v for k, v in row.items() if not k.startswith(MEASURED)}
          for row in rows]


def arrays(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns dtype, shape and hash of all arrays of the last checkpoint."""
  root = workdir / 'checkpoints'
  path = root / str(checkpoint.steps(root)[-1]) / 'tree' / 'metadata'
  nested: dict[str, Any] = {}
  for name, (shape, kind) in json.loads(path.read_text()).items():
    *sections, leaf = name.split('.')
    at = nested
    for section in sections:
      at = at.setdefault(section, {})
    at[leaf] = np.zeros(shape, kind)
  found = checkpoint.restore(root, nested).state
  return {
      jax.tree_util.keystr(keys, simple=True, separator='.').replace(
          'learners.0.', 'learner.'):  # the name in older checkouts
          [str(leaf.dtype), leaf.shape, hashlib.sha256(
              np.ascontiguousarray(leaf).tobytes()).hexdigest()]
      for keys, leaf in jax.tree_util.tree_leaves_with_path(found)}


def found(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads all results that must be the same."""
  return {'metrics': lines(workdir / 'metrics.jsonl'),
          'samples': lines(workdir / 'samples.jsonl'),
          'parameters': arrays(workdir)}


def common(a: Any, b: Any, added: set[str], where: str = '') -> Any:
  """Returns b without the dictionary keys that a does not have.

  Args:
    a: of the older checkout.
    b: of the newer checkout.
    added: gets the names of the keys left out.
    where: dotted name of b.
  """
  if isinstance(a, dict) and isinstance(b, dict):
    added.update(f'{where}.{key}'.strip('.') for key in b.keys() - a.keys())
    return {key: common(a[key], value, added, f'{where}.{key}')
            for key, value in b.items() if key in a}
  if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
    return [common(x, y, added, where) for x, y in zip(a, b)]
  return b


def digest(value: Any) -> str:
  """Returns the hash of a JSON value as sixteen hex digits."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(a: Any, b: Any, where: str = '') -> str:
  """Returns the first place where two values differ, and both values."""
  if isinstance(a, dict) and isinstance(b, dict):
    for key in sorted({*a, *b}):
      if a.get(key) != b.get(key):
        return first_difference(a.get(key), b.get(key), f'{where}.{key}')
  if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
    for i, (x, y) in enumerate(zip(a, b)):
      if x != y:
        return first_difference(x, y, f'{where}[{i}]')
  return f'{where}: {str(a)[:60]} -> {str(b)[:60]}'


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--before', type=pathlib.Path, required=True,
                      help='the other checkout')
  parser.add_argument('--workdir', type=pathlib.Path,
                      help='folder of the runs (default: a temporary one)')
  parser.add_argument('--only', choices=JOBS, help='one job')
  args = parser.parse_args()
  before = args.before.resolve()
  same = True
  with tempfile.TemporaryDirectory() as folder:
    root = (args.workdir or pathlib.Path(folder)).resolve()
    model = root / 'origin' / 'model'
    if not model.exists():
      model.parent.mkdir(parents=True)
      rows = tiny_hf.gsm8k(120)
      tiny_hf.write(model.parent / 'problems.jsonl', rows)
      tiny_hf.make(model, rows, dtype=tiny_hf.torch.bfloat16)
    for job in [args.only] if args.only else JOBS:
      for name, checkout in (('before', before), ('after', ROOT)):
        run(checkout, root / f'{job}-{name}', fields(job, model))
      a, b = (found(root / f'{job}-{name}') for name in ('before', 'after'))
      for part in a:
        added: set[str] = set()
        b[part] = common(a[part], b[part], added)
        x, y = digest(a[part]), digest(b[part])
        print(f'{job} {part}: {x} {y} ' + (
            'same' if x == y else first_difference(a[part], b[part])))
        if added:
          print(f'  new: {", ".join(sorted(added))}')
        same &= x == y
  sys.exit(0 if same else 1)


if __name__ == '__main__':
  main()
