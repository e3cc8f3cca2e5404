"""Parameters to evaluate, and a name for all that their responses depend on."""

import hashlib
import json
import pathlib
from typing import Any, Sequence

from ml_collections import ConfigDict

from jaxrl_llm import checkpoint, experiment, warm_start
from jaxrl_llm import config as config_lib
from jaxrl_llm.models import hf

CHECKPOINTS = ('best', 'last', 'start')
# What bears on responses and verdicts, beside the weights and the problems.
DEPENDS_ON = (
    'seed', 'task', 'model', 'lora', 'max_prompt', 'max_response',
    'sampling.temperature', 'sampling.top_k', 'sampling.top_p',
    'sampling.min_p')
# Of the task, what only says which problems there are, and who judges.
NOT_ON = ('task.path', 'task.heldout', 'task.heldout_count', 'task.train',
          'task.workers')


def load(
    parts: experiment.Parts, which: str, show: warm_start.Report,
) -> tuple[Any, int, str]:
  """The parameters to evaluate.

  Args:
    parts: of the run.
    which: one of CHECKPOINTS.
    show: told of a warm start's steps.

  Returns:
    Parameters for sampling, their step, and what tells the checkpoint that
    they are of from others.

  Raises:
    ValueError: there is no such checkpoint, or it is of another model.
  """
  config = parts.config
  if which == 'start':
    params, frozen, _ = warm_start.begin(parts, show, resumed=False)
    return parts.policy.to_sampling(params, frozen), 0, 'start'
  folder = pathlib.Path(config.workdir, 'checkpoints')
  begins = ('model.', 'lora.')
  if config.lora.rank:  # beside the weights that the model came with
    begins += ('contents.model',)
  found = checkpoint.restore(
      folder, {'learner': {'params': parts.learner.state.params}},
      differs=lambda saved: [
          line for line in config_lib.difference(saved, parts.described())
          if line.startswith(begins)],
      best=which == 'best', partial=True)
  if found is None:
    raise ValueError(
        f'There is no whole checkpoint in {folder}: train first, or set '
        '--config.workdir to the folder of a run, or evaluate what it would '
        'start from with --checkpoint=start.')
  frozen = None
  if config.lora.rank:
    frozen = warm_start.begin(parts, show, resumed=True).frozen
  params = parts.policy.to_sampling(found.state['learner']['params'], frozen)
  return params, found.step, checkpoint.digest(folder, found.step)


def settings(
    config: ConfigDict, weights: str, temperature: float) -> dict[str, Any]:
  """All that responses depend on, beside their problems.

  Args:
    config: of the evaluation.
    weights: what tells them from others.
    temperature: 0 for greedy.
  """
  names, less = DEPENDS_ON, NOT_ON
  # Then the demonstrations, and so all of the task, bear on the weights.
  if config.warm_start.steps and (weights == 'start' or config.lora.rank):
    names, less = (*names, *warm_start.DEPENDS_ON), ()
  out = {
      name: value for name, value in config_lib.flatten(config).items()
      if _within(name, names) and not _within(name, less)}
  if config.model.hf:
    out['model.files'] = hf.digest(hf.fetch(config.model.hf))
  return {'weights': weights, **out, 'sampling.temperature': temperature}


def fingerprint(known: dict[str, Any]) -> str:
  """Sixteen hex digits that change when one of the settings does."""
  text = json.dumps(known, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _within(name: str, prefixes: Sequence[str]) -> bool:
  return any(f'{name}.'.startswith(f'{p}.') for p in prefixes)
