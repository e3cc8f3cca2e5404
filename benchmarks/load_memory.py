"""Host memory of reading and of writing a model's checkpoint.

  python -m benchmarks.load_memory --write

A checkpoint of random bfloat16 numbers is put into a temporary folder, 2.5 GB
with tensors of 1 GB, and is loaded into float32 arrays and saved again by
fresh processes with one and with four emulated devices. It takes about 5
minutes, 9 GB of memory and 5 GB of disk. `--write` puts what is printed into
results/load_memory.md.

On a CPU the devices' memory is the host's. What would be the host's alone is
told apart in two ways. A thread samples the process's resident memory and
takes off the JAX arrays of that moment, which may be the same memory as
NumPy's, if JAX did not copy; so Python's own account of its allocations, NumPy
arrays among them, is given as well.
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
  """Float32 parameters, and where they lie."""
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
    for leaf, (names, transposed) in hf.names(MODEL).items():
      shape = leaves[leaf][leaf.startswith('layers/'):]
      for name in names:
        bits = random.integers(
            2 ** 16, size=shape[::-1] if transposed else shape, dtype=np.uint16)
        # Without the highest bit of the exponent all numbers are finite.
        bits &= 0xbfff
        yield name, bits.view(ml_dtypes.bfloat16)

  tensor_files.write(folder, tensors(), 1_500_000_000)
  (folder / 'config.json').write_text(json.dumps(hf_config.to_hf(MODEL)))


def resident(field: str) -> int:
  """Bytes, by a line of /proc/self/status."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(field + ':'):
      return 1024 * int(line.split()[1])
  raise RuntimeError(f'/proc/self/status has no {field}: run this on Linux.')


def watched(work):
  """Runs `work`; its result, and what it took."""
  beside, ended = [], threading.Event()

  def arrays():
    # Parts of an array may be counted as arrays of their own device.
    return sum(x.nbytes for x in jax.live_arrays()
               if len(x.sharding.device_set) == jax.device_count())

  def sample():
    while not ended.wait(0.002):
      held = arrays()  # first: what is made in between counts as the host's
      beside.append(resident('VmRSS') - held)

  thread = threading.Thread(target=sample)
  before = resident('VmRSS') - arrays()
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # VmHWM starts anew
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
  """Both measurements in this process."""
  shapes = shapes_of(sharding.make_mesh(*MESHES[devices]))
  checkpoint = hf.open_checkpoint(folder)
  params, load = watched(lambda: hf.load(checkpoint, shapes))
  with tempfile.TemporaryDirectory(dir=folder) as other:
    _, save = watched(lambda: hf.save(pathlib.Path(other), params, MODEL))
  return {'load': load, 'save': save}


def measure(folder: pathlib.Path, devices: int) -> list:
  """The same in fresh processes."""
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
  """The whole result as Markdown."""
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
process on 1 device and on 4 (fsdp=2, tensor=2). GB: median of {TURNS} \
processes, and their range. Loading is to stay under 1.3 times the largest \
tensor plus 2 GB, which is {LIMIT / 1e9:.2f}.

arrays: of the model, when done. peak: resident memory of the process, which \
on a CPU has the devices' arrays in it. before: resident memory without arrays \
before it began (Python, JAX, libraries). beside: the most of resident memory \
without the arrays of the same moment, sampled every 2 ms. Python: the most \
that Python and NumPy had allocated at a time since it began, to which JAX's \
arrays may refer without a copy.

{markdown(head, rows)}
'''


def main() -> None:
  """The program."""
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
