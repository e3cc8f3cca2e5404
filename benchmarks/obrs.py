"""Cost of Jackpot's rejection with a vocabulary of 151,936, on a CPU.

  python -m benchmarks.obrs --write

Measures what `off_policy=jackpot` adds to the head of a decode step, to
`Learner.update` and to `Learner.score`, and how large the error of the top-k
normaliser is. All programs of a table take turns in one process. A ratio is the
median of the ratios within a turn. Ratios of processor seconds vary less on a
busy machine.

The model has the shape of Qwen3-0.6B with only 4 layers, and the optimiser is
plain descent. The vocabulary thus takes a larger share of an update than in a
real model: ratios of what only reads the logits are upper bounds. One more
forward pass costs a real model more; the tables compare the products. It takes
about 7 minutes and 6 GB on 2 cores. `--write` saves the report in
results/obrs.md; `--tiny` only checks that everything runs.
"""

import argparse
import datetime
import functools
import pathlib
import resource
from unittest import mock

import jax
import numpy as np

from benchmarks import obrs_update as updates
from benchmarks.obrs_update import cells, in_turns, K, Size
from benchmarks.rl_step import machine, markdown
from jaxrl_llm.models import transformer
from jaxrl_llm.ops import obrs, top_k
from jaxrl_llm.sampling import head
from jaxrl_llm.sampling import logits as logits_lib

RESULT = pathlib.Path(__file__).parent / 'results/obrs.md'
SCALES = 1.0, 2.0, 4.0, 8.0, (1.0, 8.0)


def decode_head(size: Size) -> str:
  """Measures the head of a decode step."""
  cfg = size.model
  keys = jax.random.split(jax.random.key(0), 3)
  params = {'embed': cfg.width ** -0.5 * jax.random.normal(
      keys[0], (cfg.vocab_size, cfg.width))}
  hidden = jax.random.normal(keys[1], (size.slots, cfg.width))
  noise = jax.random.uniform(keys[2], (size.slots,))
  args = params, hidden, noise, logits_lib.SamplingParams()

  searched = []

  def library(x, count):
    searched.append(x.shape)
    return jax.lax.top_k(x, count)

  def compiled(function):
    return jax.jit(function).lower(*args).compile()

  def next_tokens(count):
    return compiled(functools.partial(
        head.next_tokens, cfg=cfg, top_logprobs=count))

  made = {
      'unembedding alone': compiled(
          lambda params, hidden, *_: transformer.logits(params, hidden, cfg)),
      'next_tokens, K=0': next_tokens(0),
      f'next_tokens, K={K}': next_tokens(K)}
  with mock.patch.object(top_k, 'top_k', library):
    made[f'next_tokens, K={K} by jax.lax.top_k'] = next_tokens(K)
  assert searched == [(size.slots, cfg.vocab_size)], searched
  product, none, *both = made
  ours, theirs = (made[name](*args) for name in both)
  assert 'top_ids' not in made[none](*args)
  assert ours['top_ids'].shape == (size.slots, K)
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name])
  assert made[both[0]].as_text() != made[both[1]].as_text()

  times = in_turns({
      name: functools.partial(program, *args)
      for name, program in made.items()}, size.decodes)
  return markdown(
      ['program', 'ms', 'over the unembedding', 'processor',
       'over K=0', 'processor'],
      [[name, *cells(x, times[product], times[none], unit=1e3)]
       for name, x in times.items()])


def normaliser_table(size: Size) -> str:
  """Measures the normaliser over the K likeliest tokens of equal policies."""
  lines = []

  @functools.partial(jax.jit, static_argnums=1)
  def normalisers(key, vocab, low, high):
    keys = jax.random.split(key)
    scale = jax.random.uniform(
        keys[0], (size.positions, 1), minval=low, maxval=high)
    logp = jax.nn.log_softmax(
        scale * jax.random.normal(keys[1], (size.positions, vocab)))
    top, ids = top_k.top_k(logp, K)
    return (obrs.normalizer(logp, logp, lam=1.0),
            obrs.normalizer_topk(ids, top, ids, top, lam=1.0))

  for vocab in (64, size.model.vocab_size):
    for scale in SCALES:
      low, high = scale if isinstance(scale, tuple) else (scale, scale)
      exact, topk = (np.asarray(x, np.float64) for x in normalisers(
          jax.random.key(0), vocab, low, high))
      np.testing.assert_allclose(exact, 1.0, rtol=1e-3)
      assert 0 < topk.min() and topk.max() < 1 + 1e-5
      lines.append([
          f'{vocab:,}', f'{low:g}' if low == high else f'{low:g} to {high:g}',
          f'{topk.mean():.3g}', f'{1 / topk.mean():.3g}',
          f'{topk.std() / topk.mean():.1%}'])
  return markdown(
      ['V', 'scale of the logits', f'mean Z over {K}', 'kappa',
       'error after kappa'], lines)


def report(size: Size) -> str:
  """Returns the report as Markdown."""
  model, device = size.model, jax.devices()[0]
  heads, normalisers, found = (
      decode_head(size), normaliser_table(size), updates.learning(size))
  with_z, before = (found.times[name] for name in reversed(updates.SCORES))
  scores = markdown(
      ['program', 'seconds', 'over score', 'processor'],
      [[name, *cells(found.times[name], before)] for name in updates.SCORES])
  lookup = cells(found.times['p_new'], found.times['p_ref'])
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return f'''# Cost of Jackpot's rejection

`python -m benchmarks.obrs`, {datetime.date.today()}, {machine()}; jax \
{jax.__version__} on {device.device_kind}.

V = {model.vocab_size:,}, D = {model.width:,}, K = {K}, float32. Programs take \
turns, every second turn in reverse order; the first turn does not count. \
Seconds and ratios are medians with their range, a ratio is within a turn. \
Columns `processor` are ratios of processor seconds. The largest memory of the \
process was {peak / 2 ** 20:.1f} GB.

## Head of a decode step

{size.slots} slots, {size.decodes} turns.

{heads}

## One optimiser step

Qwen3 with {model.layers} layers (heads and MLP of Qwen3-0.6B), \
{size.rows} rows of {size.prompt} + {size.response} tokens, microbatches of \
{size.microbatch} rows, {size.chunk} tokens in a chunk of the vocabulary pass, \
plain descent, {size.updates} turns. The tokens are random: acceptance and Z \
only show that each update does what its name says. Columns `products` and \
`Qwen3-4B` are ratios of the multiply-adds with weights, of this model and of \
Qwen3-4B. Without a further forward pass both are 1. With so few layers the \
vocabulary weighs more than in a real model, so the measured ratios of `p_ref` \
and `p_new` are upper bounds.

{updates.update_table(found, size)}

`p_new` over `p_ref`: {lookup[1]}, {lookup[2]} in processor seconds. It looks \
up the log-probs of the sampler's tokens in the differentiated pass. This \
look-up has no backward pass: all compiled updates have \
{next(iter(found.scatters.values()))} scatters.

## Score of the old policy

{scores}

## Score and update together

Sums of both tables. `p_ref` gets its normaliser from the score.

{updates.step_table(found.times, size)}

## Normaliser over {K} tokens at equal weights

If both policies are the same, Z is 1 at each position. {size.positions} \
distributions, the softmax of normal logits times the scale; with a range, \
each one has its own scale. kappa removes the error of the mean. The last \
column is the standard deviation over positions, divided by the mean: the \
error that is left.

{normalisers}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--tiny', action='store_true', help='only checks')
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  text = report(updates.TINY if args.tiny else updates.FULL)
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
