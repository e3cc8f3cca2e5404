"""The fields of a config that take plugs, and what the run passes to each."""

import functools
import importlib
import inspect
import typing
from typing import Any, Callable, Mapping, NamedTuple

from jaxrl_llm.base import declared, own_code, plain


class PlugField(NamedTuple):
  """A field that takes a plug.

  Attributes:
    registries: 'MODULE:NAME' of dictionaries of the package's own plugs: name
      to a function, or to its 'MODULE:NAME'.
    given: what the run passes by position.
    keywords: what the run passes by name, to a function that takes it.
    prefix: of the fields of the hyperparameters; '' for a section of the plug's
      name.
    shared: whether a field that two plugs have is the same thing, so that it
      keeps its value when another plug is chosen.
    affects: what another value of a hyperparameter changes, if its declaration
      says nothing.
  """
  registries: tuple[str, ...]
  given: tuple[str, ...]
  keywords: tuple[str, ...] = ()
  prefix: str = ''
  shared: bool = False
  affects: tuple[str, ...] = (declared.WEIGHTS,)


PLUG_FIELDS = {
    'curriculum': PlugField(('jaxrl_llm.curriculum:CURRICULA',), ('sizes',)),
    'selection': PlugField(('jaxrl_llm.selection:SELECTIONS',), ('sizes',)),
    'advantage': PlugField(
        ('jaxrl_llm.ops.advantages:ADVANTAGES',
         'jaxrl_llm.ops.pkpo:ADVANTAGES'),
        ('rewards',), ('where', 'per_group', 'separate', 'weights')),
    'task.name': PlugField(
        ('jaxrl_llm.tasks:TASKS',), ('tokenizer',), prefix='task.',
        affects=(declared.WEIGHTS, declared.SFT, declared.EVALUATION)),
    'loss.objective': PlugField(
        ('jaxrl_llm.ops.policy_losses:OBJECTIVES',),
        ('new', 'old', 'advantages', 'mask'), prefix='loss.', shared=True),
    'loss.importance': PlugField(
        ('jaxrl_llm.ops.importance:CORRECTIONS',), ('log_ratio', 'mask'),
        prefix='loss.importance_', shared=True),
}


class Plug(NamedTuple):
  """A function that a config names.

  Attributes:
    field: the field that names it.
    name: the name.
    function: the function.
    hyperparameters: name of each hyperparameter's field to the field.
    keywords: what it takes of `PlugField.keywords`.
    packaged: whether it is one of the package's own.
  """
  field: str
  name: str
  function: Callable[..., Any]
  hyperparameters: dict[str, declared.Field]
  keywords: tuple[str, ...]
  packaged: bool

  def guarded(self) -> Callable[..., Any]:
    """Returns the function; the user's own fails with one sentence."""
    if self.packaged:
      return self.function
    return own_code.guarded(f'{self.field}={self.name}', self.function)

  def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments for the function.

    Args:
      values: field to value, at least of the hyperparameters.
    """
    arguments, structs = {}, {}
    for name, field in self.hyperparameters.items():
      into = structs.setdefault(
          field.struct, {}) if field.struct else arguments
      into[field.parameter] = values[name]
    if structs:
      types = typing.get_type_hints(self.function)
      # A ValueError is the plug's own sentence about a value.
      with own_code.blamed(
          f'Options of {self.field}={self.name} fail', ValueError):
        arguments.update({
            name: types[name](**given) for name, given in structs.items()})
    return arguments


@functools.cache
def known(field: str) -> dict[str, Any]:
  """Returns the package's own plugs of a field: name to function or name."""
  found = {}
  for registry in PLUG_FIELDS[field].registries:
    module, _, name = registry.partition(':')
    found.update(getattr(importlib.import_module(module), name))
  return found


def plug(field: str, name: str) -> Plug:
  """Returns the plug of a name.

  Args:
    field: one of PLUG_FIELDS.
    name: one of `known`, `MODULE:NAME` or `FILE.py:NAME`. Without NAME, it is
      the function `create`.

  Raises:
    ValueError: there is no such plug, or it has a parameter that no config can
      hold.
  """
  if not isinstance(name, str):
    raise ValueError(f'{field}={plain.shown(name)} must be a text (str).')
  if plain.text(name) != name:
    raise ValueError(
        f'{field}={plain.shown(name)} is not valid Unicode: correct it.')
  if name in known(field):
    return _own_plug(field, name)
  if '.' not in name and ':' not in name:
    raise ValueError(
        f'{field}={name} is not known.{own_code.closest(name, [*known(field)])}'
        ' Your own is FILE.py:NAME.')
  name = own_code.absolute(name)
  if field == 'task.name' and ':' not in name and (
      {'reset', 'step'} & (own := vars(own_code.load(name))).keys()
      and 'create' not in own):  # an environment
    task = importlib.import_module('jaxrl_llm.environments.task')
    return _plug(field, name, task.maker(name), '', packaged=False)
  function = own_code.function(name if ':' in name else f'{name}:create')
  leaf = getattr(function, '__name__', type(function).__name__)
  return _plug(field, name, function, leaf, packaged=False)


@functools.cache
def _own_plug(field: str, name: str) -> Plug:
  function = known(field)[name]
  if isinstance(function, str):
    function = own_code.function(function)
  return _plug(field, name, function, name, packaged=True)


def _plug(
    field: str, name: str, function: Callable[..., Any], section: str, *,
    packaged: bool) -> Plug:
  """Returns a plug whose fields, without a prefix, are in a section."""
  takes, plug_name = PLUG_FIELDS[field], f'{field}={name}'
  fields = {}
  for one in declared.of_function(
      function, takes.given, takes.keywords, plug_name, affects=takes.affects,
      chosen_by=field):
    if one.name == 'name':
      raise ValueError(
          f'Option name of {plug_name} has the name of the field that chooses '
          'it: rename it.')
    one = one._replace(name=f'{takes.prefix or f"{section}."}{one.name}')
    fields[one.name] = one
  return Plug(field, name, function, fields, tuple(
      name for name in takes.keywords
      if name in inspect.signature(function).parameters), packaged)


def chosen(
    field: str, values: Mapping[str, Any]) -> tuple[Plug, dict[str, Any]]:
  """Returns the plug that a config chooses, and its arguments.

  Args:
    field: one of PLUG_FIELDS.
    values: field to value, of the whole config.
  """
  found = plug(field, values[field])
  return found, found.bound(values)
