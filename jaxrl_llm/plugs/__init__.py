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

Then `advantage=mine.py:sharper` has the field `sharper.power`. `signature` has
the rules, `slots` the fields that take plugs.
"""

from jaxrl_llm.plugs.slots import chosen, Plug, plug, SLOTS

__all__ = ('Plug', 'SLOTS', 'chosen', 'plug')
