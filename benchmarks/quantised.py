"""Mismatch between a policy and rollouts written with 8-bit numbers.

  python -m benchmarks.quantised --write

Samples with the weights and KV caches of `sampling.weights` and `sampling.kv`,
computes the policy's own distributions at the same positions, and compares
both. There are small models of four architectures, made by transformers with
random weights, and the warm-started model of configs/countdown.py. All other
arithmetic is in float32, so that nothing but the 8 bits differs.

The acceptance is the sum over the vocabulary of min(p, q), for the policy p and
the sampler q: the share of tokens that rejection keeps with jackpot.lam=1. It
takes about 4 minutes on 2 cores. `--write` saves the report in
results/quantised.md; `--tiny` only checks that everything runs.
"""

import argparse
import datetime
import functools
import itertools
import pathlib
import sys
import tempfile
from typing import Any, Iterator, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.loop import rollout
from jaxrl_llm.models import hf, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.prepare import build, start_weights
from jaxrl_llm.sampling import decode, kv_cache

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / 'benchmarks/results/quantised.md'
KINDS = None, 'int8', 'float8'
FAMILIES = {
    'Qwen2.5': 'qwen2', 'Qwen3': 'qwen3', 'Llama 3': 'llama',
    'Gemma 2': 'gemma2'}


class Size(NamedTuple):
  """Sizes of the comparison.

  Attributes:
    rows: responses.
    prompt: tokens of a random prompt.
    response: tokens of a response, also after a stop token.
    sft: steps of its warm start.
    model: sizes of the random models, in the names of transformers.
  """
  rows: int
  prompt: int
  response: int
  sft: int
  model: dict[str, int | float]


FULL = Size(16, 24, 64, 1000, dict(
    vocab_size=2048, hidden_size=256, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=4, head_dim=32,
    intermediate_size=768, initializer_range=1 / 16))
TINY = Size(2, 4, 5, 2, {**FULL.model, 'num_hidden_layers': 2})


class Case(NamedTuple):
  """A model with prompts.

  Attributes:
    name: for the table.
    model: its architecture.
    params: its parameters, float32.
    tokens: [B, L] int32, right-padded prompts.
    length: [B] int32, their tokens.
  """
  name: str
  model: ModelConfig
  params: Any
  tokens: np.ndarray
  length: np.ndarray


def random_models(size: Size) -> Iterator[Case]:
  """Makes models of all architectures with random weights and prompts."""
  rng = np.random.default_rng(0)
  for name, family in FAMILIES.items():
    with tempfile.TemporaryDirectory() as folder:
      torch.manual_seed(0)
      transformers.AutoModelForCausalLM.from_config(
          transformers.AutoConfig.for_model(family, **size.model)
      ).save_pretrained(folder)
      checkpoint = hf.open_checkpoint(pathlib.Path(folder))
      shapes = jax.eval_shape(functools.partial(
          transformer.init, cfg=checkpoint.config), jax.random.key(0))
      params = hf.load(checkpoint, sharding.abstract_params(
          shapes, sharding.TRAIN_RULES, sharding.make_mesh(1, 1, 1)))
    tokens = rng.integers(
        0, checkpoint.config.vocab_size, (size.rows, size.prompt), np.int32)
    yield Case(name, checkpoint.config, params, tokens,
               rng.integers(1, size.prompt + 1, size.rows).astype(np.int32))


def countdown(size: Size) -> Case:
  """Makes the warm-started model of configs/countdown.py."""
  config = config_lib.load(
      str(ROOT / 'configs/countdown.py'),
      {'sft.steps': size.sft, 'mesh.cpu_devices': 1})
  parts = build.parts(config)
  params = start_weights.parameters(parts, lambda *_: None)
  prompts = rollout.encode(
      parts.task.heldout[:size.rows], parts.task.tokenizer, config.max_prompt)
  return Case('Countdown, warm-started', parts.programs.model, params,
              prompts.tokens, prompts.length)


