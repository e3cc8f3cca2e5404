"""Memory estimated by compile_check, compared with the memory of a run.

  python -m benchmarks.aot_memory --write

Each config has gigabytes of arrays and runs on eight emulated CPU devices.
`launch/compile_check.py --topology=cpu:8` estimates the bytes per device, and a
new process does three training steps. This takes 15 to 50 minutes and 12 GB of
memory. `--write` saves the report in results/aot_memory.md.

On a CPU, the memory of the devices is part of the process's memory. A thread
samples the resident memory during the second and third step. The memory outside
of the devices (Python, libraries, compiled code) is measured before these
steps: resident memory, after freed memory is returned to the system, minus the
JAX arrays of that moment.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import jax

from benchmarks.rl_step import machine, markdown
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import choices

RESULT = pathlib.Path(__file__).parent / 'results/aot_memory.md'
TURNS = 3
DEVICES = 8
COMMON = {
    'mesh.cpu_devices': 8, 'sft.steps': 0, 'prompts_per_step': 8,
    'samples_per_prompt': 8, 'model.width': 1024,
    'model.layers': 6, 'model.heads': 16, 'model.kv_heads': 8,
    'model.head_dim': 64, 'model.mlp_width': 4096,
    'learner.tokens_per_microbatch': 128,
    # The estimate assumes rows of full length that all have a signal. Rows of
    # an untrained model are short and have none.
    'drop_zero_advantage': False}
CONFIGS = {
    'weights split over 8': {'mesh.data': 1, 'mesh.fsdp': 8},
    'over 4, tensor 2, one microbatch': {
        'mesh.data': 1, 'mesh.fsdp': 4, 'mesh.tensor': 2,
        'learner.tokens_per_microbatch': 1024},
    'two data groups, KL, two updates': {
        'mesh.data': 2, 'mesh.fsdp': 4, 'loss.kl_coef': 0.1,
        'learner.updates': 2},
    'LoRA': {'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2, 'lora.rank': 8},
}


def arguments(fields):
  """Returns the command-line arguments of a config."""
  return ['--config=configs/countdown.py', *(
      f'--config.{k}={v}' for k, v in {**COMMON, **fields}.items())]


def predicted(fields) -> dict:
  """Returns the JSON of compile_check."""
  out = subprocess.run(
      [sys.executable, 'launch/compile_check.py', '--topology=cpu:8',
       '--json=-', *arguments(fields)], check=True, capture_output=True,
      env={**os.environ, 'PYTHONPATH': '.'})
  return json.loads(out.stdout)


def resident() -> int:
  """Returns the resident memory of this process in bytes."""
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE')


class Peak:
  """Peak of the resident memory, sampled in a thread; a context manager."""

  def __enter__(self):
    self.bytes, self._stop = resident(), threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def _watch(self):
    while not self._stop.wait(0.001):
      self.bytes = max(self.bytes, resident())

  def __exit__(self, *_):
    self._stop.set()
    self._thread.join()


def child(argv) -> dict:
  """Does three training steps and returns the peak bytes of the devices."""
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import train
  from jaxrl_llm.loop import state as state_lib
  from jaxrl_llm.prepare import build
  config, _ = config_lib.parse(argv)
  parts = build.parts(config)
  start = train.start_weights.start(parts, lambda *_: None, resumed=False)
  fixed = Fixed(
      parts.sampling(), parts.replicate(choices.loss_params(config)),
      start.anchors, {'policy': start.frozen})
  state = state_lib.init_state(
      parts, parts.programs.learner.init({'policy': start.params}))
  del start
  state, _ = train.take_step(parts, state, fixed, timing.Timer())
  ctypes.CDLL('libc.so.6').malloc_trim(0)
  time.sleep(0.5)
  arrays = sum(
      shard.data.nbytes for x in jax.live_arrays()
      for shard in x.addressable_shards)
  beside = resident() - arrays
  with Peak() as peak:
    for _ in range(2):
      state, _ = train.take_step(parts, state, fixed, timing.Timer())
  return dict(peak=peak.bytes - beside, beside=beside, arrays=arrays)


def report() -> str:
  """Runs everything and returns the report as Markdown."""
  rows = []
  for name, fields in CONFIGS.items():
    told = predicted(fields)
    most = max(told['phases'], key=lambda p: told['phases'][p]['total_bytes'])
    said = told['peak_bytes'] * DEVICES
    used = [json.loads(subprocess.run(
        [sys.executable, '-m', 'benchmarks.aot_memory', '--child',
         *arguments(fields)], check=True, capture_output=True,
        env={**os.environ, 'JAX_PLATFORMS': 'cpu'}).stdout.splitlines()[-1])
            for _ in range(TURNS)]
    ratios = [said / u['peak'] for u in used]
    values = [u['peak'] / 1e9 for u in used]
    rows.append([
        name, f'{said / 1e9:.2f}', most,
        f'{statistics.median(values):.2f} ({min(values):.2f} to '
        f'{max(values):.2f})',
        f'{statistics.median(ratios):.2f} ({min(ratios):.2f} to '
        f'{max(ratios):.2f})'])
    print(rows[-1], file=sys.stderr)
  head = ['config', 'estimated', 'in', 'used', 'estimated / used']
  return f'''# Estimated and used memory

`python -m benchmarks.aot_memory`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__}, {DEVICES} emulated CPU devices.

configs/countdown.py without its warm start, with a model of width 1024 and 6 \
layers, every row at full length. GB over all devices: the estimate of \
launch/compile_check.py for the phase that needs most, and the peak of the \
devices in the second and third of three training steps; median and range of \
{TURNS} processes.

{markdown(head, rows)}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  parser.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
  args, rest = parser.parse_known_args()
  if args.child:
    print(json.dumps(child(rest)))
    return
  text = report()
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
