"""Passes of the model over the rows of a microbatch.

`cfg` is a `update.LearnerConfig` in all functions.
"""

import functools
import operator
from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import lists as lists_lib
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import microbatches, obrs, packing, ragged
from jaxrl_llm.ops.token_stats import token_stats, TokenStats
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


class Net(NamedTuple):
  """Model in the learner's programs.

  Attributes:
    model: its architecture.
    compose: (trained, frozen) -> all parameters.
    axes: mesh axes that its vocabulary is split over. Its operations use
      explicit collectives, because the partitioner would all-gather the
      embeddings.
    fetch: all-gathers the weights of a layer; None for no change.
  """
  model: ModelConfig
  compose: Callable[[Any, Any], Any]
  axes: tuple[str, ...]
  fetch: Optional[Callable[[Any], Any]]

  def run(self, params, frozen, tokens, cfg, **given):
    """Runs the model on rows; `given` are arguments of `transformer.forward`.

    Returns:
      Hidden states, the unembedding, and keys and values if `keep_kv` is given.
    """
    lookup = operator.getitem
    if self.axes:
      lookup = functools.partial(
          collectives.lookup, axes=self.axes, dtype=self.model.dtype)
    params = self.compose(params, frozen)
    hidden, kv = transformer.forward(
        params, tokens, cfg=self.model, remat=cfg.remat,
        implementation=cfg.attention, unroll=cfg.unroll, lookup=lookup,
        fetch=self.fetch, **given)
    return hidden, transformer.unembedding(params), kv


class Shared(NamedTuple):
  """Keys and values of prompts, for the rows of a microbatch.

  Attributes:
    kv: those of the players, a tuple.
    writer: those of the writer, or None.
    start: [B] int32, column of each row's prompt.
    length: [B] int32, tokens of each row's prompt without its last.
  """
  kv: tuple[Any, ...]
  writer: Any
  start: Array
  length: Array


def stats(
    params, frozen, batch, temperature, length, *, nets, cfg, entropy=True,
    writer=None, lam=None,
    shared: Optional[Shared | ragged.Lists] = None) -> TokenStats:
  """Computes TokenStats [B, t] of responses in rows of at most `length` tokens.

  With `Shared`, `length` counts the tokens of responses alone; with `Lists`, it
  is the length of the lists.

  `params` are those of the policy, or of the policy and the actor, if it is
  another model; so are `nets`. `student` has then the actor's statistics.
  With the parameters `writer`, by which the actor wrote the rows, `overlap` is
  computed between them and the policy at the threshold `lam`. Without them, an
  exact normaliser is computed with the actor in training, which is the same in
  the first update.
  """
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  places = static = head = None
  if isinstance(shared, ragged.Lists):
    places, static = shared, cfg.sizes.static(length)
    t, head = static.response, lists_lib.head_columns(cfg.sizes, static)
  else:
    t = length if shared else min(cfg.max_response, length - 1)
  axes, actor, paired = nets[0].axes, nets[-1].model, len(params) > 1
  rejection = cfg.rejection
  top_k = 0
  if paired:
    top_k = max(cfg.actor.top_k, rejection.top_k if (
        rejection and batch.top_ids is not None) else 0)
  same = paired and writer is None and bool(
      rejection) and rejection.z == 'exact' and lam is not None

  def reduce(hidden, tokens, prompt_length, places, ids, unembed, temperature,
             student, other, lam):
    def own(x):
      if places:
        return x[:, :head]
      return x if shared else microbatches.columns(x, prompt_length - 1, t)

    if places:
      targets, ids, needed = lists_lib.targets(
          tokens, ids, places, static, head)
    else:
      targets = microbatches.columns(tokens, prompt_length, t)
      needed = None
    student, other = (
        None if x is None else (own(x[0]), x[1]) for x in (student, other))
    found = token_stats(
        own(hidden), unembed, targets, needed=needed,
        temperature=temperature, softcap=nets[0].model.logit_softcap,
        entropy=entropy, chunk=cfg.vocab_chunk, axes=axes, ids=ids,
        row_axis='fsdp' if 'fsdp' in axes else None, top_k=top_k,
        student=student, other=student if same else other,
        other_softcap=actor.logit_softcap, lam=lam)
    return found if not places else jax.tree.map(
        lambda x: ragged.responses(x, places, static), found)

  def run(net, params, frozen, kv):
    if shared is None:
      return net.run(params, frozen, batch.tokens[:, :length], cfg)[:2]
    if places:
      return net.run(params, frozen, cfg=cfg, **lists_lib.inputs(
          batch.tokens, places, static))[:2]
    # From the last token of the prompt to the last but one of the response.
    positions = shared.length[:, None] + jnp.arange(t)
    return net.run(
        params, frozen, jnp.take_along_axis(
            batch.tokens, positions, axis=1, mode='clip'), cfg,
        positions=positions, prefix=attention.Prefixes(
            kv, shared.start, shared.length, cfg.max_prompt - 1))[:2]

  waves = isinstance(shared, Shared)
  kvs = shared.kv if waves else (None,) * len(params)
  (hidden, unembed), *student = map(run, nets, params, frozen, kvs)
  student = student[0] if student else None
  other = None if writer is None else jax.lax.stop_gradient(run(
      nets[-1], writer, frozen[len(params) - 1],
      shared.writer if waves else None))
  ids = None
  if batch.top_ids is not None:
    ids = jnp.swapaxes(batch.top_ids[..., :t], 1, 2)
  if axes:
    model = P('fsdp'), P(axes)
    reduce = jax.shard_map(
        reduce, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(P('fsdp'),) * 5 + (
            P(axes), P(), student and model, other and model, P()),
        out_specs=P('fsdp'))
  return reduce(
      hidden, batch.tokens, batch.prompt_length, places, ids, unembed,
      temperature, student, other, lam)


