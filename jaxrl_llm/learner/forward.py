"""Passes of the model over the rows of a batch, in microbatches.

Microbatches hold rows of similar lengths, longest rows first, see
`ops/microbatches`. `cfg` is a `update.LearnerConfig` in all functions.
"""

import functools
import operator
from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import microbatches, obrs
from jaxrl_llm.ops.token_stats import token_stats, TokenStats
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


class Scores(NamedTuple):
  """Scores of the response tokens under the policy.

  Attributes:
    logprobs: [B, T] float32, 0 past each response.
    z: [B, T] float32 or None, the normaliser of the rejection towards this
      policy, see `normalizers`.
    actor_logprobs: [B, T] float32 or None, under the actor, if it is another
      model; 0 past each response.
  """
  logprobs: Array
  z: Optional[Array] = None
  actor_logprobs: Optional[Array] = None


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

  def run(self, params, frozen, tokens, cfg):
    """Returns hidden states of rows, and the unembedding."""
    lookup = operator.getitem
    if self.axes:
      lookup = functools.partial(
          collectives.lookup, axes=self.axes, dtype=self.model.dtype)
    params = self.compose(params, frozen)
    hidden, _ = transformer.forward(
        params, tokens, cfg=self.model, remat=cfg.remat,
        implementation=cfg.attention, unroll=cfg.unroll, lookup=lookup,
        fetch=self.fetch)
    return hidden, transformer.unembedding(params)


def stats(
    params, frozen, batch, temperature, length, *, nets, cfg, entropy=True,
    writer=None, lam=None) -> TokenStats:
  """Computes TokenStats [B, t] of responses in rows of at most `length` tokens.

  `params` are those of the policy, or of the policy and the actor, if it is
  another model; so are `nets`. `student` has then the actor's statistics.
  With the parameters `writer`, by which the actor wrote the rows, `overlap` is
  computed between them and the policy at the threshold `lam`. Without them, an
  exact normaliser is computed with the actor in training, which is the same in
  the first update.
  """
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  t = min(cfg.max_response, length - 1)
  axes, actor, paired = nets[0].axes, nets[-1].model, len(params) > 1
  rejection = cfg.rejection
  top_k = 0
  if paired:
    top_k = max(cfg.actor.top_k, rejection.top_k if (
        rejection and batch.top_ids is not None) else 0)
  shared = paired and writer is None and bool(
      rejection) and rejection.z == 'exact' and lam is not None

  def reduce(hidden, tokens, prompt_length, ids, unembed, temperature, student,
             other, lam):
    own = lambda x: microbatches.columns(x, prompt_length - 1, t)
    student, other = (
        None if x is None else (own(x[0]), x[1]) for x in (student, other))
    return token_stats(
        own(hidden), unembed, microbatches.columns(tokens, prompt_length, t),
        temperature=temperature, softcap=nets[0].model.logit_softcap,
        entropy=entropy, chunk=cfg.vocab_chunk, axes=axes, ids=ids,
        row_axis='fsdp' if 'fsdp' in axes else None, top_k=top_k,
        student=student, other=student if shared else other,
        other_softcap=actor.logit_softcap, lam=lam)

  tokens = batch.tokens[:, :length]
  (hidden, unembed), *student = (
      net.run(*trees, tokens, cfg) for net, *trees in zip(
          nets, params, frozen))
  student = student[0] if student else None
  other = None if writer is None else jax.lax.stop_gradient(
      nets[-1].run(writer, frozen[len(params) - 1], tokens, cfg))
  ids = None
  if batch.top_ids is not None:
    ids = jnp.swapaxes(batch.top_ids[..., :t], 1, 2)
  if axes:
    model = P('fsdp'), P(axes)
    reduce = jax.shard_map(
        reduce, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(P('fsdp'),) * 4 + (
            P(axes), P(), student and model, other and model, P()),
        out_specs=P('fsdp'))
  return reduce(
      hidden, batch.tokens, batch.prompt_length, ids, unembed, temperature,
      student, other, lam)


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


def score(params, batch, loss, frozen=None, *, cfg, mesh, nets) -> Scores:
  """Computes `Learner.score`."""
  check(batch, cfg)
  params = as_tuple(params)
  frozen = (frozen, None)[:len(params)]
  lam = None
  if cfg.rejection and cfg.rejection.scores_z:
    lam = loss.rejection['lam']

  @by_data_group(mesh, P(None, 'data'))
  def scores(trees, cut, numbers):
    temperature, lam = numbers

    def one(micro, length):
      found = stats(*trees, micro, temperature, length, cfg=cfg, nets=nets,
                    entropy=False, lam=lam)
      wide = lambda x: jnp.pad(x, ((0, 0), (0, cfg.max_response - x.shape[1])))
      z = None
      if lam is not None:
        exact, topk = normalizers(micro, found, lam, cfg.rejection)
        z = topk if exact is None else exact
      return jax.tree.map(wide, Scores(
          found.logprobs, z, found.student and found.student.logprobs))

    wanted = jax.eval_shape(
        functools.partial(one, length=cfg.lengths[0]),
        jax.tree.map(lambda x: x[0], cut.rows))
    zeros = jnp.zeros(cut.rows.mask.shape, jnp.float32)
    return microbatches.fold(
        one, lambda i, out, x: jax.tree.map(
            lambda out, x: out.at[i].set(x), out, x),
        jax.tree.map(lambda _: zeros, wanted), cut, lengths=cfg.lengths)

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
