"""Difference between the log-probs of `score` and of `update`.

  python -m benchmarks.score_update --write

Both programs compute the same function, but XLA compiles them apart: a sum may
have another order, and lists may have another length. In float32 this is the
rounding of float32. In bfloat16 a difference of the last bit of a float32 sum
sometimes changes its rounding to bfloat16. That error is 2^16 times larger, and
changes further roundings: after a few operations, none is the same. So two
programs agree to the bit, or differ by the error of bfloat16 itself.

`bound` derives how large it is. A pair is one program of `score`, one of
`update`, and one length. `--write` saves the report in
results/score_update.md.
"""

import argparse
import datetime
import itertools
import pathlib

import jax
import numpy as np
import optax

from benchmarks.rl_step import machine, markdown
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.types import LearnerBatch
from tests.helpers import learners

RESULT = pathlib.Path(__file__).parent / 'results/score_update.md'
# Tokens of a list, and of a chunk of the vocabulary's pass.
TOKENS, CHUNKS = (1500, 2400, 8000), (None, 256)
LENGTHS = (60, 300, 600, 601, 1100, 1500)
PROMPT = 20
LOSS = jax.tree.map(np.float32, update_lib.LossParams(
    temperature=1.0, entropy_bonus=0.0, kl_coef=0.0, budget=1.0,
    objective=dict(clip_low=0.2, clip_high=0.2), importance={}))


def model(dtype: str) -> ModelConfig:
  """Returns the model: logits have a standard deviation of about 1."""
  return ModelConfig(
      vocab_size=512, width=128, layers=2, heads=2, kv_heads=1, head_dim=64,
      mlp_width=256, qk_norm=True, rope_theta=1e6, dtype=dtype)


def roundings(cfg: ModelConfig) -> int:
  """Returns the roundings to the compute type between tokens and logits.

  Products accumulate in float32, so a product counts once, whatever its
  length. A layer has 19: two norms; q, k and v; the norms and rotations of q
  and k; the softmax, the mean of values and o; gate, its activation, up, their
  product and down; two sums with the residual stream. The embedding and the
  last norm add 2. Weights are rounded alike in all programs.
  """
  return 19 * cfg.layers + 2


def bound(cfg: ModelConfig, safety: float = 4.0) -> float:
  """Returns the bound on a log-prob's difference between two programs.

  A rounding changes a number by at most eps / 2, relative, so two programs by
  at most eps: 2^-7 in bfloat16. Their signs are random, so n of them make
  n ** .5, times the scale of the logits, which is 1 here: states have a root
  mean square of 1 after the last norm, and rows of the unembedding a length
  of 1. `safety` covers the largest of many tokens.
  In float32 the sums themselves round: with n terms, n ** .5 roundings.
  """
  if cfg.dtype == 'bfloat16':
    return safety * roundings(cfg) ** 0.5 * 2.0 ** -7
  terms = cfg.layers * (
      4 * cfg.width + cfg.heads * cfg.head_dim + cfg.mlp_width + cfg.head_dim
      + 2 * max(LENGTHS)) + 2 * cfg.width + cfg.vocab_size
  return safety * terms ** 0.5 * 2.0 ** -23 * np.log(cfg.vocab_size)


def learner(cfg: ModelConfig, tokens, chunk, longest: int):
  """Returns the programs for rows of at most `longest` tokens."""
  return learners.make(
      cfg, learner_lib.LearnerConfig(
          tokens=tokens, max_prompt=PROMPT, max_response=longest - PROMPT,
          vocab_chunk=chunk),
      optimizer_lib.Optimizer(optax.sgd(0.0), optax.constant_schedule(0.0)))


def batch(cfg: ModelConfig, lengths) -> LearnerBatch:
  """Makes one row of random tokens of each length."""
  rng = np.random.default_rng(0)
  response = np.asarray(lengths, np.int32) - PROMPT
  shape = (len(lengths), response.max())
  mask = np.arange(shape[1]) < response[:, None]
  tokens = rng.integers(
      0, cfg.vocab_size, (len(lengths), max(lengths)), dtype=np.int32)
  zeros = np.zeros(shape, np.float32)
  return LearnerBatch(
      tokens=tokens, prompt_length=np.full(len(lengths), PROMPT, np.int32),
      response_length=response, mask=mask, behaviour_logprobs=zeros,
      advantages=np.ones(len(lengths), np.float32), old_logprobs=zeros)


def differences(cfg, settings, lengths) -> np.ndarray:
  """Measures every pair of settings (tokens, chunk) on rows of each length.

  Returns:
    [settings of score, settings of update, lengths, 2]: the largest of update
    minus score over the row's tokens, and the root mean square.
  """
  programs = [learner(cfg, *each, max(lengths)) for each in settings]
  rows = batch(cfg, lengths)
  params = transformer.init(jax.random.key(0), cfg)
  scores = [np.asarray(learners.score(p, params, rows, LOSS).logprobs)
            for p in programs]
  out = np.zeros((len(scores), len(programs), len(lengths), 2))
  for j, program in enumerate(programs):
    state = program.init(params)
    for i, k in itertools.product(range(len(scores)), range(len(lengths))):
      one = rows.replace(
          old_logprobs=scores[i],
          mask=rows.mask & (np.arange(len(lengths)) == k)[:, None])
      state, metrics = learners.update(program, state, one, LOSS)
      out[i, j, k] = np.log(metrics['ratio_max']), np.sqrt(
          2 * max(metrics['kl_old'], 0))
  return out


def report() -> str:
  """Returns the report as Markdown."""
  settings, rows, count = [*itertools.product(TOKENS, CHUNKS)], [], 0
  for dtype in ('bfloat16', 'float32'):
    cfg = model(dtype)
    out = differences(cfg, settings, LENGTHS)
    count = out[..., 0].size
    for k, length in enumerate(LENGTHS):
      largest, rms = out[:, :, k, 0], out[:, :, k, 1]
      rows.append([dtype, str(length), f'{np.mean(largest < 1e-5):.0%}',
                   f'{rms.max():.2g}', f'{largest.max():.2g}',
                   f'{bound(cfg):.2g}'])
  return f'''# Log-probs of `score` and of `update`

`python -m benchmarks.score_update`, {datetime.date.today()}, {machine()}; \
jax {jax.__version__} on {jax.devices()[0].device_kind}.

Qwen3 of 2 layers with random weights. {count} pairs a type: {len(settings)} \
programs of `score` with {len(settings)} of `update` (lists of at \
most {", ".join(map(str, TOKENS))} tokens; chunks of \
{", ".join(map(str, CHUNKS))} tokens), {len(LENGTHS)} lengths. A pair is equal \
if its difference is below 1e-5. The bound is derived in \
`benchmarks/score_update.py`.

{markdown(['type', 'length', 'equal pairs', 'rms', 'largest', 'bound'], rows)}
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
