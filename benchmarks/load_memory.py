"""Host memory needed to load and to save a model's checkpoint.

  python -m benchmarks.load_memory --write

Writes a checkpoint of random bfloat16 numbers to a temporary folder (2.5 GB,
with tensors of 1 GB). New processes with one and with four emulated devices
load it into float32 arrays and save it again. It takes about 5 minutes, 9 GB of
memory and 5 GB of disk. `--write` saves the report in results/load_memory.md.

On a CPU, the memory of the devices is host memory. The benchmark separates the
two in two ways. First, a thread samples the resident memory of the process and
subtracts the JAX arrays of that moment. This can be too low, because JAX arrays
may share their memory with NumPy arrays. So it also reports the allocations
that Python counts, which include NumPy arrays.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import sharding
from jaxrl_llm.models import hf, hf_config, tensor_files, transformer
from jaxrl_llm.models.config import ModelConfig

RESULT = pathlib.Path(__file__).parent / 'results/load_memory.md'
MODEL = ModelConfig(
    vocab_size=256_000, width=2048, layers=4, heads=16, kv_heads=8,
    head_dim=128, mlp_width=6144, qk_norm=True, tie_embeddings=False,
    dtype='bfloat16')
LARGEST = 2 * MODEL.vocab_size * MODEL.width
LIMIT = 1.3 * LARGEST + 2e9
MESHES = {1: (1, 1, 1), 4: (1, 2, 2)}
TURNS = 3


def shapes_of(mesh):
  """Returns the shapes and shardings of float32 parameters."""
  shapes = jax.eval_shape(lambda: transformer.init(jax.random.key(0), MODEL))
  places = sharding.shardings(shapes, sharding.TRAIN_RULES, mesh)
  return jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(
          x.shape, jnp.float32, sharding=place), shapes, places)


def make(folder: pathlib.Path) -> None:
  """Writes the checkpoint."""
  random = np.random.default_rng(0)
  leaves = {jax.tree_util.keystr(keys, simple=True, separator='/'): x.shape
            for keys, x in jax.tree_util.tree_leaves_with_path(
                shapes_of(sharding.make_mesh(1, 1, 1)))}

  def tensors():
    for path, leaf in hf.names(MODEL).items():
      shape = leaves[path][bool(leaf.layers):]
      for name in leaf.tensors():
        bits = random.integers(
            2 ** 16, size=shape[::-1] if leaf.transposed else shape,
            dtype=np.uint16)
        # All numbers without the highest bit of the exponent are finite.
        bits &= 0xbfff
        yield name, bits.view(ml_dtypes.bfloat16)

  tensor_files.write(folder, tensors(), 1_500_000_000)
  (folder / 'config.json').write_text(json.dumps(hf_config.to_hf(MODEL)))


def resident(field: str) -> int:
  """Returns a field of /proc/self/status in bytes."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(field + ':'):
      return 1024 * int(line.split()[1])
  raise RuntimeError(f'/proc/self/status has no {field}: run this on Linux.')


def watched(work):
  """Runs `work` and returns its result, and its seconds and bytes."""
  beside, ended = [], threading.Event()

  def arrays():
    # Shards may also be listed as arrays on a single device; skip these.
    return sum(x.nbytes for x in jax.live_arrays()
               if len(x.sharding.device_set) == jax.device_count())

  def sample():
    while not ended.wait(0.002):
      held = arrays()  # first: arrays made before the next line count as host's
      beside.append(resident('VmRSS') - held)

  thread = threading.Thread(target=sample)
  before = resident('VmRSS') - arrays()
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # resets VmHWM
  tracemalloc.start()
  thread.start()
  start = time.perf_counter()
  result = jax.block_until_ready(work())
  seconds = time.perf_counter() - start
  ended.set()
  thread.join()
  python = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  return result, dict(
      seconds=seconds, peak=resident('VmHWM'), before=before,
      beside=max(beside), python=python, arrays=arrays())


def child(folder: pathlib.Path, devices: int) -> dict[str, dict[str, float]]:
  """Measures loading and saving in this process."""
  shapes = shapes_of(sharding.make_mesh(*MESHES[devices]))
  checkpoint = hf.open_checkpoint(folder)
  params, load = watched(lambda: hf.load(checkpoint, shapes))
  with tempfile.TemporaryDirectory(dir=folder) as other:
    _, save = watched(lambda: hf.save(pathlib.Path(other), params, MODEL))
  return {'load': load, 'save': save}


def measure(folder: pathlib.Path, devices: int) -> list:
  """Measures loading and saving in new processes."""
  found = []
  for _ in range(TURNS):
    text = subprocess.run(
        [sys.executable, '-m', 'benchmarks.load_memory', f'--child={devices}',
         str(folder)], check=True, stdout=subprocess.PIPE, text=True, env={
             **os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS':
             f'--xla_force_host_platform_device_count={devices}'}).stdout
    found.append(json.loads(text.splitlines()[-1]))
  return found


def report() -> str:
  """Returns the report as Markdown."""
  rows = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    make(folder)
    found = {devices: measure(folder, devices) for devices in MESHES}
  for what in ('load', 'save'):
    for devices, turns in found.items():
      cells = []
      for field in ('arrays', 'peak', 'before', 'beside', 'python'):
        values = [turn[what][field] / 1e9 for turn in turns]
        cells.append(f'{statistics.median(values):.2f} '
                     f'({min(values):.2f} to {max(values):.2f})')
      seconds = [turn[what]['seconds'] for turn in turns]
      rows.append([what, str(devices), *cells,
                   f'{min(seconds):.0f} to {max(seconds):.0f}'])
  head = ['', 'devices', 'arrays', 'peak', 'before', 'beside', 'Python',
          'seconds']
  return f'''# Host memory of checkpoints

`python -m benchmarks.load_memory`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__} on {jax.devices()[0].device_kind}.

A Qwen3 of {MODEL.parameter_count() / 1e9:.2f} billion parameters (vocabulary \
{MODEL.vocab_size}, width {MODEL.width}, {MODEL.layers} layers) with random \
bfloat16 weights, its largest tensors {LARGEST / 1e9:.2f} GB, loaded into \
float32 arrays and saved in bfloat16, in files of at most 2 GB, by a fresh \
process on 1 device and on 4 (fsdp=2, tensor=2). GB: median and range of \
{TURNS} processes. The limit for loading is 1.3 times the largest tensor plus \
2 GB, which is {LIMIT / 1e9:.2f}.

arrays: the model's arrays at the end. peak: peak resident memory of the \
process, which on a CPU includes the devices' arrays. before: resident memory \
without arrays at the start (Python, JAX, libraries). beside: peak of resident \
memory minus the arrays of the same moment, sampled every 2 ms. Python: peak \
of the memory allocated by Python and NumPy since the start, which JAX arrays \
may share.

{markdown(head, rows)}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  parser.add_argument('--child', type=int, help=argparse.SUPPRESS)
  parser.add_argument('folder', nargs='?', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.child:
    print(json.dumps(child(pathlib.Path(args.folder), args.child)))
    return
  text = report()
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
