"""Fields of a config, from the one place that declares them.

A field is declared by a parameter of a function that a config chooses, or by a
field of a dataclass: its name, its default and its type are those of Python.
The type is bool, int, float, str, a tuple of one of them, `| None`, or a
`Literal` of texts, the only choices. `Annotated` adds notes:

  '(0, 1]'     interval that the value (or each of a tuple) must lie in
  'schedule'   a whole number, or step:value pairs such as 0:8,1500:1; the
               function gets the value of the step, traced
  'free'       a run may go on with another value
  'problems'   another value gives a task other problems, each judged as before:
               an evaluation keeps the responses that it has
  a tuple      effects of another value, from AFFECTS

The meaning is the name's entry in the docstring, in the section Args of a
function or Attributes of a dataclass. A parameter that is annotated with a
dataclass stands for the fields of the dataclass; the function gets an instance.
Parameters that the run itself passes, such as rewards, are not fields.
"""

import dataclasses
import inspect
import re
import types
import typing
from typing import Any, Callable, Collection, Iterator, NamedTuple, Sequence

from jaxrl_llm.base import own_code, schedules

# Values of `Field.affects`.
WEIGHTS = 'weights'  # What RL learns: fixed for as long as a run goes on.
SFT = 'sft'  # What supervised fine-tuning learns.
ROUNDING = 'rounding'  # The last bits of that, by the order of sums.
EVALUATION = 'evaluation'  # Responses of an evaluation, and their verdicts.
AFFECTS = (WEIGHTS, SFT, ROUNDING, EVALUATION)
_AFFECTS = {'free': (), 'problems': (WEIGHTS, SFT)}

AUTO = 'auto'


class Lengths(tuple[int, ...]):
  """Type of a field that holds lengths, or AUTO: the run chooses them."""


class Texts(tuple[str, ...]):
  """Type of a field that holds texts with any characters."""


class Automatic(int):
  """Type of a field that holds a whole number, or AUTO: the run chooses it."""


_KINDS = (bool, int, float, str, own_code.Name, own_code.Path,
          own_code.FileText, schedules.Steps, schedules.Floats, Lengths, Texts,
          Automatic)


class Field(NamedTuple):
  """One field.

  Attributes:
    name: dotted, as on the command line after `--config.`.
    default: the value in `config.base()`.
    meaning: text of the docstring, on one line.
    kind: type of the value, such as `float | None` or `tuple[int, ...]`.
    range: interval that numbers (or each number of a tuple) must lie in, such
      as '(0, 1]'; '' for any.
    choices: the known values; () for any. A field of kind `own_code.Name` also
      takes a function of the user's.
    affects: effects of another value, from AFFECTS. () has no lasting effect:
      where the run writes, how often, on which devices.
    chosen_by: field that chooses the plug of which this is a hyperparameter, or
      ''.
    parameter: name where it is declared.
    struct: parameter that takes the dataclass of which this is a field, or ''.
  """
  name: str
  default: Any
  meaning: str
  kind: Any
  range: str = ''
  choices: tuple[str, ...] = ()
  affects: tuple[str, ...] = (WEIGHTS,)
  chosen_by: str = ''
  parameter: str = ''
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


def of_class(cls: type, name: str = '', **known: Any) -> list[Field]:
  """Returns the fields that a dataclass declares, those of its bases first.

  Args:
    cls: the dataclass. A base has the meanings of its own fields.
    name: of what has it, such as 'task.name=mine.py', for errors.
    **known: attributes of each Field where it says nothing itself.

  Raises:
    ValueError: a field has no default, or a type without a text form.
  """
  said: dict[str, str] = {}
  for base in cls.__mro__:
    if dataclasses.is_dataclass(base):
      said = meanings(base, 'Attributes') | said
  kinds = typing.get_type_hints(cls, include_extras=True)
  return [
      _one(field.name, field.default, kinds[field.name],
           said.get(field.name, ''), name or cls.__name__, known)
      for field in dataclasses.fields(cls)]


def parameters(
    function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
  """Returns the parameters of a plug, whose name is for errors."""
  with own_code.blamed(f'The signature of {name} fails'):
    return [*inspect.signature(function).parameters.values()]


def of_function(
    function: Callable[..., Any], given: Sequence[str],
    keywords: Collection[str], name: str, **known: Any) -> Iterator[Field]:
  """Yields the fields that a function's parameters declare.

  Args:
    function: the plug.
    given: what the run passes by position; the function may use other names.
    keywords: what the run passes by name, to a function that takes it.
    name: of the plug, such as 'advantage=mine.py:sharper', for errors.
    **known: attributes of each Field where it says nothing itself.

  Raises:
    ValueError: one has no default, or a type without a text form.
  """
  taken = parameters(function, name)
  with own_code.blamed(f'The signature of {name} fails'):
    kinds = typing.get_type_hints(function, include_extras=True)
  said = meanings(function, 'Args')
  for position, parameter in enumerate(taken):
    kind = kinds.get(parameter.name)
    if dataclasses.is_dataclass(kind):
      yield from of_class(kind, name, struct=parameter.name, **known)
    elif not (position < len(given) or parameter.name in keywords
              or parameter.kind in (
                  parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)):
      yield _one(parameter.name, parameter.default, kind,
                 said.get(parameter.name, ''), name, known)


def _one(
    leaf: str, default: Any, kind: Any, meaning: str, name: str,
    known: dict[str, Any]) -> Field:
  """Returns one field; ValueError if a config cannot hold it."""
  if default is inspect.Parameter.empty or default is dataclasses.MISSING:
    raise ValueError(f'Option {leaf} of {name} has no default: give it one.')
  kind, *notes = typing.get_args(kind) if (
      typing.get_origin(kind) is typing.Annotated) else (kind,)
  kind = type(default) if kind in (None, Any) else kind
  if typing.get_origin(kind) in (typing.Union, types.UnionType) and (
      float in typing.get_args(kind)):  # or an array: it may be traced
    kind = float | None if optional(kind)[0] else float
  can_be_none, bare = optional(kind)
  choices = ()
  if typing.get_origin(bare) is typing.Literal:
    kind, choices = str | None if can_be_none else str, typing.get_args(bare)
  if 'schedule' in notes:
    if kind is not int:
      raise ValueError(
          f'Option {leaf} of {name} is a schedule, but no int: make it one, '
          'and scale it in the function.')
    kind, default = schedules.Steps, schedules.canonical(default)
  _, bare = optional(kind)
  if typing.get_origin(bare) is tuple:
    elements = {*typing.get_args(bare)} - {...}
    bare = elements.pop() if len(elements) == 1 else None
  if bare not in _KINDS:
    raise ValueError(
        f'Option {leaf} of {name} has the type '
        f'{inspect.formatannotation(kind)}: use bool, int, float, str, '
        'tuple[TYPE, ...], or one of them | None.')
  for note in notes:
    if isinstance(note, tuple):
      known = known | {'affects': note}
    elif isinstance(note, str) and note in _AFFECTS:
      known = known | {'affects': _AFFECTS[note]}
    elif isinstance(note, str) and note[:1] in ('(', '['):
      known = known | {'range': note}
  return Field(leaf, default, meaning, kind, choices=choices, parameter=leaf,
               **known)
