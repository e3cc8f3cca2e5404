"""Scores of responses by a reward model.

A reward model is a decoder with a score of one number in place of the
unembedding, as transformers' sequence classifiers with one label. Its score of
a response is that of its last token, the stop token included, behind the prompt
as the policy reads it.
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
    batch: B rows. Their `response_length` is one more than the tokens of the
      response, since lists end before a row's last token.
    plan: of these rows.
    setting: of the program, whose `max_response` is one more too.
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
    last = jnp.maximum(batch.response_length - 1, 0)
    return ((), ()), jnp.take_along_axis(of_rows, last[:, None], 1)[:, 0]

  _, found = packing.fold(
      of_microbatch, plan, packing.arrange((batch,), plan, setting.mesh),
      params, setting.mesh)
  return packing.in_place(found, plan, len(batch.mask))
