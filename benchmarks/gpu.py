"""Decoding and training a Qwen3-1.7B on one GPU, against its limits.

  python -m benchmarks.gpu --write

Random bfloat16 weights. Decoding: tokens per second at several numbers of
slots, against the time it takes to read the weights and the keys and values
once per step at the bandwidth that copies reach. Training: model FLOPs per
second at 4096 tokens a row, against the rate that matrix products reach. Both
against transformers, in a process of its own (`--transformers-python` if it
lives in another environment). It takes about 10 minutes, most of them to
compile. `--write` puts what is printed into results/gpu.md; `--tiny` runs
everything at toy sizes, without a GPU too.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Iterator

import numpy as np

from benchmarks.rl_step import machine, markdown

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/gpu.md'

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What is measured.

  Attributes:
    preset: key of `models.config.PRESETS`.
    dtype: of weights and activations.
    slots: rows decoded side by side, one measurement each.
    prompts: distinct prompts among them.
    prompt: tokens of a prompt.
    response: tokens decoded in each slot.
    chunks: of decode attention, one measurement each; None reads all columns.
    rows: of an update.
    microbatch: rows that go through the model at once.
    row: tokens of a row.
    attention: implementation in training.
    repeats: of each measurement; the median counts.
  """
  preset: str = 'qwen3-1.7b'
  dtype: str = 'bfloat16'
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
    preset='tiny', dtype='float32', slots=(4, 8), prompts=2, prompt=8,
    response=16, chunks=(None, 8), rows=4, microbatch=2, row=64,
    attention='xla', repeats=2)


def seconds(run: Callable[[], Any], repeats: int) -> float:
  """Median time of run(), which waits for its result; the first is left out."""
  taken = []
  for _ in range(repeats + 1):
    start = time.perf_counter()
    run()
    taken.append(time.perf_counter() - start)
  return statistics.median(taken[1:])


def ours(sizes: Sizes) -> Iterator[Row]:
  """Measures jaxrl_llm."""
  import jax
  import jax.numpy as jnp

  from jaxrl_llm import flops, learner, optimizer
  from jaxrl_llm.models import transformer
  from jaxrl_llm.models.config import PRESETS
  from jaxrl_llm.sampling import generate
  from jaxrl_llm.sampling.logits import SamplingParams
  from jaxrl_llm.types import LearnerBatch, Prompts, Requests

  cfg = dataclasses.replace(PRESETS[sizes.preset], dtype=sizes.dtype)
  rng = np.random.default_rng(0)

  def tokens(*shape):
    return rng.integers(0, cfg.vocab_size, shape).astype(np.int32)

  def parameters(dtype):
    return jax.jit(lambda key: jax.tree.map(
        lambda x: x.astype(dtype), transformer.init(key, cfg)))(
            jax.random.key(0))

  # A copy reads and writes every byte.
  big = jnp.zeros(1 << (30 if jax.default_backend() == 'gpu' else 24))
  negate = jax.jit(jnp.negative)
  bandwidth = 2 * big.nbytes / seconds(
      lambda: jax.block_until_ready(negate(big)), 10)
  big = None
  rate = flops.matmul_rate(sizes.dtype)
  yield dict(kind='limits', bandwidth=bandwidth, rate=rate,
             device=jax.devices()[0].device_kind,
             versions=f'jax {jax.__version__}')

  params = parameters(sizes.dtype)
  size = jnp.dtype(sizes.dtype).itemsize
  weights = size * cfg.parameter_count()
  column = 2 * size * cfg.layers * cfg.kv_heads * cfg.head_dim
  prompts = Prompts(
      tokens(sizes.prompts, sizes.prompt),
      np.full(sizes.prompts, sizes.prompt, np.int32),
      np.arange(sizes.prompts, dtype=np.int32))
  for slots in sizes.slots:
    seen = sizes.prompt + np.arange(sizes.response)
    floor = float(np.sum(weights + slots * column * seen)) / bandwidth
    requests = Requests(
        np.arange(slots, dtype=np.int32) % sizes.prompts,
        np.arange(slots, dtype=np.int32) // sizes.prompts,
        np.full(slots, sizes.response, np.int32))
    for chunk in sizes.chunks:
      decode = jax.jit(functools.partial(
          generate.generate, cfg=cfg, sampler=generate.SamplerConfig(
              slots=slots, max_response=sizes.response, chunk=chunk,
              steps_per_refill=16, unroll=True)))
      args = jax.device_put((
          params, prompts, requests, np.int32(slots), jax.random.key(0),
          SamplingParams(), np.int32(0)))
      took = seconds(
          lambda: jax.block_until_ready(decode(*args)), sizes.repeats)
      yield dict(kind='decode', slots=slots, chunk=chunk, seconds=took,
                 tokens=slots * sizes.response, floor=floor)
  params = args = None

  prompt = sizes.prompt // 2
  response = sizes.row - prompt
  programs = learner.make(
      cfg, learner.LearnerConfig(
          microbatch=sizes.microbatch, max_prompt=prompt,
          max_response=response, remat=True, attention=sizes.attention),
      optimizer.make(learning_rate=1e-6, steps=100))
  full = lambda value, *shape: np.full((sizes.rows, *shape), value)
  batch = LearnerBatch(
      tokens=tokens(sizes.rows, sizes.row),
      prompt_length=full(np.int32(prompt)),
      response_length=full(np.int32(response)),
      mask=full(True, response),
      behaviour_logprobs=full(np.float32(-10), response),
      advantages=rng.standard_normal(sizes.rows).astype(np.float32))
  number = np.float32
  loss = learner.LossParams(
      temperature=number(1), clip_low=number(0.2), clip_high=number(0.2),
      entropy_bonus=number(0), kl_coef=number(0), importance_low=number(0),
      importance_cap=number(2), budget=number(response))
  state = programs.init(parameters('float32'))
  batch, loss = jax.device_put((batch, loss))

  def update():
    nonlocal state
    state, metrics = programs.update(state, batch, loss)
    jax.block_until_ready(metrics)

  work = flops.update(cfg, full(prompt), full(response))
  yield dict(kind='update', seconds=seconds(update, sizes.repeats),
             flops=work, tokens=sizes.rows * sizes.row)


