"""Writes launch/FITS.md: memory and time of the configs made for a pod.

  make fits
  make fits ARGS='jackpot/qwen3_8b_math.py turns/'

For every config file that defines TOPOLOGY, without argument and with each
argument in its VARIANTS, runs launch/compile_check.py in a separate process. A
config takes minutes on two cores. With ARGS, compiles those that contain one of
these texts; the rows of the others stay as they are.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator, Sequence

from jaxrl_llm.config import files as config_files
from jaxrl_llm.launch.aot import check as aot

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / 'launch/FITS.md'
COLUMNS = (
    'config', 'slice', 'mesh (data, fsdp, tensor)', 'slots', 'GiB per chip',
    'free', 'in', 's per step', 'of it sampling', 'of it update',
    'update: model-flops use', 'tokens/s per chip',
    's per step, mean of a quarter', 's per step, lognormal: waiting, carried',
    'compiled')
# Mean of a lognormal with a sigma of 1, as a share of the limit: with what is
# longer cut at the limit, the mean is a quarter.
MEAN = 0.2716


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
  config = aot.load(spec, {})
  lengths = [f'--lengths=lognormal:{MEAN * config.max_response:.0f},1']
  try:
    aot.other_way(config)
  except ValueError:  # no responses, or they cannot be carried over
    lengths = []
  out = subprocess.run(
      [sys.executable, 'launch/compile_check.py', f'--config={spec}',
       '--json=-', *lengths], cwd=ROOT, capture_output=True, text=True,
      check=False, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  try:
    return json.loads(out.stdout)
  except json.JSONDecodeError:
    raise RuntimeError(out.stderr[-2000:]) from None


def row(spec: str, found: dict[str, Any], today: str) -> list[str]:
  """Returns a job's row of the table."""
  phases, seconds = found['phases'], found['seconds_per_step_if']
  start = [spec.removeprefix('configs/'), found['topology'],
           _mesh(found), str(found['slots'])]
  if found['seconds_per_step'] is None:
    lacking = next(p for p in phases.values() if p['needs'])
    return [*start, lacking['needs'], 'none', *[''] * 8, today]
  most = max(phases, key=lambda name: phases[name]['total_bytes'])
  update = phases.get('update', phases.get('sft'))['estimate']
  sampling = f'{phases["sample"]["estimate"]["seconds"]:.1f}' if (
      'sample' in phases) else '-'
  return [
      *start, f'{found["peak_bytes"] / 2**30:.1f}', f'{found["free"]:.0%}',
      most, f'{seconds["full"]:.1f} / {seconds["measured"]:.1f}',
      sampling, f'{update["seconds"]:.1f}',
      f'{update["model-flops use"]:.0%}',
      f'{found["tokens_per_second_per_chip"]:,.0f}',
      _both(seconds, 'quarter'), ', '.join(
          _both(way, 'seconds') for way in found['lengths'].values()
          if way['seconds'] is not None), today]


def _both(seconds: dict[str, float], name: str) -> str:
  """Returns seconds with all of the bandwidth, and as measured."""
  return f'{seconds[name]:.1f} / {seconds[f"{name}, measured"]:.1f}'


def _mesh(found: dict[str, Any]) -> str:
  """Returns the sizes of the mesh, with the learner's if it is another."""
  mesh, learner = (
      ', '.join(map(str, found[name].values()))
      for name in ('mesh', 'learner_mesh'))
  return mesh if learner == mesh else f'{mesh} (learner {learner})'


def kept(specs: Sequence[str]) -> dict[str, list[str]]:
  """Returns the lines of RESULT about some jobs: the row, then reasons."""
  lines = RESULT.read_text().splitlines()
  if _line(COLUMNS) not in lines:
    sys.exit(f'{RESULT} has other columns: run make fits without ARGS.')
  found = {spec: [
      line for line in lines if line.startswith(
          (f'| {spec.removeprefix("configs/")} |', f'{spec}: '))]
           for spec in specs}
  # One that failed has no row.
  return {k: v for k, v in found.items() if v and v[0].startswith('|')}


def _line(cells: Sequence[str]) -> str:
  return f'| {" | ".join(cells)} |'


def main(chosen: Sequence[str] = ('',)) -> int:
  """Writes the table; returns 1 if a job does not fit.

  Args:
    chosen: parts of the names of configs; those without a row are compiled too.
  """
  rows, reasons, today = [], [], str(datetime.date.today())
  specs = list(jobs())
  for part in chosen:
    if not any(part in spec for spec in specs):
      sys.exit(f'{part} is in the name of no config that has a TOPOLOGY.')
  old = [s for s in specs if not any(part in s for part in chosen)]
  old = kept(old) if old else {}
  for spec in specs:
    if spec in old:
      line, *more = old[spec]
      rows.append(line)
      reasons += more
      continue
    try:
      found = check(spec)
    except RuntimeError as error:
      reasons.append(f'{spec}: {error}')
      continue
    rows.append(_line(row(spec, found, today)))
    reasons += [f'{spec}: {reason}' for reason in found['verdict']]
    print(rows[-1], flush=True)
  versions = ', '.join(
      f'{name} {importlib.metadata.version(name)}' for name in
      ('jax', 'libtpu'))
  table = '\n'.join((_line(COLUMNS), _line(['---'] * len(COLUMNS)), *rows))
  RESULT.write_text(f'''# What fits where

Written by `make fits` with {versions}: each config that is made for a pod, \
compiled ahead of time for its slice by `launch/compile_check.py`, which \
prints more. No TPU was used. Memory is the compiler's number for the phase \
that needs most, plus all other arrays of the run. Times are uncalibrated \
estimates from the compiled programs (roofline: arithmetic, HBM, \
interconnect) without verification and host work. All responses have the \
maximum length or, in "mean of a quarter", lengths from 1 to the maximum with \
a quarter of it as their mean. In the column "lognormal" they have a sigma of \
1 and, cut at the maximum, the same mean. Its first pair of times is for steps \
that wait for all responses, the second for `sampling.carry_over` with its \
defaults, for as many groups. It is empty for jobs that cannot carry \
responses over, and for rows older than the column. Of two times, the first is \
for decoding with all of the HBM's bandwidth, the second with the share that a \
GPU reached (benchmarks/results/gpu.md): {aot.REACHED_IN_CHUNKS:.0%} with \
`sampling.chunk`, else {aot.REACHED:.0%}. `(learner ...)` is the mesh of \
updates, by `mesh.learner_tensor`. A row is of the code of its date. In those \
with `scaled` only the first time was estimated from programs, and the other \
three in proportion to bandwidth, decode steps and microbatches.

{table}
''' + ''.join(f'\n{reason}\n' for reason in reasons))
  return int(bool(reasons))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:] or ('',)))
