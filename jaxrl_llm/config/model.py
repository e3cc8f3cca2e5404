"""Models of a config: a preset or a checkpoint, with fields replaced."""

import dataclasses
from typing import Any, Mapping

from ml_collections import ConfigDict

from jaxrl_llm.config.nested import flatten, nested
from jaxrl_llm.config.sections import MODELS, SOURCES
from jaxrl_llm.config.table import DEFAULTS, players, table
from jaxrl_llm.config.values import to_text
from jaxrl_llm.learner.options import POLICY, REWARD, TEACHER
from jaxrl_llm.models.config import ModelConfig, PRESETS, RopeScaling, SHAPING

# Parameters; see `sharding.keep_memory`. Measured below and above: 0.3 million
# are slower with it, 135 million faster.
LARGE = 20_000_000
# Sections and fields that are the policy's affair alone.
_OF_POLICY = 'off_policy', 'jackpot.', 'lora.'


def model_config(
    config: ConfigDict, player: str = POLICY, *, hub: bool = True,
) -> ModelConfig:
  """Returns the preset or `model.hf`, with fields that are not None replaced.

  Args:
    config: whole.
    player: the one whose model it is.
    hub: whether the hub and buckets may be asked.

  Raises:
    ValueError: an unknown preset or model, or fields that do not fit together.
    NotOnDisk: the hub would have to be asked.
  """
  given = (config if player == POLICY else of_player(config, player)).model
  section = MODELS[player]
  if given.hf:
    from jaxrl_llm.models import hf, hf_config  # They take long to import.
    known = hf_config.read_config(
        hf.fetch(given.hf, weights=False, field=f'{section}.hf', hub=hub))
    if known.dtype == 'float16':  # whose range is too small to train in
      known = dataclasses.replace(known, dtype='float32')
    if known.scores != (player == REWARD):
      raise ValueError(
          f'{section}.hf={given.hf} is '
          f'{"" if known.scores else "not "}a reward model, a sequence '
          'classifier: use reward.model.hf for one, and for it alone.')
  elif given.preset not in PRESETS:
    raise ValueError(
        f'{section}.preset={given.preset} is not known: use one of '
        f'{", ".join(PRESETS)}.')
  else:
    known = dataclasses.replace(
        PRESETS[given.preset], scores=player == REWARD)
  optional = {
      f.name for f in dataclasses.fields(ModelConfig) if f.default is None}
  changes = {
      name: None if name in optional and value in (0, (0,), ()) else value
      for name, value in given.items()
      if name not in ('hf', 'preset') and value is not None}
  scaling = changes.get('rope_scaling')
  if scaling:
    if len(scaling) != 4:
      raise ValueError(
          f'{section}.rope_scaling={to_text(scaling)} must have 4 numbers: '
          'factor, low and high frequency factor, original length.')
    *factors, length = scaling
    changes['rope_scaling'] = RopeScaling(
        *factors, int(length) if length == length // 1 else length)
  for field in SHAPING if given.hf else ():
    if changes.get(field, getattr(known, field)) != getattr(known, field):
      raise ValueError(
          f'{section}.{field}={changes[field]} is not that of '
          f'{given.hf}, {getattr(known, field)}: leave it out.')
  try:
    return dataclasses.replace(known, **changes)
  except ValueError as error:  # begins with the field
    raise ValueError(f'{section}.{error}') from None


def is_large(config: ConfigDict) -> bool:
  """Returns whether a model is from a checkpoint or has many parameters."""
  if any(flatten(config)[f'{section}.hf'] for section in MODELS.values()):
    return True
  return any(
      model.parameter_count() >= LARGE for model in models(config).values())


def models(config: ConfigDict) -> dict[str, ModelConfig]:
  """Returns `model_config` of each player, by its name."""
  return {name: model_config(config, name) for name in players(flatten(config))}


def of_player(
    config: ConfigDict | Mapping[str, Any], player: str) -> ConfigDict:
  """Returns the config of a run of one player alone, for what it has learned.

  Args:
    config: of a run, or what a checkpoint keeps of it.
    player: one of MODELS. Its model is the policy's in the result.

  Raises:
    ValueError: the config has no such player.
  """
  flat = flatten(config)
  there, prefix = players(flat), f'{MODELS[player]}.'
  if player not in there:
    raise ValueError(
        f'The config has no {player} beside its policy: set '
        f'{" or ".join(f"config.{field}" for field in SOURCES[player])}.')
  own = {f'model.{name.removeprefix(prefix)}': value
         for name, value in flat.items() if name.startswith(prefix)}
  own['model.preset'] = own.get('model.preset') or DEFAULTS['model.preset']
  if flat.get(f'{player}.learning_rate') is not None:
    own['optimizer.learning_rate'] = flat[f'{player}.learning_rate']
  if f'contents.{player}' in flat:
    own['contents.model'] = flat.pop(f'contents.{player}')
  # The user's functions of a loss may name columns that only others make.
  left = (*(f'{name}.' for name in SOURCES), *['loss.'] * (len(there) > 1),
          *_OF_POLICY * (player != POLICY),
          # A teacher from a checkpoint is used as it comes.
          *['sft.'] * (player == REWARD or player == TEACHER and bool(
              own['model.hf'])))
  if flat.get('advantage') == 'none':  # it needs a teacher
    flat['advantage'] = 'reinforce'
  flat = {name: value for name, value in (flat | own).items()
          if not name.startswith(left) or (
              name == 'actor.lag' and player == POLICY)}
  # What is left out has its default.
  return nested({
      **{field.name: field.default for field in table(flat).values()}, **flat})
