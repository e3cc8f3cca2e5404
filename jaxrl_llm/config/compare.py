"""Differences between configs, and what they affect."""

import hashlib
import json
from typing import Any, Mapping, Sequence

from ml_collections import ConfigDict

from jaxrl_llm.base.declared import AFFECTS, WEIGHTS
from jaxrl_llm.config.nested import current, Flat, flatten
from jaxrl_llm.config.sections import MODELS
from jaxrl_llm.config.table import table
from jaxrl_llm.config.values import to_text
from jaxrl_llm.learner.options import POLICY

# Digests of files among the values of a checkpoint, and what to say of them.
_FILES = {
    'contents.problems': 'the training problems were others', **{
        f'contents.{"model" if player == POLICY else player}':
        f'the files of {section}.hf were others'
        for player, section in MODELS.items()}}


def affecting(config: ConfigDict, *what: str) -> Flat:
  """Returns the fields that affect something, with their values.

  Args:
    config: from `load`.
    *what: any of `declared.AFFECTS`.

  Returns:
    Dotted name to value.
  """
  assert {*what} <= {*AFFECTS}, what
  flat = flatten(config)
  return {
      name: flat[name] for name, field in table(flat).items()
      if {*field.affects} & {*what}}


def fingerprint(values: Mapping[str, Any]) -> str:
  """Returns sixteen hex digits that change when one of the values does."""
  text = json.dumps(values, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(
    old: ConfigDict | Mapping[str, Any], new: ConfigDict | Mapping[str, Any],
    only: Sequence[str] = ()) -> dict[str, str]:
  """Compares two configs.

  What a config leaves out has its default.

  Args:
    old: a config, or what `json.loads` made of `to_json`.
    new: the same.
    only: fields and sections to compare; () is all.

  Returns:
    Dotted name to a line such as 'loss.clip_high: 0.2 -> 0.28', or that the
    training problems were others.
  """
  a, b = current(old), flatten(new)
  for flat in (a, b):
    for field in table(flat).values():
      flat.setdefault(field.name, field.default)
  for section in MODELS.values():
    name, kind = f'{section}.hf', f'{section}.dtype'
    if a[name] and a[kind] is None:  # the run did not choose it
      a[kind] = b[kind]
  missing, within = object(), tuple(f'{name}.' for name in only)
  return {
      name: _FILES.get(name) or (
          f'{name}: {to_text(a.get(name, "-"))} -> '
          f'{to_text(b.get(name, "-"))}')
      for name in dict.fromkeys([*a, *b])
      if a.get(name, missing) != b.get(name, missing)
      and (not only or f'{name}.'.startswith(within))}


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
      name for name, field in table(flat).items()
      if WEIGHTS not in field.affects}
  if flat['optimizer.schedule'] == 'constant' or (
      flat['optimizer.decay_steps'] is not None):
    free.add('steps')
  return [
      line for name, line in difference(saved, config).items()
      if name not in free]
