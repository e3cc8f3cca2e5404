"""The fields of a config that take plugs."""

from typing import Any, Mapping

from jaxrl_llm import tasks
from jaxrl_llm.base import plug as plug_lib
from jaxrl_llm.base.plug import Plug, PlugField
from jaxrl_llm.curriculum import CURRICULA
from jaxrl_llm.ops import advantages, importance, pkpo, policy_losses
from jaxrl_llm.selection import SELECTIONS

PLUG_FIELDS = {takes.field: takes for takes in (
    PlugField('curriculum', CURRICULA, ('sizes',)),
    PlugField('selection', SELECTIONS, ('sizes',)),
    PlugField(
        'advantage', advantages.ADVANTAGES | pkpo.ADVANTAGES, ('rewards',),
        ('where', 'per_group', 'separate', 'weights')),
    tasks.PLUG_FIELD,
    PlugField(
        'loss.objective', policy_losses.OBJECTIVES,
        ('new', 'old', 'advantages', 'mask'), prefix='loss.', shared=True),
    PlugField(
        'loss.importance', importance.CORRECTIONS, ('log_ratio', 'mask'),
        prefix='loss.importance_', shared=True))}


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
