"""Differences between configs, and what they affect."""

import hashlib
import json
from typing import Any, Mapping, Sequence

from ml_collections import ConfigDict

from jaxrl_llm.config import checks
from jaxrl_llm.config.field import AFFECTS, WEIGHTS
from jaxrl_llm.config.fields import REMOVED
from jaxrl_llm.config.model import SECTIONS
from jaxrl_llm.config.nested import Flat, flatten, renamed
from jaxrl_llm.config.table import table
from jaxrl_llm.config.values import to_text


def affecting(config: ConfigDict, *what: str) -> Flat:
  """Returns the fields that affect something, with their values.

  Args:
    config: from `load`.
    *what: any of `fields.AFFECTS`.

  Returns:
    Dotted name to value.
  """
  assert {*what} <= {*AFFECTS}, what
  flat = flatten(config)
  # Files of runs before there were such texts have names without this field.
  later = () if flat['sampling.stop'] else ('sampling.stop',)
  return {
      name: flat[name] for name, field in table(config.task.name).items()
      if {*field.affects} & {*what} and name not in later}


def fingerprint(values: Mapping[str, Any]) -> str:
  """Returns sixteen hex digits that change when one of the values does."""
  text = json.dumps(values, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(
    old: ConfigDict | Mapping[str, Any], new: ConfigDict | Mapping[str, Any],
    only: Sequence[str] = ()) -> dict[str, str]:
  """Compares two configs.

  A field that did not exist when a config was saved has its default, or the
  value that the code of that time meant. Where neither config uses a
  hyperparameter, its value does not matter.

  Args:
    old: a config, or what `json.loads` made of `to_json`.
    new: the same.
    only: fields and sections to compare; () is all.

  Returns:
    Dotted name to a line such as 'loss.clip_high: 0.2 -> 0.28'.
  """
  a, b = renamed(flatten(old), warn=False), renamed(flatten(new), warn=False)
  for flat in (a, b):
    flat.setdefault('loss.behaviour', 'sampled')
    for name in flat.keys() & REMOVED.keys():
      del flat[name]
  for field in table(b.get('task.name')).values():
    a.setdefault(field.name, field.default)
    b.setdefault(field.name, field.default)
  for section in SECTIONS:
    name, kind = f'{section}.hf', f'{section}.dtype'
    if a[name] and a[kind] is None:  # the run did not choose it
      a[kind] = b[kind]
  unused = checks.unused(a).keys() & checks.unused(b).keys()
  if not (_ratio_is_cut(a) or _ratio_is_cut(b)):
    unused |= {'loss.behaviour'}
  missing = object()
  return {
      name: f'{name}: {to_text(a.get(name, "-"))} -> '
            f'{to_text(b.get(name, "-"))}'
      for name in dict.fromkeys([*a, *b])
      if a.get(name, missing) != b.get(name, missing) and name not in unused
      and (not only or _within(name, only))}


def _ratio_is_cut(flat: Mapping[str, Any]) -> bool:
  """Returns whether the loss has a ratio to a sampler that truncates."""
  return flat['loss.importance'] != 'none' and (
      flat['sampling.top_k'] > 0 or flat['sampling.top_p'] < 1
      or flat['sampling.min_p'] > 0)


def resume_conflicts(
    saved: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
  """Returns what keeps a run from going on with another config.

  That is every field that affects the weights; `steps` only where the learning
  rate's schedule depends on it.

  Args:
    saved: the config that a checkpoint was written with.
    config: the config to go on with.

  Returns:
    Lines of `difference`.
  """
  flat = flatten(config)
  free = {
      name for name, field in table(flat['task.name']).items()
      if WEIGHTS not in field.affects}
  if flat['optimizer.schedule'] == 'constant' or (
      flat['optimizer.decay_steps'] is not None):
    free.add('steps')
  return [
      line for name, line in difference(saved, config).items()
      if name not in free]


def _within(name: str, prefixes: Sequence[str]) -> bool:
  return any(name == p or name.startswith(f'{p}.') for p in prefixes)
