"""The request-queue sampler against plain batched decode, on a CPU.

  python -m benchmarks.sampler --write

Both serve the same requests with the same model code in one process, and take
turns. Response lengths are geometric, given as budgets, so that both produce
the same number of tokens. Plain batched decode prefills all rows, decodes them
together and ends with the longest. It takes about 3 minutes on 2 cores.
`--write` puts what is printed into results/sampler.md; `--tiny` only shows
that everything runs.
"""

import argparse
import datetime
import functools
import importlib.metadata
import os
import pathlib
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import decode, kv_cache
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.types import Prompts, Requests

RESULT = pathlib.Path(__file__).parent / 'results/sampler.md'
MODEL = ModelConfig(
    vocab_size=64, width=128, layers=4, heads=4, kv_heads=2, head_dim=32,
    mlp_width=512, qk_norm=True)


def workload(requests: int, mean: float, longest: int, prompt: int = 16):
  """Prompts of `prompt` tokens, 16 samples each, geometric budgets."""
  rng = np.random.default_rng(0)
  n = requests // 16
  budget = np.minimum(rng.geometric(1 / mean, requests), longest)
  return (
      Prompts(
          rng.integers(0, MODEL.vocab_size, (n, prompt)).astype(np.int32),
          np.full(n, prompt, np.int32), np.arange(n, dtype=np.int32)),
      Requests(
          np.arange(n, dtype=np.int32).repeat(16),
          np.tile(np.arange(16, dtype=np.int32), n), budget.astype(np.int32)))


def plain_decode(
    params, prompts, requests, key, sampling, *, cfg, longest):
  """All requests as one batch, until the last is done.

  Returns:
    Tokens and behaviour log-probs [R, T], and the steps it took.
  """
  n, width = requests.prompt.shape[0], prompts.tokens.shape[1]
  prefix_length = prompts.length[requests.prompt] - 1
  layers = decode.split(params['layers'], cfg)
  prefixes = decode.prefill(params, prompts.tokens, cfg=cfg, unroll=True)
  caches = jax.tree.map(
      lambda empty, prefix: jax.lax.dynamic_update_slice(
          empty, prefix[requests.prompt], (0, 0, 0, 0)),
      decode.empty(n, width + longest, cfg=cfg, unroll=True), prefixes)
  rope = transformer.rope_table(jnp.arange(width + longest), cfg)
  noise = jax.random.uniform(key, (longest, n))

  def step(carry):
    t, token, caches, tokens, logprobs, entropy = carry
    cols = kv_cache.columns(
        t, jnp.full(n, t), prefix_length, prefix=width, ring=longest)
    hidden, caches = decode.step(
        params, layers, caches, token, cols,
        [table[prefix_length + t] for table in rope], cfg=cfg)
    dist = logits_lib.process(
        transformer.logits(params, hidden, cfg), sampling)
    token = logits_lib.draw(dist.behaviour, noise[t])
    logprob = jnp.take_along_axis(dist.behaviour, token[:, None], -1)[:, 0]
    return (t + 1, token, caches, tokens.at[t].set(token),
            logprobs.at[t].set(logprob),
            entropy.at[t].set(logits_lib.entropy(dist.tempered)))

  last = prompts.tokens[requests.prompt, prefix_length]
  rows = jnp.zeros((longest, n))
  steps, _, _, tokens, logprobs, _ = jax.lax.while_loop(
      lambda carry: jnp.any(carry[0] < requests.budget), step,
      (jnp.int32(0), last, caches, rows.astype(jnp.int32), rows, rows))
  live = jnp.arange(longest) < requests.budget[:, None]
  return (jnp.where(live, tokens.T, 0), jnp.where(live, logprobs.T, 0.0),
          steps)


