"""The request-queue sampler against plain batched decode, on a CPU.

  python -m benchmarks.sampler --write

Both serve the same requests with the same model code in one process, and take
turns. The lengths of the responses are geometric and given as budgets, so both
produce the same number of tokens. Plain batched decode prefills each prompt
once, decodes all rows together, and ends when the longest row ends.

Each core is a device with its own queue, because XLA does not split products as
small as those of a decode step over the cores. Plain decode is measured in two
ways, and the faster one counts: on one device, where XLA does split its larger
products over the cores, and with its rows divided among all devices. It takes
about 3 minutes on 2 cores. `--write` saves the report in results/sampler.md;
`--tiny` only checks that everything runs.
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
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm import sharding
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import decode, kv_cache
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling import queue as queue_lib
from jaxrl_llm.types import Prompts, Requests

RESULT = pathlib.Path(__file__).parent / 'results/sampler.md'
CORES = len(os.sched_getaffinity(0))
MODEL = ModelConfig(
    vocab_size=64, width=128, layers=4, heads=4, kv_heads=2, head_dim=32,
    mlp_width=512, qk_norm=True)
PROMPT = 16  # Tokens of a prompt, and also samples of each prompt.
SAMPLING = logits_lib.SamplingParams()


def workload(requests: int, mean: float, longest: int):
  """Returns 16 requests for each prompt, with geometric budgets."""
  rng = np.random.default_rng(0)
  n = requests // PROMPT
  budget = np.minimum(rng.geometric(1 / mean, requests), longest)
  tokens = rng.integers(0, MODEL.vocab_size, (n, PROMPT))
  return (
      Prompts(tokens.astype(np.int32), np.full(n, PROMPT, np.int32),
              np.arange(n, dtype=np.int32)),
      Requests(
          np.arange(n, dtype=np.int32).repeat(PROMPT),
          np.tile(np.arange(PROMPT, dtype=np.int32), n),
          budget.astype(np.int32)))


def plain_decode(params, prompts, requests, count, key, *, longest):
  """Decodes all requests as one batch, until the last one is done.

  Returns:
    Tokens [R, T], (behaviour log-probs, entropies) [R, T], and the number of
    decode steps [1].
  """
  del count  # Serves all of them.
  cfg = MODEL
  n, width = requests.prompt.shape[0], prompts.tokens.shape[1]
  prefix_length = prompts.length[requests.prompt] - 1
  layers = decode.split(params['layers'], cfg)
  prefixes, _ = decode.prefill(
      params, prompts.tokens, prompts.length, cfg=cfg, unroll=True)
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
    hidden, caches, _ = decode.step(
        decode.DecodeParams(params, layers), caches, token, cols,
        [table[prefix_length + t] for table in rope], cfg=cfg)
    dist = logits_lib.process(
        transformer.logits(params, hidden, cfg), SAMPLING)
    token = logits_lib.draw(dist.behaviour, noise[t])
    logprob = jnp.take_along_axis(dist.behaviour, token[:, None], -1)[:, 0]
    return (t + 1, token, caches, tokens.at[t].set(token),
            logprobs.at[t].set(logprob),
            entropy.at[t].set(logits_lib.entropy(dist.tempered)))

  last = prompts.tokens[requests.prompt, prefix_length]
  rows = jnp.zeros((longest, n))
  steps, _, _, tokens, logprobs, entropy = jax.lax.while_loop(
      lambda carry: jnp.any(carry[0] < requests.budget), step,
      (jnp.int32(0), last, caches, rows.astype(jnp.int32), rows, rows))
  live = jnp.arange(longest) < requests.budget[:, None]
  real = lambda x: jnp.where(live, x.T, 0)
  return real(tokens), (real(logprobs), real(entropy)), steps[None]


def queue(params, prompts, requests, count, key, *, longest, slots):
  """Runs the library's sampler on one shard."""
  rollouts, stats = generate_lib.generate(
      params, queue_lib.Queue(prompts, requests, count[0]), key, SAMPLING, 0,
      cfg=MODEL, sampler=generate_lib.SamplerConfig(
          slots=slots, max_response=longest, unroll=True))
  return rollouts.tokens, (rollouts.logprobs, rollouts.entropy), (
      stats.steps[None])


