"""The equations of the methods, as plain functions of arrays.

No module here depends on a model, a config or a file. Each can be imported in
a notebook and used alone:

  from jaxrl_llm.ops import advantages, policy_losses

Axis letters: B rows, T response tokens, N samples of a group, D width,
V vocabulary.
"""

from jaxrl_llm.ops import (
    advantages,
    importance,
    kl,
    obrs,
    overlong,
    pkpo,
    policy_losses,
    quantise,
    screening,
    token_stats,
    top_k,
    turns,
)

__all__ = (
    'advantages', 'importance', 'kl', 'obrs', 'overlong', 'pkpo',
    'policy_losses', 'quantise', 'screening', 'token_stats', 'top_k',
    'turns')
