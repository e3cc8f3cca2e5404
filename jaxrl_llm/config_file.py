"""Config files as they are read: Python with get_config, or a run's JSON."""

import difflib
import importlib.util
import json
import pathlib
import re
import types
from typing import Any

from ml_collections import ConfigDict

from jaxrl_llm import fields


def _existing(path: str) -> pathlib.Path:
  file = pathlib.Path(path)
  if file.is_file():
    return file
  there = sorted(str(p) for p in file.parent.glob('*.py'))
  hint = ''.join(
      f' Did you mean {p}?'
      for p in difflib.get_close_matches(path, there, 1, 0.5))
  raise ValueError(f'There is no config file {path}.{hint}')


def load_file(path: str) -> types.ModuleType:
  """Imports a config file by its path; ValueError if there is none."""
  spec = importlib.util.spec_from_file_location(
      f'config_{pathlib.Path(path).stem}', _existing(path))
  if spec is None:
    raise ValueError(f'The config file {path} is neither .py nor .json.')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def from_json(path: str) -> dict[str, Any]:
  """What a saved config says; ValueError if it is none."""
  try:
    given = json.loads(_existing(path).read_text())
  except json.JSONDecodeError as error:
    raise ValueError(f'{path} is no whole JSON file: {error}.') from None
  if not isinstance(given, dict):
    raise ValueError(f'{path} holds no config: an object of fields is needed.')
  return given


def get_config(path: str, arg: str) -> ConfigDict:
  """What the file's get_config gives."""
  module = load_file(path)
  if not hasattr(module, 'get_config'):
    raise ValueError(f'{path} has no function get_config that gives a config.')
  try:
    config = module.get_config(*([arg] if arg else []))
    if not isinstance(config, ConfigDict):
      raise ValueError(f'get_config of {path} gives no ConfigDict: return it.')
    return config
  except (AttributeError, KeyError) as error:
    # What a locked ConfigDict says of a name it does not have.
    name = re.search(r'Key "(\w+)" does not exist', str(error))
    if not name:
      raise
    raise ValueError(
        f'{path}: {fields.unknown(name[1], fields.table())}') from None
