"""Hyperparameters of a function, from its signature and docstring.

Every parameter that the run does not pass is a hyperparameter, and needs a
default. Its annotation is its type: bool, int, float, str, a tuple of one of
them, `| None`, or a `Literal` of texts, the only choices. `Annotated` adds
texts:

  '(0, 1]'     interval that the value (or each of a tuple) must lie in
  'schedule'   a whole number, or step:value pairs such as 0:8,1500:1; the
               function gets the value of the step, traced
  'free'       another value is allowed when a run goes on
  'problems'   another value chooses other problems of a task: an evaluation
               keeps its responses

The meaning is the parameter's entry in the docstring's section Args. Where a
parameter is annotated with a dataclass, the dataclass's fields are the
hyperparameters (their meanings are in its section Attributes), and the function
gets an instance.
"""

import dataclasses
import inspect
import re
import types
import typing
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from jaxrl_llm.base import own_code, schedules

_AFFECTS = {'free': (), 'problems': ('weights', 'sft')}
_KINDS = (bool, int, float, str, own_code.Name, own_code.Path,
          own_code.FileText, schedules.Steps)


class Hyperparameter(NamedTuple):
  """One hyperparameter; the attributes are those of `config.field.Field`.

  Attributes:
    name: of the parameter.
    default: value by default.
    meaning: text of the docstring, on one line.
    kind: type.
    range: interval; '' for any value.
    choices: the only texts; () for any.
    affects: what another value changes; None for all that the plug does.
    struct: parameter that takes the dataclass of which this is a field, or ''.
  """
  name: str
  default: Any
  meaning: str
  kind: Any
  range: str = ''
  choices: tuple[str, ...] = ()
  affects: tuple[str, ...] | None = None
  struct: str = ''

  @property
  def scheduled(self) -> bool:
    """Whether the value may change over a run."""
    return self.kind is schedules.Steps


def meanings(documented: Any, section: str) -> dict[str, str]:
  """Returns name to meaning, from a section of a Google docstring.

  Args:
    documented: function or class.
    section: its title, such as 'Args'.
  """
  _, _, text = (inspect.getdoc(documented) or '').partition(f'{section}:\n')
  entries = re.findall(
      r'^ {2}(\w[\w, ]*): (.*(?:\n {4}.*)*)', text, re.MULTILINE)
  return {
      name.strip(): ' '.join(said.replace('`', '').split()).rstrip('.')
      for names, said in entries for name in names.split(',')}


def optional(kind: Any) -> tuple[bool, Any]:
  """Returns whether a type allows None, and the type of other values."""
  args = typing.get_args(kind)
  if type(None) not in args:
    return False, kind
  return True, next(a for a in args if a is not type(None))


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the annotated types of a function's parameters, by name."""
  return typing.get_type_hints(function)


def hyperparameters(
    function: Callable[..., Any], given: Sequence[str], keywords: Sequence[str],
    name: str) -> list[Hyperparameter]:
  """Returns the hyperparameters of a function.

  Args:
    function: the plug.
    given: what the run passes by position; the function may use other names.
    keywords: what the run passes by name, to a function that takes it.
    name: of the plug, such as 'advantage=mine.py:sharper', for errors.

  Raises:
    ValueError: one has no default, or a type without a text form.
  """
  try:
    parameters = list(inspect.signature(function).parameters.values())
    kinds = typing.get_type_hints(function, include_extras=True)
  except Exception as error:  # an annotation may be anything
    raise ValueError(
        own_code.failure(f'The signature of {name} fails', error)) from error
  said, found = meanings(function, 'Args'), []
  for position, parameter in enumerate(parameters):
    kind = kinds.get(parameter.name)
    if dataclasses.is_dataclass(kind):
      found += _of_dataclass(kind, parameter.name, name)
    elif not (position < len(given) or parameter.name in keywords
              or parameter.kind in (
                  parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)):
      found.append(_one(
          parameter.name, parameter.default, kind, said, name))
  return found


def _of_dataclass(
    cls: type, struct: str, name: str) -> list[Hyperparameter]:
  """Returns the fields of a dataclass that the parameter `struct` takes."""
  said = meanings(cls, 'Attributes')
  kinds = typing.get_type_hints(cls, include_extras=True)
  found = []
  for field in dataclasses.fields(cls):
    default = field.default
    if default is dataclasses.MISSING:
      default = inspect.Parameter.empty
    one = _one(field.name, default, kinds[field.name], said, name)
    found.append(one._replace(struct=struct))
  return found


def _one(
    leaf: str, default: Any, kind: Any, said: Mapping[str, str],
    name: str) -> Hyperparameter:
  """Returns one hyperparameter; ValueError if a config cannot hold it."""
  if default is inspect.Parameter.empty:
    raise ValueError(
        f'Option {leaf} of {name} has no default: give it one.')
  if leaf == 'name':
    raise ValueError(
        f'Option name of {name} has the name of the field that chooses it: '
        'rename it.')
  kind, *notes = typing.get_args(kind) if (
      typing.get_origin(kind) is typing.Annotated) else (kind,)
  kind = type(default) if kind in (None, Any) else kind
  if typing.get_origin(kind) in (typing.Union, types.UnionType) and (
      float in typing.get_args(kind)):  # or an array: it may be traced
    kind = float | None if optional(kind)[0] else float
  choices = ()
  if typing.get_origin(kind) is typing.Literal:
    kind, choices = str, typing.get_args(kind)
  if 'schedule' in notes:
    if kind is not int:
      raise ValueError(
          f'Option {leaf} of {name} is a schedule, but no int: make it one, '
          'and scale it in the function.')
    kind, default = schedules.Steps, schedules.canonical(default)
  made = Hyperparameter(
      leaf, default, said.get(leaf, ''), kind,
      next((note for note in notes if note[:1] in ('(', '[')), ''), choices,
      next((_AFFECTS[note] for note in notes if note in _AFFECTS), None))
  _, bare = optional(made.kind)
  if typing.get_origin(bare) is tuple:
    elements = {*typing.get_args(bare)} - {...}
    bare = elements.pop() if len(elements) == 1 else None
  if bare not in _KINDS:
    raise ValueError(
        f'Option {leaf} of {name} has the type '
        f'{inspect.formatannotation(made.kind)}: use bool, int, float, str, '
        'tuple[TYPE, ...], or one of them | None.')
  return made