def prepare(function, devices, work):
  """Compiles a function without arguments that serves `work`.

  Args:
    function: sampler of one shard.
    devices: number of devices, each with one shard.
    work: prompts and requests.

  Returns:
    The compiled function; it returns the number of decode steps of each shard.
  """
  mesh = sharding.make_mesh(devices, 1, 1, jax.devices()[:devices])
  n = len(work[1].prompt)
  plan = plan_lib.plan(
      *work, shards=devices, requests_per_shard=n // devices,
      prompts_per_shard=n // devices // PROMPT)
  rows, whole = sharding.rows(mesh), sharding.replicated(mesh)
  params = transformer.init(jax.random.key(0), MODEL)
  args = (jax.device_put(params, whole), *jax.device_put(plan[:3], rows),
          jax.device_put(jax.random.key(1), whole))
  spec = P(('data', 'fsdp'))
  run = jax.jit(jax.shard_map(
      function, mesh=mesh, in_specs=(P(), spec, spec, spec, P()),
      out_specs=spec, check_vma=False))

  def serve():
    tokens, _, steps = jax.block_until_ready(run(*args))
    return tokens, steps

  np.testing.assert_array_equal(serve()[0], serve()[0])
  return lambda: np.asarray(serve()[1])


def measure(work, longest, slots, repeats) -> str:
  """Measures all samplers on one workload and returns a Markdown table.

  Args:
    work: prompts and requests.
    longest: T, the largest budget.
    slots: numbers of slots to measure, summed over the devices.
    repeats: number of runs of each program; the programs take turns.
  """
  budget = work[1].budget
  plain = functools.partial(plain_decode, longest=longest)
  jobs = {(f'plain batch, {d} device{"s" * (d > 1)}', d, len(budget)):
          prepare(plain, d, work) for d in sorted({1, CORES})}
  jobs |= {
      (f'queue, {CORES} x {s // CORES} slots', CORES, s): prepare(
          functools.partial(queue, longest=longest, slots=s // CORES),
          CORES, work)
      for s in slots}
  seconds, steps = {job: [] for job in jobs}, {}
  for _ in range(repeats):
    for job, run in jobs.items():
      start = time.perf_counter()
      steps[job] = run()
      seconds[job].append(time.perf_counter() - start)
  medians = {job: statistics.median(s) for job, s in seconds.items()}
  fastest = min(s for job, s in medians.items() if 'plain' in job[0])
  lines = ['| | tokens/s | times plain | seconds | decode steps '
           '| ms per step | slot use |', '|---|---|---|---|---|---|---|']
  for job, took in medians.items():
    name, devices, width = job
    lines.append(
        f'| {name} | {budget.sum() / took:.0f} | {fastest / took:.2f} '
        f'| {took:.3f} | {steps[job].max()} '
        f'| {1e3 * took / steps[job].max():.2f} '
        f'| {budget.sum() / (steps[job].sum() * width / devices):.2f} |')
  return '\n'.join(lines)


def machine() -> str:
  """Returns the cores, the processor, the versions and the date."""
  cpu = platform.processor() or platform.machine()
  info = pathlib.Path('/proc/cpuinfo')
  if info.exists():
    names = [line.split(':')[1].strip() for line in info.read_text().split('\n')
             if line.startswith('model name')]
    cpu = names[0] if names else cpu
  versions = ', '.join(
      f'{p} {importlib.metadata.version(p)}' for p in ('jax', 'jaxlib'))
  return (f'{CORES} cores of {cpu}, Python {platform.python_version()}, '
          f'{versions}, {datetime.date.today()}')


def report(repeats: int, tiny: bool) -> str:
  """Returns the report as Markdown."""
  n, longest = (64, 12) if tiny else (256, 96)
  work = workload(n, longest * 26 / 96, longest)
  table = measure(work, longest, [4] if tiny else [16, 32, 64], repeats)
  return f'''# The sampler against plain batched decode

`python -m benchmarks.sampler`, {machine()}.

{MODEL.parameter_count() / 1e6:.1f}M parameters (width {MODEL.width}, \
{MODEL.layers} layers, vocabulary {MODEL.vocab_size}), float32, {n} requests \
for {n // PROMPT} prompts of {PROMPT} tokens, {PROMPT} samples each. Lengths \
are geometric: mean {work[1].budget.mean():.0f}, longest \
{work[1].budget.max()}. Medians of {repeats} runs; the programs took turns. \
Slot use is the number of tokens divided by slots times steps; times plain is \
relative to the faster plain batch.

{table}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--repeats', type=int, default=15)
  parser.add_argument('--tiny', action='store_true', help='a tiny job')
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', CORES)
  text = report(args.repeats, args.tiny)
  print(text)
  if args.write:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
