"""Pass of the model over a microbatch's lists of tokens, see `packing`."""

import functools
import operator
from typing import Any, Callable, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import packing, views
from jaxrl_llm.learner.options import ACTOR, POLICY, TEACHER, writer
from jaxrl_llm.learner.packing import MicrobatchTokens
from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import ragged
from jaxrl_llm.ops.token_stats import (
  Head,
  Split,
  token_stats,
  TokenStats,
  Wanted,
)
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import Array, LearnerBatch

# The parameters that wrote the rows, among those of the players in a pass.
BEHAVIOUR = 'behaviour'


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
    nets: name of each player to its Net.
    optimizers: name of each player that learns to its Optimizer.
    specs: the same to the partition specs of its trained parameters.
  """
  cfg: Any
  mesh: jax.sharding.Mesh
  nets: dict[str, Net]
  optimizers: dict[str, Any]
  specs: dict[str, Any]

  @property
  def writer(self) -> str:
    """Name of the player that writes the responses."""
    return writer(self.nets)

  def net(self, name: str) -> Net:
    """Returns the model of a player, or that of BEHAVIOUR."""
    # A teacher without a model of its own is the policy.
    return self.nets[self.writer if name == BEHAVIOUR else (
        name if name in self.nets else POLICY)]

  def others(
      self, given: Optional[dict[str, Any]], policy: Any) -> dict[str, Any]:
    """Returns parameters without a gradient, those of the teacher among them.

    Args:
      given: `LearnerPrograms.update`'s.
      policy: trained parameters of the policy.

    Raises:
      ValueError: the parameters of a teacher that is another model are missing.
    """
    given = given or {}
    if not self.cfg.teacher or TEACHER in given:
      return given
    if TEACHER in self.nets:
      raise ValueError(
          "The teacher's weights are missing: give others={'teacher': ...}.")
    return {**given, TEACHER: policy}


class Numbers(NamedTuple):
  """Numbers of the distributions.

  Attributes:
    temperature: [] of the sampling, where the batch has none.
    lam: [] threshold of a normaliser, or None.
    teacher_temperature: [] of the KL to a teacher; None for that of the tokens.
  """
  temperature: Array
  lam: Optional[Array] = None
  teacher_temperature: Optional[Array] = None


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
    params: dict[str, Any], frozen: Any, batch: LearnerBatch,
    at: MicrobatchTokens, numbers: Numbers, setting: Setting, *,
    entropy: bool = True) -> TokenStats:
  """Computes statistics of the responses of a microbatch.

  Args:
    params: name of each player in the pass to its parameters. With a teacher,
      `teacher` compares the policy with it; it reads `teacher_tokens`, if the
      batch has them. With an actor, `student` has its statistics. With
      BEHAVIOUR, `overlap` is computed between it and the policy. Without, an
      exact normaliser is computed with the actor in training, which is the same
      in the first update.
    frozen: parameters of the policy that are not trained, or None.
    batch: B rows. Experts in it are used by all models; there is no actor that
      is another model then.
    at: their tokens.
    numbers: of the distributions.
    setting: of the program.
    entropy: whether it is needed.

  Returns:
    TokenStats [B, T].
  """
  cfg = setting.cfg
  # Rows stay split over the devices of a data group, through the whole pass.
  batch = jax.lax.with_sharding_constraint(batch, P('fsdp'))
  columns, tokens, layout = listed(batch.tokens, at.lists, at, cfg)
  targets = ragged.tokens(batch.tokens, columns, 1)
  policy_model, chosen = setting.nets[POLICY].model, None
  if batch.experts is not None:
    chosen = experts.Record.of(policy_model).unpack(
        ragged.tokens(batch.experts, columns))
  reads = dict.fromkeys(params, (tokens, layout))
  if batch.teacher_tokens is not None and TEACHER in params:
    # The responses are in the same columns; the plan has room for the prompts.
    reads[TEACHER] = listed(batch.teacher_tokens, at.lists._replace(
        before=batch.teacher_prompt_length - 1), at, cfg)[1:]
  passes = {
      name: setting.net(name).run(
          tree, frozen, reads[name][0], cfg, reads[name][1], chosen)
      for name, tree in params.items()}
  outputs = {name: output for name, (output, _) in passes.items()}
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
      outputs, Targets(targets, columns.response, ids, heat), at, numbers,
      setting, entropy=entropy)
  used = passes[POLICY][1]
  return found if used is None else found._replace(experts=experts.load(
      used, columns.sequence >= 0, policy_model.experts))


def listed(
    rows: Array, lists: ragged.Lists, at: MicrobatchTokens, cfg: Any,
) -> tuple[ragged.ListColumns, Array, Any]:
  """Puts sequences into lists.

  Args:
    rows: [B, P + T] int32, prompts of up to P tokens, directly followed by the
      responses.
    lists: their places.
    at: tokens of the microbatch.
    cfg: the `learner.LearnerConfig`.

  Returns:
    Content of the columns; tokens [F, N]; layout of the attention.
  """
  columns = ragged.columns(lists, at.sizes.columns)
  static = ragged.Static(
      at.sizes.columns, rows.shape[1] - cfg.max_response, cfg.max_response)
  layout = views.in_chunks(
      columns, at.reach, static, at.sizes) if at.sizes.chunks else (
          views.in_rows(lists, columns, static, at.sizes))
  return columns, ragged.tokens(rows, columns), layout


def _over_vocabulary(
    outputs: dict[str, tuple[Array, Array]], of_tokens: Targets,
    at: MicrobatchTokens, numbers: Numbers, setting: Setting, *,
    entropy: bool) -> TokenStats:
  """Computes the TokenStats of rows from hidden states of lists.

  Args:
    outputs: name to the (hidden states, unembedding) of a model.
    of_tokens: the next tokens.
    at: tokens of the microbatch.
    numbers: of the distributions.
    setting: of the program.
    entropy: whether it is needed.
  """
  cfg, axes, rejection = (
      setting.cfg, setting.nets[POLICY].axes, setting.cfg.rejection)
  static = ragged.Static(at.sizes.columns, cfg.max_prompt, cfg.max_response)
  top_k, wrote = 0, BEHAVIOUR
  if ACTOR in outputs:
    top_k = max(cfg.actor.distill_top_k, rejection.top_k if (
        rejection and of_tokens.top_ids is not None) else 0)
    # Before its first update on them, the actor is the model that wrote the
    # rows. One pass over the vocabulary then serves both.
    if BEHAVIOUR not in outputs and numbers.lam is not None and (
        rejection and rejection.z == 'exact'):
      wrote = ACTOR

  def reduce(outputs, of_tokens, lists, numbers):
    # Responses come first in a list: the head skips the columns of prompts.
    own = lambda x: x[:, :packing.head_columns(at.sizes, cfg.max_response)]
    heads = {
        name: Head(own(hidden), unembed, setting.net(name).model.logit_softcap)
        for name, (hidden, unembed) in outputs.items()}
    targets, needed, ids, heat = jax.tree.map(own, of_tokens)
    temperature = numbers.temperature if heat is None else heat
    of_columns = token_stats(
        heads[POLICY], targets, needed=needed, temperature=temperature,
        chunk=cfg.vocab_chunk, wanted=Wanted(
            entropy, top_k, ids, heads.get(ACTOR), heads.get(wrote),
            numbers.lam, heads.get(TEACHER),
            cfg.teacher and cfg.teacher.distinct,
            numbers.teacher_temperature),
        split=Split(axes, 'fsdp' if 'fsdp' in axes else None))
    return jax.tree.map(
        lambda x: ragged.responses(x, lists, static), of_columns)

  # Manual axes, because the partitioner would all-gather the unembedding.
  if axes:
    of_model = P('fsdp'), P(axes)
    reduce = jax.shard_map(
        reduce, axis_names={'fsdp', 'tensor'}, check_vma=False,
        in_specs=(dict.fromkeys(outputs, of_model), P('fsdp'), P('fsdp'), P()),
        out_specs=P('fsdp'))
  return reduce(outputs, of_tokens, at.lists, numbers)


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
