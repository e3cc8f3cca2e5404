"""Choices that a run makes when it starts, and keeps when it goes on."""

import pathlib

from ml_collections import ConfigDict

from jaxrl_llm.config.fields import AUTO
from jaxrl_llm.config.files import from_json
from jaxrl_llm.config.model import model_config
from jaxrl_llm.config.nested import flatten, nested, renamed
from jaxrl_llm.config.values import check


def as_begun(config: ConfigDict, path: pathlib.Path) -> ConfigDict:
  """Fills in the choices that the same run made when it started.

  Args:
    config: of the run, checked.
    path: config.json of its workdir; it may be missing or damaged.

  Returns:
    The config with that file's lengths in place of `auto`, if prompts and
    responses have the same limits, and with its `model.dtype` in place of none,
    if the model is the same. A file that is older than these choices stands for
    no buckets, and for the type of the checkpoint.
  """
  flat, taken = flatten(config), {}
  try:
    begun = renamed(from_json(str(path)), warn=False)
    if all(begun.get(x) == flat[x] for x in ('max_prompt', 'max_response')):
      taken = {
          name: begun.get(name, ())
          for name in ('learner.buckets', 'sampling.buckets')
          if flat[name] == AUTO}
    if (flat['model.hf'] and flat['model.dtype'] is None
        and begun.get('model.hf') == flat['model.hf']):
      taken['model.dtype'] = (
          begun.get('model.dtype') or model_config(config).dtype)
    return nested(check({**flat, **taken}))
  except (OSError, ValueError):
    return config
