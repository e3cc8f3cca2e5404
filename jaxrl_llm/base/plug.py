"""Plugs: functions that a config chooses by name, and their fields."""

import dataclasses
import functools
from types import ModuleType
import typing
from typing import Any, Callable, Collection, Mapping, NamedTuple

from jaxrl_llm.base import declared, own_code, plain


@dataclasses.dataclass(frozen=True, eq=False)
class PlugField:
  """A field that takes a plug.

  Attributes:
    field: its name.
    registry: () -> `known`, which may import JAX.
    given: what the run passes by position.
    keywords: what the run passes by name, to a function that takes it.
    columns: () -> names of columns of rows that a function may take by name;
      those that it needs have no default, others have None.
    prefix: beginning of the names of the hyperparameters' fields; '' for the
      plug's own name and a dot.
    shared: whether fields of the same name mean the same in all plugs, and keep
      their value when another plug is chosen.
    affects: effects of another value, for hyperparameters without a note about
      it.
    of_module: (name, module) -> plug of a module without `create`, or None if
      the module cannot be one.
  """
  field: str
  registry: Callable[[], Mapping[str, Any]]
  given: tuple[str, ...]
  keywords: tuple[str, ...] = ()
  columns: Callable[[], Collection[str]] = frozenset
  prefix: str = ''
  shared: bool = False
  affects: tuple[str, ...] = (declared.WEIGHTS,)
  of_module: Callable[
      [str, ModuleType], Callable[..., Any] | None] | None = None

  @functools.cached_property
  def known(self) -> Mapping[str, Any]:
    """The package's own plugs: name to a function, or to its 'MODULE:NAME'."""
    return self.registry()


class Plug(NamedTuple):
  """A function that a config names.

  Attributes:
    field: the field that names it.
    name: the name.
    function: the function.
    hyperparameters: name of each hyperparameter's field to the field.
    keywords: what it takes of `PlugField.keywords`.
    columns: name of each column that it takes to whether it needs it.
    packaged: whether it is one of the package's own.
  """
  field: str
  name: str
  function: Callable[..., Any]
  hyperparameters: dict[str, declared.Field]
  keywords: tuple[str, ...]
  columns: dict[str, bool]
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
      into = structs.setdefault(field.struct, {}) if field.struct else arguments
      into[field.parameter] = values[name]
    if structs:
      types = typing.get_type_hints(self.function)
      # A ValueError is the plug's own sentence about a value.
      with own_code.blamed(
          f'Options of {self.field}={self.name} fail', ValueError):
        arguments.update({
            name: types[name](**given) for name, given in structs.items()})
    return arguments


# Names that other libraries have for a loss: nearest would be another one.
_NAMED = dict.fromkeys(('ppo', 'grpo', 'dapo', 'dr_grpo'), 'clip')


def plug(takes: PlugField, name: str) -> Plug:
  """Returns the plug of a name.

  Args:
    takes: the field that takes it.
    name: one of `PlugField.known`, `MODULE:NAME` or `FILE.py:NAME`. Without
      NAME, it is the function `create`.

  Raises:
    ValueError: there is no such plug, or it has a parameter that no config can
      hold.
  """
  field = takes.field
  if not isinstance(name, str):
    raise ValueError(f'{field}={plain.shown(name)} must be a text (str).')
  if plain.text(name) != name:
    raise ValueError(
        f'{field}={plain.shown(name)} is not valid Unicode: correct it.')
  if name in takes.known:
    return _own_plug(takes, name)
  if '.' not in name and ':' not in name:
    raise ValueError(
        f'{field}={name} is not known.'
        + (own_code.example(name) or own_code.closest(
            _NAMED.get(name, name), [*takes.known]))
        + ' Your own is FILE.py:NAME.')
  name = own_code.absolute(name)
  if takes.of_module and ':' not in name and (
      'create' not in vars(module := own_code.load(name))):
    if function := takes.of_module(name, module):
      return _plug(takes, name, function, '', packaged=False)
  function = own_code.function(name if ':' in name else f'{name}:create')
  leaf = getattr(function, '__name__', type(function).__name__)
  return _plug(takes, name, function, leaf, packaged=False)


@functools.cache
def _own_plug(takes: PlugField, name: str) -> Plug:
  function = takes.known[name]
  if isinstance(function, str):
    function = own_code.function(function)
  return _plug(takes, name, function, name, packaged=True)


def _plug(
    takes: PlugField, name: str, function: Callable[..., Any], section: str, *,
    packaged: bool) -> Plug:
  """Returns a plug whose fields, without a prefix, are in a section."""
  plug_name, fields = f'{takes.field}={name}', {}
  parameters, known = declared.parameters(function, plug_name), takes.columns()
  columns = {}
  for one in parameters[len(takes.given):]:
    if one.name in known and one.default in (one.empty, None):
      columns[one.name] = one.default is one.empty
    elif known and one.default is one.empty and not (
        one.name in takes.keywords or dataclasses.is_dataclass(one.annotation)
        or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)):
      raise ValueError(
          f'Option {one.name} of {plug_name} has no default: give it one, or '
          f'the name of a column.{own_code.closest(one.name, sorted(known))}')
  for one in declared.of_function(
      function, takes.given, {*takes.keywords, *columns}, plug_name,
      affects=takes.affects, chosen_by=takes.field):
    if one.name == 'name':
      raise ValueError(
          f'Option name of {plug_name} has the name of the field that chooses '
          'it: rename it.')
    one = one._replace(name=f'{takes.prefix or f"{section}."}{one.name}')
    fields[one.name] = one
  taken = {one.name for one in parameters}
  return Plug(
      takes.field, name, function, fields,
      tuple(name for name in takes.keywords if name in taken), columns,
      packaged)
