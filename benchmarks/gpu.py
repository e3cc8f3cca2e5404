r"""Decoding and training of Qwen3-1.7B on one GPU, against the GPU's limits.

  python -m benchmarks.gpu --vllm-python=VLLM/bin/python --write
  python -m benchmarks.gpu --remat=full,matmuls --microbatch=2,4 --chunk=all \
      --xla=--xla_gpu_enable_triton_gemm=false \
      --xla=--xla_gpu_enable_command_buffer=+WHILE

The model has random bfloat16 weights. Decoding: tokens per second for several
numbers of slots, against the time to read the weights and the KV cache once per
step at the bandwidth of copies. Training: model FLOPs per second for rows of
4096 tokens, against the measured matmul rate. The peers run first, each in a
process of its own: transformers (`--peer-python` selects its environment), and
for decoding vLLM (`--vllm-python`; without it, it is left out). Lists in
`--remat`, `--microbatch`, `--slots` and `--chunk` are measured in turn; each
`--xla` is another process, with these flags in addition to XLA_FLAGS. One
process takes about 10 minutes, mostly for compiles. `--write` saves the report
in results/gpu.md. `--tiny` runs everything at toy sizes, also without a GPU.
"""

import argparse
import dataclasses
import datetime
import functools
import itertools
import json
import os
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
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer, options
from jaxrl_llm.learner.update import LossParams
from jaxrl_llm.loop.flops import matmul_rate
from jaxrl_llm.models import flops, transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.sampling.generate import generate, SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
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
    microbatch: rows per microbatch, one measurement each; the peer has the
      first.
    remat: what the backward pass recomputes, one measurement each.
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
  microbatch: tuple[int, ...] = (2,)
  remat: tuple[str, ...] = ('full',)
  row: int = 4096
  attention: str = 'cudnn'
  repeats: int = 3


TINY = Sizes(
    slots=(4, 8), prompts=2, prompt=8, response=16, chunks=(None, 8), rows=4,
    microbatch=(2,), row=64, attention='xla', repeats=2)


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
        params, Queue(prompts, requests, np.int32(slots)), jax.random.key(0),
        SamplingParams(), np.int32(0)))
    for chunk in sizes.chunks:
      run = jax.jit(functools.partial(
          generate, cfg=cfg, sampler=SamplerConfig(
              slots=slots, max_response=sizes.response, chunk=chunk,
              steps_per_refill=16, unroll=True)))
      yield dict(
          kind='decode', slots=slots, chunk=chunk,
          tokens=slots * sizes.response,
          seconds=seconds(lambda: run(*args)[0].tokens, sizes.repeats),
          floor=float(np.sum(weights + slots * column * seen)) / copies)


def measure_updates(cfg: ModelConfig, sizes: Sizes) -> Iterator[Row]:
  """Yields a row for each way to update; without seconds if memory is short."""
  for remat, microbatch in itertools.product(sizes.remat, sizes.microbatch):
    row = dict(kind='update', remat=remat, microbatch=microbatch)
    try:
      yield row | measure_update(cfg, sizes, remat, microbatch)
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      yield row


def measure_update(
    cfg: ModelConfig, sizes: Sizes, remat: str, microbatch: int) -> Row:
  """Times one optimiser step on rows without padding."""
  prompt = sizes.row // 64
  response = sizes.row - prompt
  policy = learner_lib.PlayerModel(
      cfg, optimizer.make_optimizer(options.OptimizerConfig(), steps=100))
  programs = learner_lib.make_learner(
      {'policy': policy}, learner_lib.LearnerConfig(
          tokens=microbatch * (sizes.row - 1), max_prompt=prompt,
          max_response=response, remat=remat, attention=sizes.attention))
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
  state = programs.init({'policy': parameters(cfg, 'float32')})
  plan = jax.device_put(programs.plan(
      np.arange(sizes.rows), full(prompt), full(response)))

  def update():
    nonlocal state
    state, metrics = programs.update(state, batch, plan, loss)
    return metrics

  return dict(
      seconds=seconds(update, sizes.repeats), tokens=batch.tokens.size,
      flops=flops.update(cfg, full(prompt), full(response)))


