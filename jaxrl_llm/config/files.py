"""Config files: Python with get_config, or the JSON that a run has saved."""

import difflib
import json
import pathlib
import re
import types
from typing import Any, Mapping

from absl import logging
from ml_collections import ConfigDict

from jaxrl_llm.config import checks, values
from jaxrl_llm.config.fields import REMOVED
from jaxrl_llm.config.model import SECTIONS
from jaxrl_llm.config.nested import flatten, nested, renamed
from jaxrl_llm.config.table import table
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import modules


def base() -> ConfigDict:
  """Returns every field at its default.

  The config is locked, except for the options in `task`.
  """
  config = nested({f.name: f.default for f in table().values()})
  config.task.unlock()
  return config


def load(spec: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
  """Reads a config file and overrides some of its fields.

  Args:
    spec: 'file.py', 'file.py:arg' or 'file.json'.
    overrides: dotted field name to value, or to its text as on the command
      line. A section with a `name` takes it: {'task': 'countdown'}. Another
      task, `model.hf` or `actor.model.hf` leaves out what the file says of
      its own.

  Returns:
    The config, locked, with every option of its task.

  Raises:
    ValueError: one sentence: a missing file, an unknown field, a value of the
      wrong type or out of range.
  """
  path, arg = _split(spec)
  is_json = path.endswith('.json')
  given = from_json(path) if is_json else flatten(get_config(path, arg))
  try:
    given = renamed(given)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None
  if is_json:
    given = _without_ignored(path, given)
  return complete(given, overrides or {}, name_of(spec))


def complete(
    config: ConfigDict | Mapping[str, Any], overrides: Mapping[str, Any],
    name: str) -> ConfigDict:
  """Makes the config of a run from a config made in code.

  Args:
    config: from `base`, or fields of it; others have their default.
    overrides: see `load`.
    name: of the run; its workdir is runs/NAME if the config names none.

  Returns:
    The config, locked, with every option of its task.

  Raises:
    ValueError: see `load`.
  """
  flat = overridden(
      {**flatten(base()), **renamed(flatten(config))}, overrides)
  if flat['workdir'] is None:
    flat['workdir'] = f'runs/{name}'
  return nested(flat)


def overridden(
    flat: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
  """Overrides fields, and checks every value by itself.

  Args:
    flat: dotted name to value.
    overrides: see `load`.

  Returns:
    Dotted name to value, with every option of the task.

  Raises:
    ValueError: see `load`.
  """
  overrides = renamed(overrides)
  if 'task' in overrides:
    overrides['task.name'] = overrides.pop('task')
  # As text, since the path of one file may be relative or absolute.
  theirs = modules.absolute(_text(flat['task.name']))
  chosen = modules.absolute(_text(overrides.get('task.name', theirs)))
  if chosen != theirs:
    flat = {k: v for k, v in flat.items() if not k.startswith('task.')}
  for section in SECTIONS:
    theirs = _text(flat[f'{section}.hf']).lower()
    if _text(overrides.get(f'{section}.hf', theirs)).lower() != theirs:
      flat = {k: v for k, v in flat.items() if not k.startswith(f'{section}.')}
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
    config: of the run.
    name: from `name_of`, or the user's.
  """
  model, task, *sources = [pathlib.PurePath(text).name for text in (
      config.model.hf or config.model.preset, config.task.name,
      *config.task.get('path', ()))]
  # Of several sources the first one; the columns are few.
  about = [task.removesuffix('.py'), *(
      source.partition('.')[0] for source in sources[:1])]
  return f'{name}: {model} on {" ".join(about)}'


def to_json(config: ConfigDict) -> str:
  """Returns the config as JSON, one field per line; `load` reads it."""
  return json.dumps(flatten(config), indent=1)


def _existing(path: str) -> paths.Path:
  file = paths.place(modules.expanded(path))
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
  if file.is_dir():
    raise ValueError(
        f'{path} is a folder: give the path of a config file in it.')
  there = sorted(str(p) for p in file.parent.glob('*.py'))
  hint = ''.join(
      f' Did you mean {p}?'
      for p in difflib.get_close_matches(path, there, 1, 0.5))
  raise ValueError(f'There is no config file {path}.{hint}')


def _without_ignored(path: str, flat: dict[str, Any]) -> dict[str, Any]:
  """Leaves out hyperparameters that a saved run was given, but never used."""
  ignored = checks.ignored({**flatten(base()), **flat})
  for name, reason in ignored.items():
    logging.warning(
        '%s: %s=%s had no effect with %s: it is left out.', path, name,
        values.to_text(flat[name]), reason)
  return {k: v for k, v in flat.items() if k not in ignored}


def load_file(path: str) -> types.ModuleType:
  """Executes a config file and returns its module; ValueError if none is."""
  file = _existing(path)
  if file.suffix != '.py':
    raise ValueError(f'The config file {path} is neither .py nor .json.')
  return modules.execute(file, f'config_{file.stem}')


def from_json(path: str) -> dict[str, Any]:
  """Returns the fields of a saved config; ValueError if it holds none."""
  file = _existing(path)
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
  flat = flatten(given)
  for name in flat.keys() & REMOVED.keys():
    logging.warning(
        '%s: %s is no field any more and left out: %s.', path, name,
        REMOVED[name])
  return {name: value for name, value in flat.items() if name not in REMOVED}


def get_config(path: str, arg: str) -> ConfigDict:
  """Calls the file's get_config."""
  found = called(path, 'get_config', *([arg] if arg else []))
  if not isinstance(found, ConfigDict):
    raise ValueError(f'get_config of {path} gives no ConfigDict: return it.')
  return found


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
  try:
    given = f' with the argument {args[0]!r}' if args else ''
    with modules.blamed(f'{name} of {path}{given} fails'):
      return function(*args)
  except ValueError as error:
    # What a locked ConfigDict says of a name it does not have.
    field = re.search(r'Key "(\w+)" does not exist', str(error))
    if not field:
      raise
    raise ValueError(
        f'{modules.place(error.__cause__)}: '
        f'{values.unknown(field[1], table())}') from error.__cause__
