"""Writes launch/FITS.md: memory and time of the configs made for a pod.

  make fits

For every config file that defines TOPOLOGY, without argument and with each
argument in its VARIANTS, runs launch/compile_check.py in a separate process.
One config takes minutes on two cores: see the last column of the table.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

from jaxrl_llm.config import files as config_files

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / 'launch/FITS.md'
COLUMNS = (
    'config', 'slice', 'mesh (data, fsdp, tensor)', 'slots', 'GiB per chip',
    'free', 'in', 's per step', 'of it sampling', 'bound by', 'of it update',
    'update: model-flops use', 'tokens/s per chip', 's to compile')


def jobs() -> Iterator[str]:
  """Yields the configs made for a slice, with their arguments."""
  for path in sorted((ROOT / 'configs').rglob('*.py')):
    module = config_files.load_file(str(path))
    if hasattr(module, 'TOPOLOGY'):
      name = str(path.relative_to(ROOT))
      for variant in ('', *getattr(module, 'VARIANTS', ())):
        yield f'{name}:{variant}'.rstrip(':')


def check(spec: str) -> dict[str, Any]:
  """Runs compile_check on a job and returns its JSON."""
  out = subprocess.run(
      [sys.executable, 'launch/compile_check.py', f'--config={spec}',
       '--json=-'], cwd=ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  try:
    return json.loads(out.stdout)
  except json.JSONDecodeError:
    raise RuntimeError(out.stderr[-2000:]) from None


def row(spec: str, found: dict[str, Any]) -> list[str]:
  """Returns a job's row of the table."""
  phases = found['phases']
  slowest = max(p['compile_seconds'] for p in phases.values())
  start = [spec.removeprefix('configs/'), found['topology'],
           _mesh(found), str(found['slots'])]
  if found['seconds_per_step'] is None:
    lacking = next(p for p in phases.values() if p['needs'])
    return [*start, lacking['needs'], 'none', *[''] * 7, f'{slowest:.0f}']
  most = max(phases, key=lambda name: phases[name]['total_bytes'])
  sample, update = (phases[n]['estimate'] for n in ('sample', 'update'))
  return [
      *start, f'{found["peak_bytes"] / 2**30:.1f}', f'{found["free"]:.0%}',
      most, f'{found["seconds_per_step"]:.2f}', f'{sample["seconds"]:.2f}',
      phases['sample']['bound'], f'{update["seconds"]:.2f}',
      f'{update["model-flops use"]:.0%}',
      f'{found["tokens_per_second_per_chip"]:,.0f}', f'{slowest:.0f}']


def _mesh(found: dict[str, Any]) -> str:
  """Returns the sizes of the mesh, with the learner's if it is another."""
  mesh, learner = (
      ', '.join(map(str, found[name].values()))
      for name in ('mesh', 'learner_mesh'))
  return mesh if learner == mesh else f'{mesh} (learner {learner})'


def main() -> int:
  """Writes the table; returns 1 if a job does not fit."""
  rows, reasons = [], []
  for spec in jobs():
    try:
      found = check(spec)
    except RuntimeError as error:
      reasons.append(f'{spec}: {error}')
      continue
    rows.append(row(spec, found))
    reasons += [f'{spec}: {reason}' for reason in found['verdict']]
    print(' | '.join(rows[-1]), flush=True)
  versions = ', '.join(
      f'{name} {importlib.metadata.version(name)}' for name in
      ('jax', 'libtpu'))
  table = '\n'.join(
      f'| {" | ".join(line)} |' for line in
      (COLUMNS, ['---'] * len(COLUMNS), *rows))
  RESULT.write_text(f'''# What fits where

Written by `make fits`, {datetime.date.today()}, {versions}, on \
{os.cpu_count()} cores: each config that is made for a pod, compiled ahead of \
time for its slice by `launch/compile_check.py`, which prints more details. No \
TPU was used. Memory is the compiler's number for the phase that needs most, \
plus all other arrays of the run. Times are uncalibrated estimates from the \
compiled programs (roofline: arithmetic, HBM, interconnect), with all \
responses at their maximum length; verification and host work are left out. \
`(learner ...)` is the mesh of updates, by `mesh.learner_tensor`.

{table}
''' + ''.join(f'\n{reason}\n' for reason in reasons))
  return int(bool(reasons))


if __name__ == '__main__':
  sys.exit(main())
