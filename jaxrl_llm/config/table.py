"""Table of all fields: of the run, of the model and of the task."""

import dataclasses
import inspect
import re
import typing
from typing import Any

from jaxrl_llm import schedules, tasks
from jaxrl_llm.config.field import Field
from jaxrl_llm.config.fields import EVERYTHING, FIELDS
from jaxrl_llm.models.config import ModelConfig, RopeScaling
from jaxrl_llm.tasks import modules

_KINDS = (
    bool, int, float, str, modules.Name, modules.Path, schedules.Steps)


def optional(kind: Any) -> tuple[bool, Any]:
  """Returns whether a type allows None, and the type of other values."""
  args = typing.get_args(kind)
  if type(None) not in args:
    return False, kind
  return True, next(a for a in args if a is not type(None))


def _meanings(cls: type) -> dict[str, str]:
  """Returns name to meaning, from the Attributes section of a docstring."""
  _, _, section = (inspect.getdoc(cls) or '').partition('Attributes:\n')
  entries = re.findall(
      r'^ {2}(\w+): (.*(?:\n {4}.*)*)', section, re.MULTILINE)
  return {
      name: ' '.join(text.replace('`', '').split()).rstrip('.')
      for name, text in entries}


def _model_fields(section: str, affects: tuple[str, ...]) -> list[Field]:
  """Returns a field for each field of a model; None is the preset's value."""
  meanings = _meanings(ModelConfig)
  fields = []
  for f in dataclasses.fields(ModelConfig):
    is_optional, kind = optional(f.type)
    if kind is RopeScaling:
      kind = tuple[float, ...]
      meanings[f.name] += '; its four numbers'
    bounds = '' if kind in (bool, str) else '[0, inf)' if is_optional else (
        '[1, inf)' if kind is int else '(0, inf)')
    fields.append(Field(
        f'{section}.{f.name}', None, meanings[f.name], bounds, kind | None,
        affects=affects))
  return fields


def options_of(name: str) -> type:
  """Returns the `Options` of a task; ValueError if there is no such task."""
  return tasks.module(name).Options


def _task_fields(name: str) -> list[Field]:
  """Returns the fields of a task's `Options`.

  Their metadata may hold `choices`, `affects` and `kind`, see `Field`.

  Raises:
    ValueError: an option has no default, or a type without a text form.
  """
  options = options_of(name)
  meanings, types = _meanings(options), typing.get_type_hints(options)
  rows = []
  for f in dataclasses.fields(options):
    if f.default is dataclasses.MISSING:
      raise ValueError(
          f'Option {f.name} of task.name={name} has no default: give it one.')
    if f.name == 'name':
      raise ValueError(
          f'Option name of task.name={name} has the name of the field that '
          'chooses the task: rename it.')
    row = Field(f'task.{f.name}', f.default, meanings.get(f.name, ''), **{
        'kind': types[f.name], 'affects': EVERYTHING, **f.metadata})
    _, kind = optional(row.kind)
    if typing.get_origin(kind) is tuple:
      kind = {*typing.get_args(kind)} - {...}
      kind = kind.pop() if len(kind) == 1 else None
    if kind not in _KINDS:
      raise ValueError(
          f'Option {f.name} of task.name={name} has the type '
          f'{inspect.formatannotation(row.kind)}: use bool, int, float, str, '
          'tuple[TYPE, ...], or one of them | None.')
    rows.append(row)
  return rows


def table(task: str | None = None) -> dict[str, Field]:
  """Returns every field of a config, section by section.

  Args:
    task: the task whose options to include; None leaves them out.

  Returns:
    Dotted name to Field, in the order of `--help`.

  Raises:
    ValueError: the task is not known.
  """
  rows = []
  for field in FIELDS:
    is_task = field.name == 'task.name'
    kind = modules.Name if is_task else field.kind or type(field.default)
    rows.append(field._replace(kind=kind))
    if is_task and task is not None:
      rows += _task_fields(task)
    if field.name in ('model.preset', 'actor.model.preset'):
      rows += _model_fields(field.name.rpartition('.')[0], field.affects)
  return {field.name: field for field in rows}
