"""Scores of responses by a reward model.

A reward model is a decoder with a score of one number in place of the
unembedding, as transformers' sequence classifiers with one label. Its score of
a response is that of one token, at which the conversation ends.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxrl_llm.learner import forward, packing
from jaxrl_llm.learner.options import REWARD
from jaxrl_llm.ops import ragged
from jaxrl_llm.types import Array, LearnerBatch


def scores(
    params: Any, batch: LearnerBatch, plan: packing.Plan, *,
    setting: forward.Setting) -> Array:
  """Computes the scores [B] float32 of responses; 0 for filler rows.

  Args:
    params: of the reward model.
    batch: B rows. A response has a token more than the conversation, since
      lists end before the last token of a row. The mask marks the token behind
      the one with the score.
    plan: of these rows.
    setting: of the program.
  """
  cfg, net = setting.cfg, setting.nets[REWARD]

  def of_microbatch(rows, at, params):
    batch = jax.lax.with_sharding_constraint(rows[0], P('fsdp'))
    columns, tokens, layout = forward.listed(batch.tokens, at.lists, at, cfg)
    (hidden, _), _ = net.run(params, None, tokens, cfg, layout)
    of_tokens = jnp.einsum(
        'fnd,d->fn', hidden, params['score'][0].astype(hidden.dtype),
        preferred_element_type=jnp.float32)
    of_rows = ragged.responses(of_tokens, at.lists, ragged.Static(
        at.sizes.columns, cfg.max_prompt, cfg.max_response))
    return ((), ()), jnp.sum(jnp.where(batch.mask, of_rows, 0.0), 1)

  _, found = packing.fold(
      of_microbatch, plan, packing.arrange((batch,), plan, setting.mesh),
      params, setting.mesh)
  return packing.in_place(found, plan, len(batch.mask))