def sampled(
    case: Case, size: Size, kind: str | None, kv: str | None,
) -> tuple[np.ndarray, np.ndarray]:
  """Samples a response to each prompt.

  Args:
    case: the model and its prompts.
    size: of the responses.
    kind: type of the weights, see `sharding.to_sampling`.
    kv: type of the caches, see `decode.empty`.

  Returns:
    Tokens [B, T], and the sampler's log-probs [B, T, V].
  """
  cfg, (rows, columns) = case.model, case.tokens.shape
  shapes = jax.eval_shape(
      functools.partial(transformer.init, cfg=cfg), jax.random.key(0))
  params = sharding.to_sampling(
      shapes, sharding.make_mesh(1, 1, 1), jnp.float32, kind=kind).apply(
          case.params)

  # Without LLVM's optimisations: they are most of the time to compile.
  @functools.partial(
      jax.jit, compiler_options={'xla_backend_optimization_level': 0})
  def run(params, tokens, length):
    form = dict(cfg=cfg, unroll=False, kv=kv)
    prefixes, _ = decode.prefill(params, tokens, length, **form)
    caches = decode.empty(rows, columns + size.response, **form)
    caches = jax.lax.fori_loop(
        0, rows, lambda row, caches: decode.copy_slot(
            caches, row, prefixes, row), caches)

    def step(carry, t):
      caches, token = carry
      cols = kv_cache.columns(
          t, jnp.full(rows, t), length - 1, prefix=columns,
          ring=size.response)
      hidden, caches, _ = decode.step(
          decode.DecodeParams(params, params['layers']), caches, token, cols,
          transformer.rope_table(length - 1 + t, cfg), cfg=cfg)
      logp = jax.nn.log_softmax(transformer.logits(params, hidden, cfg))
      token = jax.random.categorical(
          jax.random.fold_in(jax.random.key(1), t), logp)
      return (caches, token), (token, logp)

    last = tokens[jnp.arange(rows), length - 1]
    _, (drawn, logp) = jax.lax.scan(
        step, (caches, last), jnp.arange(size.response))
    return drawn.T, logp.swapaxes(0, 1)

  return jax.device_get(run(params, case.tokens, case.length))


@functools.partial(jax.jit, static_argnames='cfg')
def log_probs(params: Any, rows: jax.Array, cfg: ModelConfig) -> jax.Array:
  """Returns the policy's log-probs [B, S, V] of each row's next tokens."""
  hidden, _ = transformer.forward(params, rows, cfg=cfg)
  return jax.nn.log_softmax(transformer.logits(params, hidden, cfg))


def compared(
    case: Case, size: Size, kind: str | None, kv: str | None) -> list[float]:
  """Returns mean and maximum of |log q - log p|, and the mean acceptance."""
  drawn, theirs = sampled(case, size, kind, kv)
  rows = np.zeros((len(drawn), case.tokens.shape[1] + size.response), np.int32)
  at = (case.length - 1)[:, None] + np.arange(size.response)
  rows[:, :case.tokens.shape[1]] = case.tokens
  np.put_along_axis(rows, at + 1, drawn, 1)
  ours = np.asarray(log_probs(case.params, rows, cfg=case.model))
  ours = np.take_along_axis(ours, at[..., None], 1)
  gap = np.abs(np.take_along_axis(theirs - ours, drawn[..., None], -1))
  return [gap.mean(), gap.max(),
          np.exp(np.minimum(ours, theirs)).sum(-1, dtype=np.float64).mean()]


def report(size: Size) -> str:
  """Returns the report as Markdown."""
  lines = []
  # The device of the Countdown model is chosen before there are others.
  for case in itertools.chain([countdown(size)], random_models(size)):
    for kind, kv in itertools.product(KINDS, KINDS):
      mean, most, kept = compared(case, size, kind, kv)
      if (kind, kv) == (None, None):
        assert most < 1e-3 and abs(kept - 1) < 1e-4, (case.name, most, kept)
      lines.append([case.name, kind or 'none', kv or 'none', f'{mean:.2g}',
                    f'{most:.2g}', f'{min(kept, 1):.4f}'])
      print(*lines[-1], file=sys.stderr, flush=True)
  table = markdown(
      ['model', 'weights', 'KV cache', 'mean gap', 'largest gap',
       'acceptance'], lines)
  sizes = ', '.join(f'{name} {n:g}' for name, n in size.model.items())
  return f'''# Mismatch of 8-bit rollouts

`python -m benchmarks.quantised`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__} on {jax.devices()[0].device_kind}.

{size.rows} responses of {size.response} tokens to prompts of up to \
{size.prompt} (Countdown: its held-out problems), at temperature 1. A gap is \
|log q - log p| of a sampled token, with the policy p in float32 and the \
sampler q. The acceptance is the mean of the sum of min(p, q) over the \
vocabulary: the share of tokens that rejection keeps with jackpot.lam=1. It is \
1 for equal policies.

The four architectures have random weights ({sizes}), and their prompts are \
random tokens. They show the rounding of each architecture's arithmetic, not \
the acceptance of a trained checkpoint. The Countdown model is trained: \
{size.sft:,} steps of its warm start.

{table}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--tiny', action='store_true', help='only checks')
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  text = report(TINY if args.tiny else FULL)
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