def worker(cfg: ModelConfig, sizes: Sizes) -> None:
  """Prints our measurements, a line of JSON for each."""
  copies, rate = bandwidth(), matmul_rate(cfg.dtype)
  about = dict(
      kind='machine', device=jax.devices()[0].device_kind, copies=copies,
      rate=rate)
  for row in itertools.chain(
      [about], measure_decode(cfg, sizes, copies),
      measure_updates(cfg, sizes)):
    print(json.dumps(row), flush=True)


def measure(
    python: str, module: str, cfg: ModelConfig, sizes: Sizes, *options: str,
    xla: str = '') -> list[Row]:
  """Runs a module in a process of its own.

  Args:
    python: of its environment.
    module: its name.
    cfg: the model.
    sizes: sizes of the measurements.
    *options: arguments before the JSON of model and sizes.
    xla: flags in addition to XLA_FLAGS.

  Returns:
    The rows that it printed.
  """
  argument = dict(dataclasses.asdict(sizes), model=dataclasses.asdict(cfg))
  flags = f'{os.environ.get("XLA_FLAGS", "")} {xla}'.strip()
  rows = []
  with subprocess.Popen(
      [python, '-m', module, *options, json.dumps(argument)], cwd=ROOT,
      stdout=subprocess.PIPE, text=True,
      env={**os.environ, 'XLA_FLAGS': flags}) as process:
    for line in process.stdout:
      if line.startswith('{'):
        rows.append(json.loads(line))
        print(line, end='', file=sys.stderr, flush=True)
  if process.returncode:
    raise SystemExit(f'{module} failed: see its output above.')
  return rows


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
  """Returns the rows of one kind of measurement."""
  return [row for row in rows if row['kind'] == kind]


def decode_table(ours: list[Row], peers: dict[str, list[Row]]) -> str:
  """Returns the table of tokens per second; `peers` by their names."""
  speed = lambda row: row['tokens'] / row['seconds']
  rows = []
  for row in ours:
    rate = speed(row)
    cells = [
        f'{row["slots"]}', f'{row["chunk"] or "all"}', row['xla'] or 'default',
        f'{rate:.0f}', f'{row["tokens"] / row["floor"]:.0f}',
        f'{row["floor"] / row["seconds"]:.1%}']
    for theirs in peers.values():
      peer, = (speed(r) for r in theirs if r['slots'] == row['slots'])
      cells += [f'{peer:.0f}', f'{rate / peer:.1f}x']
    rows.append(cells)
  return markdown(
      ['slots', 'columns read at a time', 'XLA flags', 'tokens/s',
       'floor, tokens/s', 'of the floor', *(cell for name in peers for cell in (
           f'{name}, tokens/s', f'ours / {name}'))], rows)


def update_table(ours: list[Row], theirs: Row, rate: float) -> str:
  """Returns the table of model FLOPs per second."""
  work = next((row['flops'] for row in ours if 'flops' in row), 0)

  def line(name, row):
    if 'seconds' not in row:
      return [name, 'not enough memory', '', '', '']
    return [
        name, f'{row["seconds"]:.2f}', f'{row["tokens"] / row["seconds"]:.0f}',
        f'{work / row["seconds"] / 1e12:.3g}',
        f'{work / row["seconds"] / rate:.1%}']

  return markdown(
      ['', 'seconds', 'tokens/s', 'model TFLOP/s', 'of matrix products'],
      [*(line(f'jaxrl_llm, update, remat={row["remat"]}, {row["microbatch"]} '
              f'rows at a time{", " * bool(row["xla"])}{row["xla"]}', row)
         for row in ours),
       line('transformers, forward and backward', theirs)])


