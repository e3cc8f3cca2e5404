"""Distillation on the policy's own responses: a KL to a teacher in the loss.

A teacher is a model that is not trained, with its own size and the vocabulary
of the policy. On the tokens that the policy wrote, the loss has the reverse KL

  D_t = KL(p || q) = sum_v p(v) (log p(v) - log q(v))

of the policy p and the teacher q at the token's position: over the vocabulary;
over the teacher's likeliest tokens, with all others as one; or its estimate by
the sampled token y,

  D_t = r_t SG(log p(y) - log q(y)), r_t = new_t / old_t

whose gradient is that of the first on average, where y was drawn from p. KLs of
later tokens are not part of a token's gradient. `loss.importance` and the
rejection weigh D as they weigh the loss of rewards.

A teacher may read another prompt, such as one with a hint, before the same
response. It may then be the policy itself, whose parameters get no gradient as
those of the teacher.
"""

import dataclasses
from typing import Optional

import jax

from jaxrl_llm.learner.options import TeacherChoices
from jaxrl_llm.ops.importance import bounded_exp
from jaxrl_llm.ops.token_stats import TeacherStats

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Distillation(TeacherChoices):
  """Static choices.

  Attributes:
    prompt_columns: most tokens of the teacher's own prompts, 0 if it reads the
      policy's.
  """
  prompt_columns: int = 0

  @property
  def distinct(self) -> Optional[int]:
    """Tokens that the KL tells apart; 0 for all, None for no KL."""
    return {'all': 0, 'top_k': self.top_k}.get(self.kl)


def loss(new: Array, old: Array, stats: TeacherStats) -> tuple[Array, Array]:
  """Computes D of each token, and what is reported as the KL.

  Args:
    new, old: [B, T] log-probs of the policy, 0 where masked.
    stats: [B, T], 0 where masked; without a KL, the sampled token stands for
      it.
  """
  if stats.kl is not None:
    return stats.kl, stats.kl
  return bounded_exp(new - old) * stats.gap, stats.gap
