"""Decoding and training of Qwen3-1.7B on one GPU, against the GPU's limits.

  python -m benchmarks.gpu --write

The model has random bfloat16 weights. Decoding: tokens per second for several
numbers of slots, against the time to read the weights and the KV cache once per
step at the bandwidth of copies. Training: model FLOPs per second for rows of
4096 tokens, against the measured matmul rate. Both are compared with
transformers, which runs first, in a separate process (`--peer-python` selects
its environment). It takes about 10 minutes, mostly for compiles. `--write`
saves the report in results/gpu.md. `--tiny` runs everything at toy sizes, also
without a GPU.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rl_step import machine, markdown
from jaxrl_llm.learner import optimizer
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.loss import LossParams
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.monitoring import flops
from jaxrl_llm.sampling.generate import generate, SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.types import LearnerBatch, Prompts, Requests

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/gpu.md'

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the measurements.

  Attributes:
    slots: numbers of rows decoded in parallel, one measurement each.
    prompts: distinct prompts among these rows.
    prompt: tokens of a prompt.
    response: tokens decoded in each slot.
    chunks: chunk sizes of decode attention, one measurement each; None reads
      all columns.
    rows: rows of an update.
    microbatch: rows per microbatch.
    row: tokens of a row.
    attention: our attention implementation in training.
    repeats: repeats of each measurement; the median counts.
  """
  slots: tuple[int, ...] = (64, 256, 512)
  prompts: int = 8
  prompt: int = 128
  response: int = 512
  chunks: tuple[int | None, ...] = (None, 128)
  rows: int = 8
  microbatch: int = 2
  row: int = 4096
  attention: str = 'cudnn'
  repeats: int = 3


TINY = Sizes(
    slots=(4, 8), prompts=2, prompt=8, response=16, chunks=(None, 8), rows=4,
    microbatch=2, row=64, attention='xla', repeats=2)


def seconds(run: Callable[[], Any], repeats: int) -> float:
  """Returns the median seconds of run(), without the first call."""
  taken = []
  for _ in range(repeats + 1):
    start = time.perf_counter()
    jax.block_until_ready(run())
    taken.append(time.perf_counter() - start)
  return statistics.median(taken[1:])


def bandwidth() -> float:
  """Measures the bytes per second, read plus written, of a large copy."""
  gpu = jax.default_backend() == 'gpu'
  big = jnp.zeros(1 << (30 if gpu else 24))
  negate = jax.jit(jnp.negative)
  return 2 * big.nbytes / seconds(lambda: negate(big), 10)


def parameters(cfg: ModelConfig, dtype: str) -> transformer.Params:
  """Returns random weights in a dtype."""
  return jax.jit(lambda key: jax.tree.map(
      lambda x: x.astype(dtype), transformer.init(key, cfg)))(
          jax.random.key(0))


def tokens(cfg: ModelConfig, *shape: int) -> np.ndarray:
  """Returns random tokens."""
  return np.random.default_rng(0).integers(
      0, cfg.vocab_size, shape).astype(np.int32)


def measure_decode(
    cfg: ModelConfig, sizes: Sizes, copies: float) -> Iterator[Row]:
  """Times the sampler with as many requests as slots.

  Args:
    cfg: the model.
    sizes: sizes of the measurements.
    copies: bandwidth of copies in bytes per second.

  Yields:
    Rows with `seconds`, and with `floor`, the seconds to read the weights and
    the KV cache of all steps.
  """
  size = jnp.dtype(cfg.dtype).itemsize
  weights = size * cfg.parameter_count()
  column = 2 * size * cfg.layers * cfg.kv_heads * cfg.head_dim
  seen = sizes.prompt + np.arange(sizes.response)
  prompts = Prompts(
      tokens(cfg, sizes.prompts, sizes.prompt),
      np.full(sizes.prompts, sizes.prompt, np.int32),
      np.arange(sizes.prompts, dtype=np.int32))
  params = parameters(cfg, cfg.dtype)
  for slots in sizes.slots:
    number = np.arange(slots, dtype=np.int32)
    requests = Requests(
        number * sizes.prompts // slots, number,
        np.full(slots, sizes.response, np.int32))
    args = jax.device_put((
        params, prompts, requests, np.int32(slots), jax.random.key(0),
        SamplingParams(), np.int32(0)))
    for chunk in sizes.chunks:
      run = jax.jit(functools.partial(
          generate, cfg=cfg, sampler=SamplerConfig(
              slots=slots, max_response=sizes.response, chunk=chunk,
              steps_per_refill=16, unroll=True)))
      yield dict(
          slots=slots, chunk=chunk, tokens=slots * sizes.response,
          seconds=seconds(lambda: run(*args)[0].tokens, sizes.repeats),
          floor=float(np.sum(weights + slots * column * seen)) / copies)