def parse() -> argparse.Namespace:
  """Reads the command line."""
  def numbers(text):
    return tuple(map(int, text.split(',')))

  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--peer-python', default=sys.executable,
      help='Python that has transformers and PyTorch')
  parser.add_argument('--vllm-python', help='Python that has vLLM')
  parser.add_argument(
      '--remat', type=lambda text: tuple(text.split(',')),
      help='of none, matmuls, attention, full')
  parser.add_argument('--microbatch', type=numbers, help='rows at a time')
  parser.add_argument('--slots', type=numbers, help='rows decoded at a time')
  parser.add_argument(
      '--chunk', dest='chunks', help='columns of attention at a time, or all',
      type=lambda text: tuple(
          None if n == 'all' else int(n) for n in text.split(',')))
  parser.add_argument(
      '--xla', action='append', default=[], help='more flags for XLA')
  parser.add_argument('--tiny', action='store_true', help='toy sizes')
  parser.add_argument('--write', action='store_true', help='results/gpu.md')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  return parser.parse_args()


def main() -> None:
  """Runs the command line."""
  args = parse()
  if args.worker:
    given = json.loads(args.worker)
    model, sizes = ({
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()}
                    for fields in (given.pop('model'), given))
    worker(ModelConfig(**model), Sizes(**sizes))
    return
  sizes = TINY if args.tiny else Sizes()
  sizes = dataclasses.replace(sizes, **{
      name: value for name in ('remat', 'microbatch', 'slots', 'chunks')
      if (value := getattr(args, name))})
  name, dtype = ('tiny', 'float32') if args.tiny else (
      'qwen3-1.7b', 'bfloat16')
  cfg = dataclasses.replace(PRESETS[name], dtype=dtype)
  peers = {'transformers': measure(
      args.peer_python, 'benchmarks.peers.transformers_qwen3', cfg, sizes)}
  if args.vllm_python:
    peers['vLLM'] = measure(
        args.vllm_python, 'benchmarks.peers.vllm_qwen3', cfg, sizes)
  ours = [
      row | {'xla': xla} for xla in ('', *args.xla) for row in measure(
          sys.executable, 'benchmarks.gpu', cfg, sizes, '--worker', xla=xla)]
  about = ours[0]
  versions = ', '.join(rows[0]['version'] for rows in peers.values())
  text = f'''# {name} on one GPU

`python -m benchmarks.gpu`, {datetime.date.today()}, {about['device']}, \
{machine()}; jax {jax.__version__}, {versions}. Random {dtype} weights. \
Measured: copies at {about['copies'] / 1e9:.3g} GB/s (bytes read and written), \
matrix products at {about['rate'] / 1e12:.3g} TFLOP/s.

## Decoding

Each slot decodes {sizes.response} tokens after one of {sizes.prompts} prompts \
of {sizes.prompt} tokens; temperature 1, no stop token. The floor is the time \
to read all weights and the filled part of the KV cache once per step. \
transformers: `generate` on a batch of the same number of rows, with its \
default cache, timed once. vLLM, where it is measured: the same prompts and \
numbers of samples, with CUDA graphs and prefix caching, without log-probs. \
All other times are medians of {sizes.repeats}.

{decode_table(of_kind(ours, 'decode'), {
    peer: of_kind(rows, 'decode') for peer, rows in peers.items()})}

## Training

{sizes.rows} rows of {sizes.row} tokens; layers are recomputed in the backward \
pass (`remat`), which is not counted as model FLOPs. Ours: `learner.update` \
with float32 parameters and AdamW, attention '{sizes.attention}'. \
transformers: loss and gradient alone, {dtype} parameters, SDPA, \
{sizes.microbatch[0]} rows at a time, with gradient checkpointing.

{update_table(
    of_kind(ours, 'update'), *of_kind(peers['transformers'], 'update'),
    about['rate'])}
'''
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
