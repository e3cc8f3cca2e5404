"""Model of a config: a preset or a checkpoint, with fields replaced."""

import dataclasses

from ml_collections import ConfigDict

from jaxrl_llm.config.values import to_text
from jaxrl_llm.models.config import ModelConfig, PRESETS, RopeScaling, SHAPING


def model_config(config: ConfigDict) -> ModelConfig:
  """Returns the preset or `model.hf`, with fields that are not None replaced.

  Raises:
    ValueError: an unknown preset or model, or fields that do not fit together.
  """
  preset = config.model.preset
  if config.model.hf:
    from jaxrl_llm.models import hf, hf_config  # --help need not wait for jax
    known = hf_config.read_config(hf.fetch(config.model.hf, weights=False))
  elif preset not in PRESETS:
    raise ValueError(
        f'model.preset={preset} is not known: use one of '
        f'{", ".join(PRESETS)}.')
  else:
    known = PRESETS[preset]
  optional = {
      f.name for f in dataclasses.fields(ModelConfig) if f.default is None}
  changes = {
      name: None if name in optional and value in (0, (0,), ()) else value
      for name, value in config.model.items()
      if name not in ('hf', 'preset') and value is not None}
  scaling = changes.get('rope_scaling')
  if scaling:
    if len(scaling) != 4:
      raise ValueError(
          f'model.rope_scaling={to_text(scaling)} must have 4 numbers: factor, '
          'low and high frequency factor, original length.')
    *factors, length = scaling
    changes['rope_scaling'] = RopeScaling(
        *factors, int(length) if length == length // 1 else length)
  for field in SHAPING if config.model.hf else ():
    if changes.get(field, getattr(known, field)) != getattr(known, field):
      raise ValueError(
          f'model.{field}={changes[field]} is not that of '
          f'{config.model.hf}, {getattr(known, field)}: leave it out.')
  return dataclasses.replace(known, **changes)
