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

An advantage may also name columns of `types.Table`, and the functions of the
loss those of `types.LearnerBatch`: a parameter without a default is a column
that the run then makes, one with the default None a column if the run has it.

Then `advantage=mine.py:sharper` has the field `sharper.power`. `base.declared`
has the rules, PLUG_FIELDS the fields that take plugs.

  field             form of the function
  advantage         (rewards [P, N], *, where [P, N]) -> advantages [P, N], or
                    (advantages, metrics by name); `per_group`, if it takes it,
                    leaves out scaling by the batch, and `weights` are the
                    factors of several reward functions. With a parameter
                    `turn` [P, N, T], the number of the turn of each token (-1
                    where the model wrote none), advantages may be [P, N, T]
  loss.objective    (new, old, advantages, mask) -> ops.policy_losses.PolicyLoss
  loss.importance   (log_ratio, mask) -> weights [B, T]
  loss.term         (new, old, entropy, mask) -> losses [B, T], which are added,
                    or (losses, metrics by name)
  curriculum        (types.RunSizes) -> types.Curriculum
  selection         (types.RunSizes) -> types.Selection
  task.name         (tokenizer) -> tasks.Task
"""

from typing import Any, Mapping

from jaxrl_llm import tasks
from jaxrl_llm.base import plug as plug_lib
from jaxrl_llm.base.plug import Plug, PlugField
from jaxrl_llm.curriculum import CURRICULA
from jaxrl_llm.selection import SELECTIONS


def _ops() -> Any:
  """Imports the functions of arrays, and JAX with them, which takes seconds."""
  from jaxrl_llm import ops
  return ops


def _of_rows() -> set[str]:
  from jaxrl_llm.types import Table
  return {*Table.declared, 'turn'} - {  # given, or not known yet
      'reward', 'valid', 'advantage', 'token_advantages', 'trained', 'round',
      'group_mean', 'group_std', 'usage', 'clip_share', 'shard', 'turn_start',
      'turn_length'}


def _of_batches() -> set[str]:
  from jaxrl_llm.types import LearnerBatch
  return {*LearnerBatch.declared} - {
      'advantages', 'mask', 'token_advantages', 'prompt', 'response', 'length',
      'generated', 'match', 'turn_start', 'turn_length'}


PLUG_FIELDS = {takes.field: takes for takes in (
    PlugField('curriculum', lambda: CURRICULA, ('sizes',)),
    PlugField('selection', lambda: SELECTIONS, ('sizes',)),
    PlugField(
        'advantage',
        lambda: (_ops().advantages.ADVANTAGES | _ops().pkpo.ADVANTAGES
                 | _ops().turns.ADVANTAGES
                 | {'none': _ops().advantages.none}),
        ('rewards',), ('where', 'per_group', 'weights'), _of_rows),
    tasks.PLUG_FIELD,
    PlugField(
        'loss.objective', lambda: _ops().policy_losses.OBJECTIVES,
        ('new', 'old', 'advantages', 'mask'), columns=_of_batches,
        prefix='loss.', shared=True),
    PlugField(
        'loss.importance', lambda: _ops().importance.CORRECTIONS,
        ('log_ratio', 'mask'), columns=_of_batches, prefix='loss.importance_',
        shared=True),
    PlugField(
        'loss.term', lambda: {'none': lambda new, old, entropy, mask: new},
        ('new', 'old', 'entropy', 'mask'), columns=_of_batches,
        prefix='loss.term_', shared=True))}


def known(field: str) -> Mapping[str, Any]:
  """Returns the package's own plugs of a field: name to function or name."""
  return PLUG_FIELDS[field].known


def plug(field: str, name: str) -> Plug:
  """Returns the plug of a name; see `base.plug.plug`.

  Args:
    field: one of PLUG_FIELDS.
    name: of the plug.
  """
  return plug_lib.plug(PLUG_FIELDS[field], name)


def chosen(
    field: str, values: Mapping[str, Any]) -> tuple[Plug, dict[str, Any]]:
  """Returns the plug that a config chooses, and its arguments.

  Args:
    field: one of PLUG_FIELDS.
    values: field to value, of the whole config.
  """
  found = plug(field, values[field])
  return found, found.bound(values)