def measure_update(cfg: ModelConfig, sizes: Sizes) -> Row:
  """Times one optimiser step on rows without padding."""
  prompt = sizes.row // 64
  response = sizes.row - prompt
  programs = update_lib.make(
      cfg, update_lib.LearnerConfig(
          microbatch=sizes.microbatch, max_prompt=prompt,
          max_response=response, remat='full',
          attention=sizes.attention),
      optimizer.make(learning_rate=1e-6, steps=100))
  full = lambda value, *shape: np.full((sizes.rows, *shape), value)
  batch = jax.device_put(LearnerBatch(
      tokens=tokens(cfg, sizes.rows, sizes.row),
      prompt_length=full(np.int32(prompt)),
      response_length=full(np.int32(response)),
      mask=full(True, response),
      behaviour_logprobs=full(np.float32(-1), response),
      advantages=np.linspace(-1, 1, sizes.rows, dtype=np.float32)))
  loss = jax.device_put(jax.tree.map(np.float32, LossParams(
      temperature=1, entropy_bonus=0, kl_coef=0, budget=response,
      objective=dict(clip_low=0.2, clip_high=0.2), importance={})))
  state = programs.init(parameters(cfg, 'float32'))

  def update():
    nonlocal state
    state, metrics = programs.update(state, batch, loss)
    return metrics

  return dict(
      seconds=seconds(update, sizes.repeats), tokens=batch.tokens.size,
      flops=flops.update(cfg, full(prompt), full(response)))


def measure_peer(python: str, cfg: ModelConfig, sizes: Sizes) -> Iterator[Row]:
  """Runs `peers/transformers_qwen3.py` and yields its rows."""
  argument = dict(dataclasses.asdict(sizes), model=dataclasses.asdict(cfg))
  with subprocess.Popen(
      [python, '-m', 'benchmarks.peers.transformers_qwen3',
       json.dumps(argument)],
      cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
    for line in process.stdout:
      if line.startswith('{'):
        yield json.loads(line)
  if process.returncode:
    raise SystemExit('The transformers benchmark failed: see its output above.')


def shown(rows: Iterable[Row]) -> Iterator[Row]:
  """Yields rows and prints each of them to stderr."""
  for row in rows:
    print(row, file=sys.stderr, flush=True)
    yield row


def decode_table(ours: list[Row], theirs: list[Row]) -> str:
  """Returns the table of tokens per second."""
  rows = []
  other = {row['slots']: row['tokens'] / row['seconds'] for row in theirs}
  for row in ours:
    rate, peer = row['tokens'] / row['seconds'], other[row['slots']]
    rows.append([
        f'{row["slots"]}', f'{row["chunk"] or "all"}', f'{rate:.0f}',
        f'{row["tokens"] / row["floor"]:.0f}',
        f'{row["floor"] / row["seconds"]:.1%}', f'{peer:.0f}',
        f'{rate / peer:.1f}x'])
  return markdown(
      ['slots', 'columns read at a time', 'tokens/s', 'floor, tokens/s',
       'of the floor', 'transformers, tokens/s', 'ours is faster by'], rows)


def update_table(ours: Row, theirs: Row, rate: float) -> str:
  """Returns the table of model FLOPs per second."""
  return markdown(
      ['', 'seconds', 'tokens/s', 'model TFLOP/s', 'of matrix products'],
      [[name, f'{row["seconds"]:.2f}',
        f'{row["tokens"] / row["seconds"]:.0f}',
        f'{ours["flops"] / row["seconds"] / 1e12:.3g}',
        f'{ours["flops"] / row["seconds"] / rate:.1%}']
       for name, row in (('jaxrl_llm, update', ours),
                         ('transformers, forward and backward', theirs))])


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--peer-python', default=sys.executable,
      help='Python that has transformers and PyTorch')
  parser.add_argument('--tiny', action='store_true', help='toy sizes')
  parser.add_argument('--write', action='store_true', help='results/gpu.md')
  args = parser.parse_args()
  sizes = TINY if args.tiny else Sizes()
  name, dtype = ('tiny', 'float32') if args.tiny else (
      'qwen3-1.7b', 'bfloat16')
  cfg = dataclasses.replace(PRESETS[name], dtype=dtype)

  # Runs first, before this process takes the GPU's memory.
  peer = shown(measure_peer(args.peer_python, cfg, sizes))
  version, *decoded, trained = peer
  copies, rate = bandwidth(), flops.matmul_rate(dtype)
  decode = list(shown(measure_decode(cfg, sizes, copies)))
  update, = shown([measure_update(cfg, sizes)])
  text = f'''# {name} on one GPU

`python -m benchmarks.gpu`, {datetime.date.today()}, \
{jax.devices()[0].device_kind}, {machine()}; jax {jax.__version__}, \
{version['version']}. Random {dtype} weights. Measured: copies at \
{copies / 1e9:.3g} GB/s (bytes read and written), matrix products at \
{rate / 1e12:.3g} TFLOP/s.

## Decoding

Each slot decodes {sizes.response} tokens after one of {sizes.prompts} prompts \
of {sizes.prompt} tokens; temperature 1, no stop token. The floor is the time \
to read all weights and the filled part of the KV cache once per step. \
transformers: `generate` on a batch of the same number of rows, with its \
default cache, timed once. All other times are medians of {sizes.repeats}.

{decode_table(decode, decoded)}

## Training

{sizes.rows} rows of {sizes.row} tokens, {sizes.microbatch} at a time; layers \
are recomputed in the backward pass, which is not counted as model FLOPs. \
Ours: `learner.update` with float32 parameters and AdamW, attention \
'{sizes.attention}'. transformers: loss and gradient alone, {dtype} \
parameters, SDPA.

{update_table(update, trained, rate)}
'''
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
