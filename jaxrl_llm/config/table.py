"""Table of all fields: of the run, of the models and of the chosen plugs."""

import dataclasses
from typing import Any, Mapping

from jaxrl_llm.base import own_code
from jaxrl_llm.base.signature import meanings, optional
from jaxrl_llm.config.field import Field, WEIGHTS
from jaxrl_llm.config.fields import ACTOR, EVERYTHING, FIELDS, JACKPOT
from jaxrl_llm.models.config import ModelConfig, RopeScaling
from jaxrl_llm.plugs import plug as plug_of
from jaxrl_llm.plugs import PLUG_FIELDS, plug_fields

# Values of `Field.affects` for the hyperparameters of a plug, where their
# signature says nothing.
_AFFECTS = {'task.name': EVERYTHING}
_DEFAULTS = {field.name: field.default for field in FIELDS}


def has_actor(flat: Mapping[str, Any]) -> bool:
  """Returns whether another model than the policy writes the responses.

  Args:
    flat: dotted name to value; what is left out has its default.
  """
  return any(
      flat.get(name) for name in ('actor.model.hf', 'actor.model.preset'))


def has_sft(config: Any) -> bool:
  """Returns whether supervised fine-tuning comes before RL."""
  return bool(config.sft.steps or config.sft.epochs)


def sft_of_lora(config: Any) -> bool:
  """Returns whether it trains LoRA's matrices, not all weights."""
  given = config.sft.lora
  return bool(config.lora.rank and has_sft(config)) and (
      bool(config.model.hf) if given is None else given)


def _model_fields(section: str, affects: tuple[str, ...]) -> list[Field]:
  """Returns a field for each field of a model; None is the preset's value."""
  said = meanings(ModelConfig, 'Attributes')
  fields = []
  for f in dataclasses.fields(ModelConfig):
    is_optional, kind = optional(f.type)
    if kind is RopeScaling:
      kind = tuple[float, ...]
      said[f.name] += '; its four numbers'
    bounds = '' if kind in (bool, str) else '[0, inf)' if (
        is_optional or kind == tuple[int, ...]) else (
        '[1, inf)' if kind is int else '(0, inf)')
    fields.append(Field(
        f'{section}.{f.name}', None, said[f.name], bounds, kind | None,
        affects=affects))
  return fields


def hyperparameter_fields(chosen_by: str, name: str) -> dict[str, Field]:
  """Returns the fields of a plug's hyperparameters.

  Args:
    chosen_by: the field that names the plug.
    name: the name.

  Raises:
    ValueError: there is no such plug, or one of its hyperparameters cannot be a
      field.
  """
  fields = {}
  for field, one in plug_fields.plug(
      chosen_by, name).hyperparameters.items():
    if field in _DEFAULTS:
      raise ValueError(
          f'Option {one.name} of {chosen_by}={name} would be the field '
          f'{field}, which there is already: rename it.')
    fields[field] = Field(
        field, one.default, one.meaning, one.range, one.kind, one.choices,
        _AFFECTS.get(chosen_by, (WEIGHTS,)) if one.affects is None
        else one.affects, chosen_by)
  return fields


def table(flat: Mapping[str, Any] | None = None) -> dict[str, Field]:
  """Returns every field of a config, section by section.

  Args:
    flat: dotted name to value; the choices among them decide which fields there
      are. What is left out has its default.

  Returns:
    Dotted name to Field, in the order of `--help`.

  Raises:
    ValueError: a plug is not known, or cannot be loaded.
  """
  flat = _DEFAULTS | {k: v for k, v in (flat or {}).items() if k in _DEFAULTS}
  rows, sections = [], []
  for field in FIELDS:
    if field.name in PLUG_FIELDS:
      names = tuple(plug_fields.known(field.name))
      field = field._replace(
          kind=own_code.Name, choices=names,
          meaning=f'{field.meaning}: {", ".join(names)} or your own, '
                  'FILE.py:NAME')
    rows.append(field)
    if field.name in PLUG_FIELDS:
      own = hyperparameter_fields(field.name, flat[field.name]).values()
      # A section of its own stands behind those of all runs.
      (rows if PLUG_FIELDS[field.name].prefix else sections).extend(own)
    if field.name == 'model.preset':
      rows += _model_fields('model', field.affects)
    if field.name == 'actor.model.preset' and has_actor(flat):
      rows += [*_model_fields('actor.model', field.affects), *ACTOR]
    if field.name == 'off_policy' and flat['off_policy'] == 'jackpot':
      sections += JACKPOT
  rows += sections
  found = {field.name: field._replace(kind=field.kind or type(field.default))
           for field in rows}
  if len(found) < len(rows):
    names = [field.name for field in rows]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(
        f'Two of the functions that the config chooses have the field {twice}: '
        'rename one of the functions.')
  return found


def elsewhere(name: str) -> str:
  """Returns the choice with which a name is a field, such as 'selection=cbs'.

  Args:
    name: dotted, or a section.

  Returns:
    The choice; '' if there is none among the package's own.
  """
  def among(names):
    return any(other == name or other.startswith(f'{name}.') for other in names)

  for field in PLUG_FIELDS:
    names = [plug for plug in plug_fields.known(field)
             if among(plug_of(field, plug).hyperparameters)]
    if names:
      return f'{field}={" or ".join(names)}'
  if among(field.name for field in JACKPOT):
    return 'off_policy=jackpot'
  if name.startswith('actor.') and among(table(
      {'actor.model.preset': 'tiny'})):
    return 'actor.model.hf or actor.model.preset'
  return ''
