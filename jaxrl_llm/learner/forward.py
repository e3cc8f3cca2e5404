"""Pass of the model over a microbatch's lists of tokens, see `packing`."""

import functools
import operator
from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import packing, views
from jaxrl_llm.learner.microbatches import MicrobatchTokens
from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import obrs, ragged
from jaxrl_llm.ops.token_stats import (
  Head,
  Split,
  token_stats,
  TokenStats,
  Wanted,
)
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch


class Players(NamedTuple):
  """A value for each model that is trained.

  Attributes:
    policy: value of the policy.
    actor: value of the actor, if it is another model; else None, and the policy
      is the actor.
  """
  policy: Any
  actor: Any = None

  @property
  def actor_or_policy(self) -> Any:
    """Returns the value of the model that writes the responses."""
    return self.policy if self.actor is None else self.actor

  @classmethod
  def of(cls, tree: Any) -> 'Players':
    """Returns the players of a tuple of both, or of the policy's tree."""
    return cls(*tree) if isinstance(tree, tuple) else cls(tree)

  def like(self, tree: Any) -> Any:
    """Returns a tuple of both values if `tree` is one, else the policy's."""
    return tuple(self) if isinstance(tree, tuple) else self.policy

  def map(self, function: Callable[..., Any], *others: 'Players') -> 'Players':
    """Applies a function to the value of each player; None stays None."""
    return Players(*(
        None if any(x is None for x in each) else function(*each)
        for each in zip(self, *others)))


