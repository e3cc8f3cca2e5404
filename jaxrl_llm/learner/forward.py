"""Passes of the model over the rows of a batch, in microbatches.

Microbatches hold rows of similar lengths, longest rows first, see
`ops/microbatches`. `cfg` is a `update.LearnerConfig` in all functions.
"""

import functools
import operator
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.models import transformer
from jaxrl_llm.ops import microbatches, obrs
from jaxrl_llm.ops.token_stats import token_stats, TokenStats
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


class Scores(NamedTuple):
  """Scores of the response tokens under one policy.

  Attributes:
    logprobs: [B, T] float32, 0 past each response.
    z: [B, T] float32 or None, the normaliser of the rejection towards this
      policy over the sampler's likeliest tokens, see `ops/obrs`.
  """
  logprobs: Array
  z: Optional[Array] = None


def stats(
    params, frozen, batch, temperature, length, *, model, cfg, compose, axes,
    fetch, entropy=True, actor=None, lam=None) -> TokenStats:
  """Computes TokenStats [B, t] of responses in rows of at most `length` tokens.

  The vocabulary is split over the mesh axes `axes`. Its operations use explicit
  collectives, because the partitioner would all-gather the embeddings. `fetch`
  all-gathers the weights of a layer. With the parameters `actor`, `overlap` is
  computed between both models at the threshold `lam`.
  """
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  t = min(cfg.max_response, length - 1)
  lookup = operator.getitem
  if axes:
    lookup = functools.partial(collectives.lookup, axes=axes, dtype=model.dtype)

  def run(params):
    params = compose(params, frozen)
    hidden, _ = transformer.forward(
        params, batch.tokens[:, :length], cfg=model, remat=cfg.remat,
        implementation=cfg.attention, unroll=cfg.unroll, lookup=lookup,
        fetch=fetch)
    return hidden, transformer.unembedding(params)

  def reduce(hidden, tokens, prompt_length, ids, unembed, temperature, other,
             lam):
    own = lambda x: microbatches.columns(x, prompt_length - 1, t)
    return token_stats(
        own(hidden), unembed, microbatches.columns(tokens, prompt_length, t),
        temperature=temperature, softcap=model.logit_softcap, entropy=entropy,
        chunk=cfg.vocab_chunk, axes=axes, ids=ids,
        row_axis='fsdp' if 'fsdp' in axes else None,
        other=None if other is None else (own(other[0]), other[1]), lam=lam)

  hidden, unembed = run(params)
  other = None if actor is None else jax.lax.stop_gradient(run(actor))
  ids = None
  if batch.top_ids is not None:
    ids = jnp.swapaxes(batch.top_ids[..., :t], 1, 2)
  if axes:
    reduce = jax.shard_map(
        reduce, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(P('fsdp'),) * 4 + (
            P(axes), P(), other and (P('fsdp'), P(axes)), P()),
        out_specs=P('fsdp'))
  return reduce(
      hidden, batch.tokens, batch.prompt_length, ids, unembed, temperature,
      other, lam)


def topk_normalizer(
    batch: LearnerBatch, found: TokenStats, lam: Array) -> Optional[Array]:
  """Computes the normaliser [B, t] over the sampler's likeliest tokens.

  A token that is not among these is unknown to the sampler and counts as 0.
  """
  if batch.top_ids is None:
    return None
  logp = jax.lax.stop_gradient(found.id_logprobs)
  t = logp.shape[1]
  return obrs.normalizer(
      jnp.swapaxes(batch.top_logprobs[..., :t], 1, 2), logp, lam=lam)


def real(batch: LearnerBatch) -> Array:
  """Returns the mask [B, T] of the response's tokens."""
  return jnp.arange(batch.mask.shape[1]) < batch.response_length[:, None]


def arrange(rows, batch, needed, cfg):
  """Splits `rows` into microbatches, the `needed` [B] ones first.

  Returns:
    The microbatches, and the order of the rows, see `microbatches.arrange`.
  """
  length = batch.prompt_length + batch.response_length
  return microbatches.arrange(
      rows, jnp.where(needed, length, 0), size=cfg.microbatch,
      lengths=cfg.lengths)


def by_data_group(mesh, out):
  """Decorates (trees, Microbatches, anything) -> out to run per data group.

  Each data group processes its own rows, so that collectives over `data` run
  once per batch, not once per microbatch. Inside, `fsdp` and `tensor` are
  automatic axes. `out` is the PartitionSpec of the results over `data`.
  """
  cut = microbatches.Microbatches(rows=P(None, 'data'), bucket=P(), count=P())
  return functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(P(), cut, P()), out_specs=out)


def score(params, batch, loss, frozen=None, *, cfg, mesh, **static) -> Scores:
  """Computes `Learner.score`."""
  check(batch, cfg)
  lam = loss.rejection.get('lam')

  @by_data_group(mesh, P(None, 'data'))
  def scores(trees, cut, numbers):
    temperature, lam = numbers

    def one(micro, length):
      found = stats(*trees, micro, temperature, length, cfg=cfg,
                    entropy=False, **static)
      wide = lambda x: jnp.pad(x, ((0, 0), (0, cfg.max_response - x.shape[1])))
      return jax.tree.map(wide, Scores(
          found.logprobs, topk_normalizer(micro, found, lam)))

    zeros = jnp.zeros(cut.rows.mask.shape, jnp.float32)
    return microbatches.fold(
        one, lambda i, out, x: jax.tree.map(
            lambda out, x: out.at[i].set(x), out, x),
        Scores(zeros, None if batch.top_ids is None else zeros), cut,
        lengths=cfg.lengths)

  cut, order = arrange(batch, batch, batch.response_length > 0, cfg)
  out = scores((params, frozen), cut, (loss.temperature, lam))

  def in_place(x):
    x = x.reshape(batch.mask.shape)
    return jnp.where(real(batch), jnp.zeros_like(x).at[order].set(x), 0.0)

  return jax.tree.map(in_place, out)


def check(batch: LearnerBatch, cfg) -> None:
  """Raises ValueError if the batch's sizes do not match the config."""
  rows, columns = batch.tokens.shape
  if (columns, batch.mask.shape[1]) != (cfg.lengths[-1], cfg.max_response):
    raise ValueError(
        f'tokens {batch.tokens.shape} and mask {batch.mask.shape} do not fit '
        f'max_prompt={cfg.max_prompt}, max_response={cfg.max_response}: pad '
        f'them to {cfg.lengths[-1]} and {cfg.max_response} columns.')
  if rows % cfg.microbatch:
    raise ValueError(
        f'microbatch={cfg.microbatch} does not divide the {rows} rows of an '
        'update: choose a divisor, or add rows with response_length 0.')