def of_prompts(trees, over, *, nets, cfg):
  """Computes the keys and values of a wave's prompts, see `prompts.fold`.

  `trees` are parameters of the players, frozen ones, and the writer's or None.

  Returns:
    Those of the players, and of the writer or None, [layers, C, KV, h] each.
  """
  params, frozen, writer = trees
  sizes = cfg.sizes

  def of(net, params, frozen):
    model = net.model
    empty = jax.lax.with_sharding_constraint(jnp.zeros(
        (model.layers, sizes.bins * sizes.width + sizes.columns,
         model.kv_heads, model.head_dim), model.dtype), P(None, None, 'tensor'))

    def each(kv, column, tokens, positions, segments):
      _, _, new = net.run(
          params, frozen, tokens, cfg, keep_kv=True, positions=positions,
          segments=segments)
      return tuple(
          packing.put(x, y[:, 0], column) for x, y in zip(kv, new))

    return over(each, (empty, empty))

  return tuple(map(of, nets, params, frozen)), (
      None if writer is None else of(nets[-1], writer, frozen[len(params) - 1]))


def back_to_prompts(trees, grads, of_kv, over, *, nets, cfg, specs):
  """Adds the gradients through a wave's prompts to `grads` of the players.

  `of_kv` are the gradients of the first result of `of_prompts`.
  """
  params, frozen, _ = trees

  def of(net, params, frozen, grads, of_kv, specs):
    def each(grads, column, tokens, positions, segments):
      def kv(params):
        return net.run(params, frozen, tokens, cfg, keep_kv=True,
                       positions=positions, segments=segments)[2]

      own, back = jax.vjp(kv, params)
      new, = back(tuple(
          packing.get(x, column, y.shape[2])[:, None].astype(y.dtype)
          for x, y in zip(of_kv, own)))
      new = jax.lax.with_sharding_constraint(new, specs)
      return jax.tree.map(jnp.add, grads, new)

    return over(each, grads)

  return tuple(map(of, nets, params, frozen, grads, of_kv, specs))


def normalizers(
    batch: LearnerBatch, found: TokenStats, lam: Array, cfg,
) -> tuple[Optional[Array], Optional[Array]]:
  """Returns the exact and the top-k normaliser of the rejection.

  The latter is over the sampler's likeliest tokens. With an actor that is
  another model it is also over the policy's likeliest ones, for which the
  actor's forward pass gives the log-probs, see `obrs.normalizer_topk`. Without
  one, a token that is not among the sampler's is unknown to it and counts as
  0.

  Args:
    batch: B rows. Normalisers in it, from `score`, are used.
    found: of these rows.
    lam: threshold.
    cfg: `LearnerConfig.rejection`.

  Returns:
    [B, t] each, without gradient, or None.
  """
  t = found.logprobs.shape[1]
  if batch.z is not None:
    z = batch.z[:, :t]
    return (z, None) if cfg.z == 'exact' else (None, z)
  if batch.top_ids is None:
    return found.overlap, None
  found = jax.lax.stop_gradient(found)
  logq = jnp.swapaxes(batch.top_logprobs[..., :t], 1, 2)
  if found.student is None:
    return found.overlap, obrs.normalizer(logq, found.id_logprobs, lam=lam)
  k = cfg.top_k
  return found.overlap, obrs.normalizer_topk(
      jnp.swapaxes(batch.top_ids[..., :t], 1, 2), logq,
      found.top_ids[..., :k], found.top_logprobs[..., :k], lam=lam,
      logp_t_at_b=found.id_logprobs,
      logp_b_at_t=found.student.top_logprobs[..., :k])


def as_tuple(tree: Any) -> tuple:
  """Returns a tuple of players' trees as it is, that of the policy as one."""
  return tree if isinstance(tree, tuple) else (tree,)


def real(batch: LearnerBatch) -> Array:
  """Returns the mask [B, T] of the response's tokens."""
  return jnp.arange(batch.mask.shape[1]) < batch.response_length[:, None]


def check(batch: LearnerBatch, cfg) -> None:
  """Raises ValueError if the batch's sizes do not match the config."""
  rows, columns = batch.tokens.shape
  full = cfg.max_prompt + cfg.max_response
  if (columns, batch.mask.shape[1]) != (full, cfg.max_response):
    raise ValueError(
        f'tokens {batch.tokens.shape} and mask {batch.mask.shape} do not fit '
        f'max_prompt={cfg.max_prompt}, max_response={cfg.max_response}: pad '
        f'them to {full} and {cfg.max_response} columns.')
  if rows % cfg.microbatch:
    raise ValueError(
        f'microbatch={cfg.microbatch} does not divide the {rows} rows of an '
        'update: choose a divisor, or add rows with response_length 0.')