def transformers(sizes: Sizes) -> Iterator[Row]:
  """Measures Hugging Face's transformers with PyTorch."""
  import torch
  import transformers as hf

  from jaxrl_llm.models.config import PRESETS

  cfg = PRESETS[sizes.preset]
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  torch.manual_seed(0)
  model = hf.AutoModelForCausalLM.from_config(
      hf.Qwen3Config(
          vocab_size=cfg.vocab_size, hidden_size=cfg.width,
          intermediate_size=cfg.mlp_width, num_hidden_layers=cfg.layers,
          num_attention_heads=cfg.heads, num_key_value_heads=cfg.kv_heads,
          head_dim=cfg.head_dim, rms_norm_eps=cfg.norm_eps,
          tie_word_embeddings=cfg.tie_embeddings,
          max_position_embeddings=sizes.row, bos_token_id=None,
          eos_token_id=None, pad_token_id=0),
      dtype=getattr(torch, sizes.dtype), attn_implementation='sdpa').to(device)
  yield dict(kind='limits', versions=f'transformers {hf.__version__}, torch '
             f'{torch.__version__}')

  def wait():
    if device == 'cuda':
      torch.cuda.synchronize()

  for slots in sizes.slots:
    prompts = torch.randint(
        cfg.vocab_size, (slots, sizes.prompt), device=device)

    def decode():
      with torch.inference_mode():
        out = model.eval().generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
            top_k=0, max_new_tokens=sizes.response)
      wait()
      assert out.shape[1] == sizes.prompt + sizes.response

    yield dict(kind='decode', slots=slots, seconds=seconds(decode, 1),
               tokens=slots * sizes.response)

  rows = torch.randint(cfg.vocab_size, (sizes.rows, sizes.row), device=device)
  model.gradient_checkpointing_enable()
  model.train()

  def backward():
    model.zero_grad()
    for part in rows.split(sizes.microbatch):
      model(input_ids=part, labels=part, use_cache=False).loss.backward()
    wait()

  yield dict(kind='update', seconds=seconds(backward, sizes.repeats),
             tokens=sizes.rows * sizes.row)


