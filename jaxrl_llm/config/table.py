"""Table of all fields: of the sections, the models and the chosen plugs."""

import dataclasses
import functools
from typing import Any, Mapping

from jaxrl_llm.base.declared import Field, meanings, optional
from jaxrl_llm.config import plugs
from jaxrl_llm.config.plugs import PLUG_FIELDS
from jaxrl_llm.config.sections import MODELS, Section, SECTIONS, SOURCES
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.models.config import ModelConfig, RopeScaling

DEFAULTS = {field.name: field.default for section in SECTIONS
            if not section.choice for field in section.fields()}


def players(flat: Mapping[str, Any]) -> list[str]:
  """Returns the names of a config's players, the policy first.

  Args:
    flat: dotted name to value; what is left out has its default.
  """
  return [POLICY, *(name for name, fields in SOURCES.items()
                    if any(map(flat.get, fields)))]


def has_sft(config: Any) -> bool:
  """Returns whether supervised fine-tuning comes before RL."""
  return bool(config.sft.steps or config.sft.epochs)


def sft_of_lora(config: Any) -> bool:
  """Returns whether it trains LoRA's matrices, not all weights."""
  given = config.sft.lora
  return bool(config.lora.rank and has_sft(config)) and (
      bool(config.model.hf) if given is None else given)


@functools.cache
def _model_fields(section: str, affects: tuple[str, ...]) -> list[Field]:
  """Returns a field for each field of a model; None is the preset's value."""
  said = meanings(ModelConfig, 'Attributes')
  fields = []
  for f in dataclasses.fields(ModelConfig):
    if f.name == 'scores':  # the player says it
      continue
    is_optional, kind = optional(f.type)
    if kind is RopeScaling:
      kind = tuple[float, ...]
      said[f.name] += '; its four numbers'
    bounds = '' if kind in (bool, str) else '[0, inf)' if (
        is_optional or kind == tuple[int, ...]) else (
        '[1, inf)' if kind is int else '(0, inf)')
    fields.append(Field(f'{section}.{f.name}', None, said[f.name], kind | None,
                        bounds, affects=affects))
  return fields


def hyperparameters(chosen_by: str, name: str) -> dict[str, Field]:
  """Returns the fields of a plug's hyperparameters.

  Args:
    chosen_by: the field that names the plug.
    name: the name.

  Raises:
    ValueError: there is no such plug, or one of its hyperparameters cannot be a
      field.
  """
  found = plugs.plug(chosen_by, name).hyperparameters
  for field in found.keys() & DEFAULTS.keys():
    raise ValueError(
        f'Option {found[field].parameter} of {chosen_by}={name} would be the '
        f'field {field}, which there is already: rename it.')
  return found


def chosen(section: Section, flat: Mapping[str, Any]) -> bool:
  """Returns whether a config has a section."""
  names, _, value = section.choice.partition('=')
  return not names or any(
      flat[name] == value if value else flat[name]
      for name in names.split(' or '))


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
  flat = DEFAULTS | {k: v for k, v in (flat or {}).items() if k in DEFAULTS}
  rows, own_sections = [], []
  for section in SECTIONS:
    if not chosen(section, flat):
      continue
    for field in section.fields():
      if field.name in PLUG_FIELDS:
        names = tuple(plugs.known(field.name))
        field = field._replace(choices=names, meaning=(
            f'{field.meaning}: {", ".join(names)} or your own, FILE.py:NAME'))
      rows.append(field)
      if field.name in PLUG_FIELDS:
        own = hyperparameters(field.name, flat[field.name]).values()
        # A section of its own stands behind those of all runs.
        (rows if PLUG_FIELDS[field.name].prefix else own_sections).extend(own)
    if section.name in map(MODELS.get, players(flat)):
      rows += _model_fields(section.name, section.affects)
  rows += own_sections
  found = {field.name: field for field in rows}
  if len(found) < len(rows):
    names = [field.name for field in rows]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(
        f'Two of the functions that the config chooses have the field {twice}: '
        'rename one of the functions.')
  return found


def elsewhere(name: str) -> str:
  """Returns the choice that would add a field, such as 'selection=cbs'.

  Args:
    name: dotted, or a section.

  Returns:
    The choice; '' if there is none among the package's own.
  """
  def among(names):
    return any(other == name or other.startswith(f'{name}.') for other in names)

  for field in PLUG_FIELDS:
    names = [plug for plug in plugs.known(field)
             if among(plugs.plug(field, plug).hyperparameters)]
    if names:
      return f'{field}={" or ".join(names)}'
  for player, fields in SOURCES.items():
    if among(x.name for x in _model_fields(MODELS[player], ())):
      return ' or '.join(fields)
  return next((one.choice for one in SECTIONS if one.choice and among(
      field.name for field in one.fields())), '')
