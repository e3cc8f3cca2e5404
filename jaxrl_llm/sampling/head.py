"""Drawing the next tokens from final hidden states, with a split vocabulary.

The rows of the unembedding are split over the mesh axis 'tensor'. XLA's
partitioner would all-gather the logits at every decode step. Here each shard
works on its own part, and only a few numbers per row are communicated.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import top_k
from jaxrl_llm.sampling import logits as logits_lib
from jaxrl_llm.sampling import vocabulary

Array = jax.Array

_AXIS = 'tensor'


def next_tokens(
    params: transformer.Params,
    hidden: Array,
    noise: Array,
    sampling: logits_lib.SamplingParams,
    *,
    cfg: ModelConfig,
    top_logprobs: int = 0,
    tempered: bool = False,
    few_rows: bool = False,
) -> dict[str, Array]:
  """Draws a token for every slot.

  Args:
    params: the parameter tree.
    hidden: [S, D] final hidden states.
    noise: [S] float32, uniform in [0, 1).
    sampling: scalars that shape the distribution.
    cfg: the model.
    top_logprobs: K, number of likeliest tokens to return, before truncation.
    tempered: whether to return the log-probs before truncation too.
    few_rows: whether to use the product that is fast for few rows on a CPU.

  Returns:
    A dictionary: 'tokens' [S] int32; 'logprobs' [S] float32, their behaviour
    log-probs; 'entropy' [S] float32 of the tempered distribution; if asked for,
    'tempered_logprobs' [S] float32; if K > 0, 'top_ids' and 'top_logprobs'
    [S, K] of the tempered distribution.
  """
  def local(params, hidden, noise, sampling, axis):
    logits = transformer.logits(params, hidden, cfg, few_rows)
    if cfg.vocab_size <= vocabulary.WHOLE:
      logits, axis = vocabulary.gather(logits, axis), None
    return _drawn(
        logits, noise, sampling, axis, top_logprobs=top_logprobs,
        tempered=tempered)

  args = transformer.head_params(params), hidden, noise, sampling
  if jax.sharding.get_abstract_mesh().shape.get(_AXIS, 1) == 1:
    return local(*args, axis=None)
  # Over the other axes of the mesh this runs inside of a shard_map already.
  return jax.shard_map(
      functools.partial(local, axis=_AXIS), axis_names={_AXIS},
      in_specs=(P(_AXIS), P(), P(), P()), out_specs=P(), check_vma=False)(
          *args)


def _drawn(logits, noise, sampling, axis, *, top_logprobs, tempered):
  """Computes `next_tokens` from one shard's part [S, v] of the logits."""
  dist = logits_lib.process(logits, sampling, axis)
  token = logits_lib.draw(dist.behaviour, noise, dist.masses, axis)
  v = logits.shape[-1]
  local = token - vocabulary.first(v, axis)
  logprob = jnp.take_along_axis(
      dist.behaviour, jnp.clip(local, 0, v - 1)[:, None], -1)[:, 0]
  # The token is on one shard alone; the sum over the shards is its log-prob.
  logprob = jnp.where((local >= 0) & (local < v), logprob, 0.0)
  # Stacked: one message between the shards costs less than two.
  logprob, entropy = vocabulary.total(
      jnp.stack([logprob, logits_lib.entropy(dist.tempered)]), axis)
  drawn = dict(tokens=token, logprobs=logprob, entropy=entropy)
  if tempered:
    # From one number per row: no second look-up in [S, v].
    drawn['tempered_logprobs'] = logprob + dist.log_kept
  if top_logprobs:
    drawn['top_logprobs'], drawn['top_ids'] = top_k.of_parts(
        dist.tempered, top_logprobs, vocabulary.first(v, axis),
        lambda x: vocabulary.gather(x, axis))
  return drawn
