"""Choices that a run makes when it starts, and keeps when it goes on.

They are in a file of their own: config.json has what the user asked for, so
that it can start another run on another machine.
"""

import json

from ml_collections import ConfigDict

from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.config.files import from_json
from jaxrl_llm.config.nested import flatten, nested
from jaxrl_llm.config.sections import MODELS
from jaxrl_llm.config.values import check
from jaxrl_llm.storage import paths

FILE = 'choices.json'
_CHOSEN = ('learner.tokens_per_microbatch', 'learner.remat', 'sampling.buckets')
_LIMITS = ('max_prompt', 'max_response')


def choices(config: ConfigDict) -> str:
  """Returns the choices of a run as JSON.

  Args:
    config: with the choices made.
  """
  flat = flatten(config)
  return json.dumps({name: flat.get(name) for name in (
      *_LIMITS, *_CHOSEN, *(
          f'{section}.{leaf}' for section in MODELS.values()
          for leaf in ('hf', 'dtype')))}, indent=1)


def with_saved_auto_values(config: ConfigDict) -> ConfigDict:
  """Fills in the choices that the same run made when it started.

  Args:
    config: of the run, checked. Its workdir may be none or missing, and its
      files may be damaged: then nothing is filled in.

  Returns:
    The config with the run's lengths in place of `auto`, if prompts and
    responses have the same limits, and with its `model.dtype` in place of none,
    if the model is the same. The same holds for the actor's model.
  """
  if config.workdir is None:
    return config
  flat = flatten(config)
  try:
    begun = from_json(str(paths.place(config.workdir) / FILE))
    taken = {}
    if all(begun.get(name) == flat[name] for name in _LIMITS):
      taken = {name: begun[name] for name in _CHOSEN
               if flat[name] == AUTO and name in begun}
    for section in MODELS.values():
      name, kind = f'{section}.hf', f'{section}.dtype'
      if flat[name] and flat[kind] is None and begun.get(name) == flat[name]:
        taken[kind] = begun[kind]
    return nested(check({**flat, **taken}))
  except (OSError, ValueError, KeyError):
    return config