class Net(NamedTuple):
  """Model of a player in the learner's programs.

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

  def run(self, params, frozen, tokens, cfg, layout, chosen=None):
    """Runs the model.

    Args:
      params: trained parameters.
      frozen: the others, or None.
      tokens: [F, N] int32.
      cfg: the `learner.LearnerConfig`.
      layout: order of the tokens in lists.
      chosen: [layers with experts, F, N, k] int32, experts to use, or None.

    Returns:
      Hidden states and the unembedding; and the experts of each token
      [layers with experts, F, N, k], or None.
    """
    lookup = operator.getitem
    if self.axes:
      lookup = functools.partial(
          collectives.lookup, axes=self.axes, dtype=self.model.dtype)
    params = self.compose(params, frozen)
    hidden, kept = transformer.forward(
        params, tokens, cfg=self.model, execution=cfg, layout=layout,
        reads=transformer.Reads(lookup, self.fetch), chosen=chosen)
    return (hidden, transformer.unembedding(params)), kept.experts


class Setting(NamedTuple):
  """Static parts of the learner's programs.

  Attributes:
    cfg: the `learner.LearnerConfig`.
    mesh: with axes data, fsdp and tensor, from `sharding.make_mesh`.
    nets: Players of Net.
    optimizers: Players of Optimizer; they update.
    specs: Players of the partition specs of the trained parameters.
  """
  cfg: Any
  mesh: jax.sharding.Mesh
  nets: Players
  optimizers: Players
  specs: Players


class PassParams(NamedTuple):
  """Parameters that a pass reads.

  Attributes:
    params: Players of trained parameters.
    frozen: parameters of the policy that are not trained, or None.
    behaviour_params: parameters that wrote the rows, or None.
  """
  params: Players
  frozen: Any = None
  behaviour_params: Any = None


class Outputs(NamedTuple):
  """(Hidden states, unembedding) of the models of a pass.

  Attributes:
    policy: of the policy.
    actor: of the actor, if it is another model, else None.
    behaviour: of the parameters that wrote the rows, if they are needed and are
      not those of the actor, else None.
  """
  policy: tuple[Array, Array]
  actor: Optional[tuple[Array, Array]] = None
  behaviour: Optional[tuple[Array, Array]] = None


class Targets(NamedTuple):
  """Facts about the next token of each column of lists.

  Attributes:
    ids: [F, N] int32, the token.
    in_response: [F, N] bool, whether it is in a response.
    top_ids: [F, N, K] int32, the sampler's likeliest tokens, or None.
    temperature: [F, N] float32, or None where all have that of the loss.
  """
  ids: Array
  in_response: Array
  top_ids: Optional[Array]
  temperature: Optional[Array]


def stats(
    weights: PassParams, batch: LearnerBatch, at: MicrobatchTokens,
    temperature: Array, setting: Setting, *, entropy: bool = True,
    lam: Optional[Array] = None) -> TokenStats:
  """Computes statistics of the responses of a microbatch.

  Args:
    weights: with an actor, `student` has its statistics. With the parameters
      that wrote the rows, `overlap` is computed between them and the policy at
      the threshold `lam`. Without them, an exact normaliser is computed with
      the actor in training, which is the same in the first update.
    batch: B rows. Experts in it are used by all models; there is no actor that
      is another model then.
    at: their tokens.
    temperature: [] of the sampling, where the batch has none.
    setting: of the program.
    entropy: whether it is needed.
    lam: [] threshold of a normaliser, or None.

  Returns:
    TokenStats [B, T].
  """
  cfg, nets = setting.cfg, setting.nets
  # Rows stay split over the devices of a data group, through the whole pass.
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  static = ragged.Static(at.sizes.columns, cfg.max_prompt, cfg.max_response)
  columns = ragged.columns(at.lists, at.sizes.columns)
  tokens, targets = (
      ragged.tokens(batch.tokens, columns, ahead) for ahead in (0, 1))
  longest = cfg.max_prompt + cfg.max_response
  layout = views.in_chunks(
      columns, at.reach, at.sizes, longest) if at.sizes.chunk else (
          views.in_rows(at.lists, columns, static, at.sizes))

  chosen = None
  if batch.experts is not None:
    chosen = experts.Record.of(nets.policy.model).unpack(
        ragged.tokens(batch.experts, columns))

  def run(net, params):
    return net.run(params, weights.frozen, tokens, cfg, layout, chosen)

  passes = nets.map(run, weights.params)
  policy, student = passes.map(lambda x: x[0])
  behaviour = None
  if weights.behaviour_params is not None:
    behaviour = jax.lax.stop_gradient(
        run(nets.actor_or_policy, weights.behaviour_params)[0])
  # Before its first update on them, the actor is the model that wrote the rows.
  # One pass over the vocabulary then serves both.
  actor_wrote = bool(
      behaviour is None and student and lam is not None
      and cfg.rejection and cfg.rejection.z == 'exact')
  ids = None
  # From [B, K, T], as the sampler stores them.
  if batch.top_ids is not None:
    ids = ragged.response_tokens(
        jnp.swapaxes(batch.top_ids, 1, 2), columns, at.lists)
  heat = None
  if batch.temperature is not None:
    heat = ragged.tokens(batch.temperature[:, None], columns)
    heat = jnp.where(heat > 0, heat, 1.0)  # Places without a row have 0.
  found = _over_vocabulary(
      Outputs(policy, student, behaviour),
      Targets(targets, columns.response, ids, heat), at, (temperature, lam),
      setting, entropy=entropy, actor_wrote=actor_wrote)
  used = passes.policy[1]
  return found if used is None else found._replace(experts=experts.load(
      used, columns.sequence >= 0, nets.policy.model.experts))


def _over_vocabulary(
    outputs: Outputs, of_tokens: Targets, at: MicrobatchTokens, numbers,
    setting: Setting, *, entropy: bool, actor_wrote: bool) -> TokenStats:
  """Computes the TokenStats of rows from hidden states of lists.

  Args:
    outputs: of the models.
    of_tokens: the next tokens.
    at: tokens of the microbatch.
    numbers: temperature, where tokens have none, and lam.
    setting: of the program.
    entropy: whether it is needed.
    actor_wrote: whether `outputs.actor` also stands for the parameters that
      wrote the rows.
  """
  cfg, nets, axes = setting.cfg, setting.nets, setting.nets.policy.axes
  static = ragged.Static(at.sizes.columns, cfg.max_prompt, cfg.max_response)
  top_k = 0
  if outputs.actor:
    top_k = max(cfg.actor.distill_top_k, cfg.rejection.top_k if (
        cfg.rejection and of_tokens.top_ids is not None) else 0)

  def reduce(outputs, of_tokens, lists, numbers):
    # Responses come first in a list: the head skips the columns of prompts.
    own = lambda x: x[:, :packing.head_columns(at.sizes, cfg.max_response)]
    policy, actor, behaviour = (
        x and Head(own(x[0]), x[1], net.model.logit_softcap)
        for x, net in zip(outputs, (
            nets.policy, nets.actor_or_policy, nets.actor_or_policy)))
    targets, needed, ids, heat = jax.tree.map(own, of_tokens)
    temperature, lam = numbers
    of_columns = token_stats(
        policy, targets, needed=needed,
        temperature=temperature if heat is None else heat,
        chunk=cfg.vocab_chunk, wanted=Wanted(
            entropy, top_k, ids, actor, actor if actor_wrote else behaviour,
            lam),
        split=Split(axes, 'fsdp' if 'fsdp' in axes else None))
    return jax.tree.map(
        lambda x: ragged.responses(x, lists, static), of_columns)

  # Manual axes, because the partitioner would all-gather the unembedding.
  if axes:
    of_model = P('fsdp'), P(axes)
    reduce = jax.shard_map(
        reduce, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(Outputs(*(x and of_model for x in outputs)), P('fsdp'),
                  P('fsdp'), P()),
        out_specs=P('fsdp'))
  return reduce(outputs, of_tokens, at.lists, numbers)


def normalizers(
    batch: LearnerBatch, now: TokenStats, lam: Array, cfg,
) -> tuple[Optional[Array], Optional[Array]]:
  """Returns the exact and the top-k normaliser of the rejection.

  The latter is over the sampler's likeliest tokens. With an actor that is
  another model it is also over the policy's likeliest ones, for which the
  actor's forward pass gives the log-probs, see `obrs.normalizer_topk`. Without
  one, the sampler has recorded no log-prob of its other tokens, and they count
  as 0.

  Args:
    batch: B rows. Normalisers in it, from `score`, are used.
    now: of these rows.
    lam: threshold.
    cfg: `LearnerConfig.rejection`.

  Returns:
    [B, T] each, without gradient, or None.
  """
  if batch.z is not None:
    return (batch.z, None) if cfg.z == 'exact' else (None, batch.z)
  if batch.top_ids is None:
    return now.overlap, None
  now = jax.lax.stop_gradient(now)
  logq = jnp.swapaxes(batch.top_logprobs, 1, 2)
  if now.student is None:
    return now.overlap, obrs.normalizer(now.id_logprobs, logq, lam=lam)
  # A distillation over more tokens than the rejection's has one common top-k.
  k = cfg.top_k
  return now.overlap, obrs.normalizer_topk(
      jnp.swapaxes(batch.top_ids, 1, 2), logq,
      now.top_ids[..., :k], now.top_logprobs[..., :k], lam=lam,
      logp_t_at_b=now.id_logprobs,
      logp_b_at_t=now.student.top_logprobs[..., :k])


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
