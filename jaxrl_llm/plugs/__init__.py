"""Plugs: functions that a config chooses by name, the package's or the user's.

A field such as `advantage` names a function: one of the package's (`grpo`) or
the user's (`FILE.py:NAME`, `PACKAGE.MODULE:NAME`). Parameters that the run does
not pass are the function's hyperparameters. They are fields of the config while
the function is chosen: name, default and type come from the signature, the
meaning from the docstring.

  def sharper(rewards, *, where, power: Annotated[float, '(0, 8]'] = 2.0):
    \"\"\"Computes advantages of powers.

    Args:
      rewards: [P, N].
      where: [P, N] bool, valid samples.
      power: exponent of the centred reward.
    \"\"\"

Then `advantage=mine.py:sharper` has the field `sharper.power`. `base.declared`
has the rules, `plug_fields` the fields that take plugs.

  field             form of the function
  advantage         (rewards [P, N], *, where [P, N]) -> advantages [P, N], or
                    (advantages, metrics by name); `per_group`, if it takes it,
                    leaves out scaling by the batch; `separate` [P, N, K] and
                    `weights`, if it takes them, are the rewards of several
                    functions, NaN where one does not count, and their factors
  loss.objective    (new, old, advantages, mask) -> ops.policy_losses.PolicyLoss
  loss.importance   (log_ratio, mask) -> weights [B, T]
  curriculum        (types.RunSizes) -> types.Curriculum
  selection         (types.RunSizes) -> types.Selection
  task.name         (tokenizer) -> tasks.Task
"""

from jaxrl_llm.base.plug import Plug
from jaxrl_llm.plugs.plug_fields import chosen, plug, PLUG_FIELDS

__all__ = ('Plug', 'PLUG_FIELDS', 'chosen', 'plug')