LIBRARIES = dict(jaxrl_llm=ours, transformers=transformers)


def measure(python: str, library: str, tiny: bool) -> list[Row]:
  """Runs a library in a process of its own: each wants the whole GPU."""
  flags = ['--tiny'] if tiny else []
  done = subprocess.run(
      [python, '-m', 'benchmarks.gpu', f'--only={library}', *flags],
      cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  return [json.loads(line) for line in done.stdout.splitlines()
          if line.startswith('{')]


def report(ours: list[Row], theirs: list[Row], sizes: Sizes) -> str:
  """The whole result as Markdown."""
  of_kind = lambda rows, kind: [row for row in rows if row['kind'] == kind]
  limits, = of_kind(ours, 'limits')
  peer, = of_kind(theirs, 'limits')
  static = {row['slots']: row for row in of_kind(theirs, 'decode')}
  decode = []
  for row in of_kind(ours, 'decode'):
    rate = row['tokens'] / row['seconds']
    other = static[row['slots']]
    other = other['tokens'] / other['seconds']
    decode.append([
        str(row['slots']), str(row['chunk'] or 'all'), f'{rate:.0f}',
        f'{row["tokens"] / row["floor"]:.0f}',
        f'{row["floor"] / row["seconds"]:.1%}', f'{other:.0f}',
        f'{rate / other:.1f}x'])
  update, = of_kind(ours, 'update')
  train = [
      [name, f'{row["seconds"]:.2f}', f'{row["tokens"] / row["seconds"]:.0f}',
       f'{update["flops"] / row["seconds"] / 1e12:.3g}',
       f'{update["flops"] / row["seconds"] / limits["rate"]:.1%}']
      for name, row in (('jaxrl_llm: update', update),
                        ('transformers: forward and backward',
                         *of_kind(theirs, 'update')))]
  decode_table = markdown(
      ['slots', 'columns read at a time', 'tokens/s', 'bandwidth floor',
       'reached', 'transformers', 'faster by'], decode)
  train_table = markdown(
      ['', 'seconds', 'tokens/s', 'model TFLOP/s', 'of matrix products'],
      train)
  return f'''# {sizes.preset} on one GPU

`python -m benchmarks.gpu`, {datetime.date.today()}, {limits['device']}, \
{machine()}; {limits['versions']}, {peer['versions']}. Random {sizes.dtype} \
weights. Measured: copies {limits['bandwidth'] / 1e9:.0f} GB/s (bytes read and \
written), matrix products {limits['rate'] / 1e12:.3g} TFLOP/s.

## Decoding

Each slot: {sizes.response} tokens after a prompt of {sizes.prompt}, one of \
{sizes.prompts}; temperature 1, no stop token. The floor reads all weights, \
and the keys and values that exist, once per step. transformers: `generate` on \
a batch of as many rows, its default cache.

{decode_table}

## Training

{sizes.rows} rows of {sizes.row} tokens, {sizes.microbatch} at a time, layers \
recomputed in the backward pass by both. Ours: `learner.update` with float32 \
parameters and AdamW, attention '{sizes.attention}'. transformers: loss and \
gradient alone, {sizes.dtype} parameters, SDPA. Recomputing is not counted as \
model FLOPs.

{train_table}
'''


def main() -> None:
  """The program."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--transformers-python', default=sys.executable,
      help='Python that has transformers and PyTorch')
  parser.add_argument(
      '--only', choices=LIBRARIES, help='measure one library, print JSON')
  parser.add_argument('--tiny', action='store_true', help='toy sizes')
  parser.add_argument('--write', action='store_true', help='results/gpu.md')
  args = parser.parse_args()
  sizes = TINY if args.tiny else Sizes()
  if args.only:
    for row in LIBRARIES[args.only](sizes):
      print(json.dumps(row), flush=True)
    return
  text = report(
      measure(sys.executable, 'jaxrl_llm', args.tiny),
      measure(args.transformers_python, 'transformers', args.tiny), sizes)
  print(text)
  if args.write:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
