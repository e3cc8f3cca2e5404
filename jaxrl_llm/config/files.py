"""Config files: Python with get_config, or the JSON that a run has saved."""

import difflib
import inspect
import json
import pathlib
import re
import types
from typing import Any, Callable, Mapping

from ml_collections import ConfigDict

from jaxrl_llm.base import own_code
from jaxrl_llm.config import values
from jaxrl_llm.config.nested import (
  CHOOSING,
  Config,
  current,
  flatten,
  nested,
  rechosen,
)
from jaxrl_llm.config.sections import MODELS
from jaxrl_llm.config.table import table
from jaxrl_llm.storage import paths

SHIPPED = pathlib.Path(__file__).parents[1] / 'configs'  # those of the package


def base() -> Config:
  """Returns every field at its default, locked."""
  return nested({f.name: f.default for f in table().values()})


def load(spec: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
  """Reads a config file and overrides some of its fields.

  Args:
    spec: 'file.py', 'file.py:arg' or 'file.json'; or the name of a config of
      the package, 'name' or 'name:arg', see `shipped`.
    overrides: dotted field name to value, or to its text as on the command
      line; {'task': 'countdown'} sets `task.name`. Another task, advantage or
      other plug, `model.hf` or `actor.model.hf` leaves out what the file says
      of its own.

  Returns:
    The config, locked, with every field of what it chooses.

  Raises:
    ValueError: one sentence: a missing file, an unknown field, a value of the
      wrong type or out of range.
  """
  path, arg = _split(spec)
  given = from_json(path) if path.endswith('.json') else get_config(path, arg)
  try:
    given = flatten(given)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None
  return complete(given, overrides or {}, name_of(spec))


def complete(
    config: ConfigDict | Mapping[str, Any], overrides: Mapping[str, Any],
    name: str) -> ConfigDict:
  """Makes the config of a run from a config made in code.

  Args:
    config: from `base`, or fields of it; others have their default.
    overrides: dotted field name to value, or to its text.
    name: of the run; its workdir is runs/NAME if the config names none.

  Returns:
    The config, locked, with every field of what it chooses.

  Raises:
    ValueError: an unknown field, or a value that does not fit it.
  """
  flat = overridden(flatten(config), overrides)
  if flat['workdir'] is None:
    flat['workdir'] = f'runs/{name}'
  return nested(flat)


def overridden(
    flat: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
  """Overrides fields, and checks every value by itself.

  Args:
    flat: dotted name to value; what is left out has its default.
    overrides: dotted field name to value, or to its text.

  Returns:
    Dotted name to value, with every field of what is chosen.

  Raises:
    ValueError: an unknown field, or a value that does not fit it.
  """
  overrides = dict(overrides)
  flatten({name: None for name in overrides})  # names are texts
  if 'task' in overrides:
    overrides['task.name'] = overrides.pop('task')
  fields = table(flat)
  flat = {name: field.default for name, field in fields.items()} | dict(flat)
  chosen = {
      name: values.converted(fields[name], overrides[name])
      for name in CHOOSING if name in overrides}
  before = flat
  for section in MODELS.values():
    theirs = _text(flat[f'{section}.hf']).lower()
    if _text(overrides.get(f'{section}.hf', theirs)).lower() != theirs:
      flat = flat | {name: field.default for name, field in fields.items()
                     if name.startswith(f'{section}.')}
  flat = rechosen(before, {**flat, **chosen})
  return values.check({**flat, **overrides})


def _split(spec: str) -> tuple[str, str]:
  """Splits 'FILE:ARG'; the last may be ''."""
  if paths.in_bucket(spec):
    return spec, ''
  path, _, arg = spec.partition(':')
  return path, arg


def _text(value: Any) -> str:
  """Returns a text as it is; 'none' for None, and for what is refused."""
  return value if isinstance(value, str) else 'none'


def name_of(spec: str) -> str:
  """Returns a name for runs of a config: 'configs/a.py:b' gives 'a-b'."""
  path, arg = _split(spec)
  stem = pathlib.Path(path).stem
  return re.sub(r'[^\w.=-]+', '-', f'{stem}-{arg}' if arg else stem)


def title(config: ConfigDict, name: str) -> str:
  """Returns the name to show of a run: its own, its model and its task.

  Args:
    config: whole, with model and task.
    name: from `name_of`, or the user's.
  """
  named, _, _ = config.task.name.partition(':')
  model, task, *sources = [pathlib.PurePath(text).name for text in (
      config.model.hf or config.model.preset, named,
      *config.task.get('path', ()))]
  # Of several sources the first one; the columns are few.
  about = [task.removesuffix('.py'), *(
      source.partition('.')[0] for source in sources[:1])]
  return f'{name}: {model} on {" ".join(about)}'


def to_json(config: ConfigDict) -> str:
  """Returns the config as JSON, one field per line; `load` reads it."""
  return json.dumps(flatten(config), indent=1)


def shipped() -> list[str]:
  """Returns the names of the package's configs, such as 'pkpo/countdown'."""
  names = [file.relative_to(SHIPPED).with_suffix('').as_posix()
           for file in SHIPPED.rglob('*.py')]
  return sorted(name for name in names if not name.startswith('papers/'))


def _shipped(path: str) -> pathlib.Path | None:
  """Returns the file of a config of the package, or None.

  Args:
    path: its name; or `configs/NAME.py`, its path in a checkout, which thus
      works in any folder.
  """
  if path.startswith('configs/') and path.endswith('.py'):
    path = path.removeprefix('configs/').removesuffix('.py')
  file = SHIPPED / f'{path}.py'
  return file if re.fullmatch(r'\w+(/\w+)*', path) and file.is_file() else None


def existing(path: str) -> paths.Path:
  """Returns the file of a config.

  Args:
    path: of the file; or the name of a config of the package. A name without
      suffix is never that of another file or folder.

  Raises:
    FileNotFoundError: there is none in this place of a bucket.
    ValueError: there is none on disk.
  """
  own = _shipped(path)
  if own and not path.endswith('.py'):
    return own
  file = paths.place(own_code.expanded(path))
  if paths.in_bucket(path):
    paths.reachable(path)
    with paths.explained(path):
      known = file.is_file()
    if not known:
      raise FileNotFoundError(f'There is no config file {path}.')
    if file.suffix == '.py':
      raise ValueError(
          f'{path} is in a bucket: a config file of Python must be on disk.')
    return file
  if file.is_file():
    return file
  if own:
    return own
  if file.is_dir():
    raise ValueError(
        f'{path} is a folder: give the path of a config file in it.')
  there = sorted(str(p) for p in file.parent.glob('*.py')) + shipped()
  hint = ''.join(
      f' Did you mean {p}?'
      for p in difflib.get_close_matches(path, there, 1, 0.5))
  raise ValueError(f'There is no config file {path}.{hint}')


def load_file(path: str) -> types.ModuleType:
  """Executes a config file and returns its module; ValueError if none is."""
  file = existing(path)
  if file.suffix != '.py':
    raise ValueError(f'The config file {path} is neither .py nor .json.')
  return own_code.execute(file, f'config_{file.stem}')


def from_json(path: str) -> dict[str, Any]:
  """Returns the fields of a saved config; ValueError if it holds none."""
  file = existing(path)
  with paths.explained(path):
    content = file.read_bytes()
  try:
    given = json.loads(content)
  except UnicodeDecodeError as error:
    raise ValueError(
        f'{path} is not {error.encoding} text: save it as UTF-8.') from None
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{path} is no whole JSON file: {error}.') from None
  if not isinstance(given, dict):
    raise ValueError(f'{path} holds no config: an object of fields is needed.')
  return current(given)


def get_config(path: str, arg: str) -> ConfigDict:
  """Calls the file's get_config."""
  found = called(path, 'get_config', *([arg] if arg else []))
  if not isinstance(found, ConfigDict):
    raise ValueError(f'get_config of {path} gives no ConfigDict: return it.')
  return found


def _takes_nothing(function: Callable[..., Any]) -> bool:
  """Returns whether a function is known to have no parameters."""
  try:
    return not inspect.signature(function).parameters
  except (TypeError, ValueError):  # some functions written in C
    return False


def called(path: str, name: str, *args: Any) -> Any:
  """Calls a function of a config file.

  Args:
    path: of the file.
    name: of the function.
    *args: of the call.

  Returns:
    What the function returns.

  Raises:
    ValueError: there is no such function, or it fails. The message names the
      file, and the line that failed.
  """
  function = getattr(load_file(path), name, None)
  if not callable(function):
    raise ValueError(f'{path} has no function {name}: define it there.')
  if name == 'get_config' and args and _takes_nothing(function):
    raise ValueError(f'{path} takes no argument: leave out :{args[0]}.')
  try:
    given = f' with the argument {args[0]!r}' if args else ''
    with own_code.blamed(f'{name} of {path}{given} fails', at=path):
      return function(*args)
  except ValueError as error:
    # What a config says of a name that it does not have.
    cause = error.__cause__
    while isinstance(cause, AttributeError) and cause.args:
      cause = cause.args[0]
    if not isinstance(cause, KeyError):
      raise
    where = own_code.place(error.__cause__, own_only=True) or path
    raise ValueError(f'{where}: {cause.args[0]}') from error.__cause__
