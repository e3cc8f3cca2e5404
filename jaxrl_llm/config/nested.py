"""Configs as nested ConfigDicts, and as flat dictionaries of dotted names."""

from typing import Any, Mapping

from absl import logging
from ml_collections import ConfigDict

from jaxrl_llm.config.fields import RENAMED

Flat = dict[str, Any]


class Config(ConfigDict):
  """ConfigDict that also accepts the former names of fields.

  An older config file, which sets `c.selection.signal_only`, still works; a
  warning names the new field.
  """

  def __init__(self, *args: Any, section: str = '', **kwargs: Any):
    object.__setattr__(self, '_section', section)
    super().__init__(*args, **kwargs)

  def __getitem__(self, key: str) -> Any:
    known = self._known(key)
    value = super().__getitem__(known) if known in self else None
    if not isinstance(value, ConfigDict) and any(
        old.startswith(f'{key}.') for old in RENAMED):
      return _FormerSection(self, key, value)
    return super().__getitem__(known)

  def __setitem__(self, key: str, value: Any) -> None:
    if isinstance(value, (ConfigDict, dict)) and key in self and isinstance(
        self[key], _FormerSection):
      self[key].update(value)
      return
    super().__setitem__(self._known(key), value)

  def _known(self, key: str) -> str:
    old = f'{self._section}.{key}'
    if key in self or old not in RENAMED:
      return key
    warn_renamed(old)
    return RENAMED[old].rpartition('.')[2]


class _FormerSection(str):
  """Section that no longer exists; its fields are now others of a config.

  If a field has the section's name now, this is also the field's value.
  """

  def __new__(cls, config: Config, section: str, value: str | None):
    self = super().__new__(cls, value or '')
    self.__dict__.update(_config=config, _section=section)
    return self

  def __reduce__(self) -> Any:
    return str, (str(self),)

  def update(self, *args: Any, **fields: Any) -> None:
    """Sets several fields of the section."""
    for key, value in dict(*args, **fields).items():
      setattr(self, key, value)

  def __setitem__(self, key: str, value: Any) -> None:
    setattr(self, key, value)

  def __getattr__(self, key: str) -> Any:
    return self._config[self._name(key)]

  def __setattr__(self, key: str, value: Any) -> None:
    self._config[self._name(key)] = value

  def _name(self, key: str) -> str:
    old = f'{self._section}.{key}'
    if old not in RENAMED:
      raise AttributeError(f'Key "{key}" does not exist')
    warn_renamed(old)
    return RENAMED[old]


def warn_renamed(old: str) -> None:
  """Warns that a field has another name now."""
  logging.warning(
      'The field %s is now called %s: use the new name.', old, RENAMED[old])


def renamed(flat: Mapping[str, Any], *, warn: bool = True) -> Flat:
  """Returns dotted names and values under the names that fields have now.

  Raises:
    ValueError: a field is given under both names, or a name is not a text.
  """
  out = {}
  for name, value in flat.items():
    if not isinstance(name, str):
      raise ValueError(
          f'{name!r} is not the name of a field: use a text, such as steps.')
    new = RENAMED.get(name, name)
    if new != name:
      if new in flat:
        raise ValueError(
            f'{name} is the former name of {new}: set only the latter.')
      if warn:
        warn_renamed(name)
    out[new] = value
  return out


def nested(flat: Flat) -> Config:
  """Makes a locked config from dotted names and values."""
  config = Config(type_safe=False)
  for name, value in flat.items():
    *sections, leaf = name.split('.')
    place = config
    for depth, section in enumerate(sections, 1):
      if section not in place:
        place[section] = Config(
            section='.'.join(sections[:depth]), type_safe=False)
      place = place[section]
    place[leaf] = value
  return config.lock()


def flatten(config: ConfigDict | Mapping[str, Any]) -> Flat:
  """Returns dotted names and values of a config.

  Raises:
    ValueError: the config is in one of its own fields.
  """
  flat = {}
  for name, value in config.items():
    if isinstance(value, (ConfigDict, dict)):
      try:
        flat.update((f'{name}.{k}', v) for k, v in flatten(value).items())
      except RecursionError:
        raise ValueError(
            f'{name} holds sections without end: give it a value.') from None
    else:
      value = str(value) if isinstance(value, _FormerSection) else value
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def task_options(config: ConfigDict) -> dict[str, Any]:
  """Returns the options for `tasks.get(config.task.name, **options)`."""
  return {k: v for k, v in config.task.items() if k != 'name'}
