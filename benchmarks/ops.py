"""Time of PKPO's transforms against sorting alone.

  python -m benchmarks.ops --write

A transform is a sort, cumulative sums, and the inverse permutation. It is
compared with two baselines on the same array: one jitted call of `jnp.sort` and
`jnp.argsort`, which sorts twice, and one sort that carries the indices along.
All take turns in one process. It takes about a minute on 2 cores. `--write`
saves the report in results/ops.md.
"""

import argparse
import datetime
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rl_step import machine, markdown
from jaxrl_llm.ops import pkpo

RESULT = pathlib.Path(__file__).parent / 'results/ops.md'
# Pairs of the rewards' shape and k.
SIZES = ((1, 2 ** 20), 1000), ((16, 65_536), 100), ((4096, 256), 8), (
    (16_384, 16), 4)
TURNS = 11


@jax.jit
def sort_and_argsort(rewards):
  """Returns the sorted values and their indices, by two sorts."""
  return jnp.sort(rewards), jnp.argsort(rewards)


@jax.jit
def one_sort(rewards):
  """Returns the sorted values and their indices, by one sort."""
  index = jax.lax.broadcasted_iota(jnp.int32, rewards.shape, 1)
  return jax.lax.sort((rewards, index), num_keys=1)


FUNCTIONS = {
    'sort, argsort': lambda rewards, k: sort_and_argsort(rewards),
    'one sort': lambda rewards, k: one_sort(rewards),
    **{name: getattr(pkpo, name) for name in (
        'sloo_minus_one', 'sloo', 's', 'max_at_k')}}


def measure(shape: tuple[int, int], k: int) -> dict[str, list[float]]:
  """Returns the seconds of each function per turn, without the first turn."""
  rewards = jax.random.normal(jax.random.key(0), shape)
  k = jnp.int32(k)  # a Python int would be copied to the device at every call
  seconds = {name: [] for name in FUNCTIONS}
  for turn in range(TURNS + 1):
    for name, function in FUNCTIONS.items():
      start = time.perf_counter()
      jax.block_until_ready(function(rewards, k))
      if turn:
        seconds[name].append(time.perf_counter() - start)
  return seconds


def report() -> str:
  """Returns the report as Markdown."""
  rows = []
  for shape, k in SIZES:
    seconds = measure(shape, k)
    baseline, *others = seconds.values()
    cells = []
    for values in others:
      ratios = np.divide(values, baseline)
      cells.append(f'{statistics.median(ratios):.2f} '
                   f'({min(ratios):.2f} to {max(ratios):.2f})')
    rows.append([f'{shape[0]} x {shape[1]}', str(k),
                 f'{1e3 * statistics.median(baseline):.1f}', *cells])
  names = list(FUNCTIONS)[1:]
  device = jax.devices()[0]
  return f'''# PKPO's transforms

`python -m benchmarks.ops`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__} on {device.device_kind}.

Time of a call divided by the time of `jnp.sort` and `jnp.argsort` on the same \
rewards (float32, groups x samples) in the same turn: median and range of \
{TURNS} turns.

{markdown(['rewards', 'k', 'sort, argsort: ms', *names], rows)}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  text = report()
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