def programs(longest: int, slots: list[int], steps_per_refill: int):
  """Name to a jitted function of (params, prompts, requests, key)."""
  def queue(params, prompts, requests, key, *, s):
    rollouts, stats = generate_lib.generate(
        params, prompts, requests, requests.prompt.shape[0], key,
        logits_lib.SamplingParams(), 0, cfg=MODEL,
        sampler=generate_lib.SamplerConfig(
            slots=s, max_response=longest, unroll=True,
            steps_per_refill=steps_per_refill))
    return rollouts.tokens, rollouts.logprobs, stats.steps

  def plain(params, prompts, requests, key):
    return plain_decode(
        params, prompts, requests, key, logits_lib.SamplingParams(),
        cfg=MODEL, longest=longest)

  return {
      'plain batch': jax.jit(plain),
      **{f'queue, {s} slots': jax.jit(functools.partial(queue, s=s))
         for s in slots}}


def measure(work, longest, slots, *, repeats, steps_per_refill):
  """A Markdown table of one workload."""
  params = transformer.init(jax.random.key(0), MODEL)
  args = jax.device_put((params, *work, jax.random.key(1)))
  requests = work[1]
  total, n = int(requests.budget.sum()), len(requests.budget)
  runs = programs(longest, slots, steps_per_refill)
  steps, seconds = {}, {name: [] for name in runs}
  for name, run in runs.items():
    tokens, _, taken = jax.block_until_ready(run(*args))
    # Sampled twice with the same key, nothing may change.
    np.testing.assert_array_equal(tokens, run(*args)[0])
    steps[name] = int(taken)
  for _ in range(repeats):
    for name, run in runs.items():
      start = time.perf_counter()
      jax.block_until_ready(run(*args))
      seconds[name].append(time.perf_counter() - start)
  lines = ['| | tokens/s | times plain | seconds | decode steps | ms per step '
           '| slot use |', '|---|---|---|---|---|---|---|']
  plain = statistics.median(seconds['plain batch'])
  for name in runs:
    median = statistics.median(seconds[name])
    width = n if name == 'plain batch' else int(name.split()[1])
    lines.append(
        f'| {name} | {total / median:.0f} | {plain / median:.2f} '
        f'| {median:.3f} | {steps[name]} | {1e3 * median / steps[name]:.2f} '
        f'| {total / (steps[name] * width):.2f} |')
  return '\n'.join(lines)


def machine() -> str:
  """Where and with what this ran."""
  cpu = platform.processor() or platform.machine()
  info = pathlib.Path('/proc/cpuinfo')
  if info.exists():
    names = [line.split(':')[1].strip() for line in info.read_text().split('\n')
             if line.startswith('model name')]
    cpu = names[0] if names else cpu
  versions = ', '.join(
      f'{p} {importlib.metadata.version(p)}' for p in ('jax', 'jaxlib'))
  return (f'{len(os.sched_getaffinity(0))} cores of {cpu}, '
          f'Python {platform.python_version()}, {versions}, '
          f'{datetime.date.today()}')


def report(repeats: int, steps_per_refill: int, tiny: bool) -> str:
  """The whole result as Markdown."""
  n, longest = (32, 12) if tiny else (256, 96)
  slots = [4] if tiny else [16, 32, 64]
  work = workload(n, longest / 96 * 26, longest)
  table = measure(work, longest, slots, repeats=repeats,
                  steps_per_refill=steps_per_refill)
  return f'''# The sampler against plain batched decode

`python -m benchmarks.sampler`, {machine()}.

{MODEL.parameter_count() / 1e6:.1f}M parameters (width {MODEL.width}, \
{MODEL.layers} layers, vocabulary {MODEL.vocab_size}), float32, {n} requests \
for {n // 16} prompts of 16 tokens. Lengths are geometric, mean \
{work[1].budget.mean():.0f}, at most {longest}. Medians of {repeats} runs in \
turn. Slot use is the share of slot-steps that gave a token.

{table}
'''


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--repeats', type=int, default=15)
  parser.add_argument('--steps-per-refill', type=int, default=2)
  parser.add_argument('--tiny', action='store_true', help='a tiny job')
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  text = report(args.repeats, args.steps_per_refill, args.tiny)
  print(text)
  if args.write:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
