"""Configs as nested ConfigDicts, and as flat dictionaries of dotted names."""

import itertools
import types
from typing import Any, Mapping

from ml_collections import ConfigDict

from jaxrl_llm.base import own_code
from jaxrl_llm.config import plugs
from jaxrl_llm.config.names import unknown
from jaxrl_llm.config.plugs import PLUG_FIELDS
from jaxrl_llm.config.sections import SOURCES
from jaxrl_llm.config.table import table

Flat = dict[str, Any]

# Former names of the examples, in saved configs, and today's.
_MOVED = {
    'arc_mini': 'jaxrl_llm.examples.arc_mini',
    'arithmetic': 'jaxrl_llm.examples.arithmetic',
    'calculations': 'jaxrl_llm.examples.calculations',
    'guess': 'jaxrl_llm.examples.guess',
    'jaxrl_llm.environments.calculator:calculator':
        'jaxrl_llm.examples.calculator:calculator'}
_NAMING = {'task.name', 'task.tools'}  # the fields that have them

# Fields whose values decide which other fields there are.
CHOOSING = (*PLUG_FIELDS, 'off_policy', 'teacher.hint',
            *itertools.chain(*SOURCES.values()))


class Config(ConfigDict):
  """ConfigDict with the fields of what it chooses.

  After `c.selection = 'cbs'` there is a section `c.cbs`, and that of the former
  selection is gone. `c.advantage = function` takes a function itself; one of a
  notebook is known to this process alone.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    # The config that this is a section of, and its place there. A config that
    # is not whole yet has none.
    object.__setattr__(self, '_place', None)
    super().__init__(*args, **kwargs)

  def __getitem__(self, key: str) -> Any:
    self._check_name(key)
    return super().__getitem__(key)

  def _check_name(self, key: str) -> None:
    """Raises KeyError with the sentence about a name that is no field."""
    if self._place and self.is_locked and key not in self:
      root, section = self._place
      flat = flatten(root)
      for field, takes in PLUG_FIELDS.items():
        chosen = plugs.plug(field, flat[field])
        if takes.prefix and chosen.function.__name__ == key:
          names = ', '.join(chosen.hyperparameters) or 'none'
          raise KeyError(
              f'{section}{key} is no section: the hyperparameters of {field}='
              f'{flat[field]} are {names}.')
      raise KeyError(unknown(f'{section}{key}', table(flat)))

  def __setitem__(self, key: str, value: Any) -> None:
    self._check_name(key)
    before = self[key] if key in self else None
    if self._place is None:
      super().__setitem__(key, value)
      return
    root, section = self._place
    if isinstance(before, ConfigDict):
      if not isinstance(value, (Mapping, ConfigDict)):
        raise ValueError(f'{section}{key} is a section: set one of its fields.')
      before.update(value)
      return
    if isinstance(value, types.FunctionType) and (
        f'{section}{key}' in PLUG_FIELDS):
      value = own_code.give(value)
    super().__setitem__(key, value)
    if f'{section}{key}' in CHOOSING and value != before:
      try:
        _choose(root, {**flatten(root), f'{section}{key}': before})
      except ValueError:
        super().__setitem__(key, before)
        raise

  def update(self, *others: Any, **fields: Any) -> None:
    """Sets several fields; those that decide which ones there are come first.
    """
    given = {k: v for other in others for k, v in other.items()} | fields
    section = self._place[1] if self._place else ''
    for key in sorted(given, key=lambda k: f'{section}{k}' not in CHOOSING):
      self[key] = given[key]

  def copy_and_resolve_references(self, visit_map: Any = None) -> 'Config':
    """Returns a copy; `ConfigDict` says more."""
    made = super().copy_and_resolve_references(visit_map)
    if self._place and self._place[0] is self:
      _settle(made, made)
    return made

  def __setstate__(self, state: Any) -> None:
    """Fills the copy that `copy.deepcopy` or `pickle` makes."""
    super().__setstate__(state)
    place = state['_place']
    if place and place[0] is self:
      _settle(self, self)


def _settle(config: Any, root: Config, section: str = '') -> None:
  """Tells a config, the root itself or a section of it, and its sections their
  places.
  """
  object.__setattr__(config, '_place', (root, section))
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      _settle(value, root, f'{section}{name}.')


def _choose(root: Config, before: Flat) -> None:
  """Gives a config the fields of what it chooses now.

  Sections that stay are the same objects, since the user may hold them.

  Args:
    root: the config, with the new choice.
    before: its fields and values before.
  """
  flat = flatten(root)
  now = rechosen(before, flat)
  with root.unlocked():
    for name in flat.keys() - now.keys():
      *sections, leaf = name.split('.')
      del _section(root, sections)[leaf]
    for name in [k for k, v in root.items()
                 if isinstance(v, ConfigDict) and not len(v)]:
      del root[name]
    for name, value in now.items():
      *sections, leaf = name.split('.')
      ConfigDict.__setitem__(_section(root, sections), leaf, value)
  _settle(root, root)


def _section(config: Config, sections: list[str]) -> Config:
  """Returns a section of a config, which is made if there is none."""
  for section in sections:
    if section not in config:
      ConfigDict.__setitem__(config, section, Config(type_safe=False))
    config = config[section]
  return config


def rechosen(before: Mapping[str, Any], flat: Mapping[str, Any]) -> Flat:
  """Returns the fields of a config with other choices.

  What was said of a former choice is left out. An objective's field that the
  new objective has too keeps its value, unless that was the default.

  Args:
    before: dotted name to value, with the former choices.
    flat: the same with the new ones.

  Raises:
    ValueError: a plug is not known, or cannot be loaded.
  """
  former, now = table(before), table(flat)
  changed = {
      field for field in PLUG_FIELDS if own_code.absolute(before[field]) !=
      own_code.absolute(flat[field])}

  def kept(name, value):
    if name not in now:
      return name not in former  # a name that is unknown is refused later
    by = now[name].chosen_by
    return by not in changed or name in former and (
        former[name].chosen_by == by and PLUG_FIELDS[by].shared and (
            value != former[name].default))

  kept = {name: value for name, value in flat.items() if kept(name, value)}
  return {**{name: field.default for name, field in now.items()}, **kept}


def nested(flat: Mapping[str, Any]) -> Config:
  """Makes a locked config from dotted names and values."""
  config = Config(type_safe=False)
  for name, value in flat.items():
    *sections, leaf = name.split('.')
    _section(config, sections)[leaf] = value
  _settle(config, config)
  return config.lock()


def flatten(config: ConfigDict | Mapping[str, Any]) -> Flat:
  """Returns dotted names and values of a config.

  Raises:
    ValueError: the config is in one of its own fields, or a name is no text.
  """
  flat = {}
  for name, value in config.items():
    if not isinstance(name, str):
      raise ValueError(
          f'{name!r} is not the name of a field: use a text, such as steps.')
    if isinstance(value, (ConfigDict, dict)):
      try:
        flat.update((f'{name}.{k}', v) for k, v in flatten(value).items())
      except RecursionError:
        raise ValueError(
            f'{name} holds sections without end: give it a value.') from None
    else:
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def current(saved: ConfigDict | Mapping[str, Any]) -> Flat:
  """Returns the fields of a saved config, with today's names.

  Fields and examples that were renamed since get their new names.
  """
  flat = {
      name.replace('warm_start.', 'sft.', 1)
      if name.startswith('warm_start.') else name: value
      for name, value in flatten(saved).items()}
  for name in _NAMING.intersection(flat):
    flat[name] = _now(flat[name])
  return flat


def _now(value: Any) -> Any:
  """Returns today's name of an example; of a tuple, that of each."""
  if isinstance(value, tuple):
    return tuple(map(_now, value))
  return _MOVED.get(value, value) if isinstance(value, str) else value
