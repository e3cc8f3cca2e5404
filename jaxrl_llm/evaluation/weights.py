"""Parameters to evaluate, and a name for all that their responses depend on."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from jaxrl_llm import checkpoint, experiment, warm_start
from jaxrl_llm import config as config_lib
from jaxrl_llm.models import hf

CHECKPOINTS = ('best', 'last', 'start')


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
    params, frozen, _ = warm_start.start(parts, show, resumed=False)
    return parts.programs.policy.to_sampling(params, frozen), 0, 'start'
  folder = pathlib.Path(config.workdir, 'checkpoints')
  only = ['model', 'lora']
  if config.lora.rank:  # beside the weights that the model came with
    only.append('contents.model')
  found = checkpoint.restore(
      folder, {'learner': {'params': parts.programs.learner.state.params}},
      differs=lambda saved: [*config_lib.difference(
          saved, parts.described(), only).values()],
      best=which == 'best', partial=True)
  if found is None:
    raise ValueError(
        f'There is no whole checkpoint in {folder}: train first, or set '
        '--config.workdir to the folder of a run, or evaluate what it would '
        'start from with --checkpoint=start.')
  frozen = None
  if config.lora.rank:
    frozen = warm_start.start(parts, show, resumed=True).frozen
  params = parts.programs.policy.to_sampling(
      found.state['learner']['params'], frozen)
  return params, found.step, checkpoint.digest(folder, found.step)


def settings(
    config: ConfigDict, weights: str, temperature: float) -> dict[str, Any]:
  """Returns all that responses depend on, beside their problems.

  Args:
    config: of the evaluation.
    weights: identity of the weights, from `load`.
    temperature: 0 for greedy.
  """
  what = [config_lib.EVALUATION]
  # Then the demonstrations, and so all of the task, affect the weights.
  if config.warm_start.steps and (weights == 'start' or config.lora.rank):
    what += [config_lib.WARM_START, config_lib.ROUNDING]
  out = config_lib.affecting(config, *what)
  if config.model.hf:
    out['model.files'] = hf.digest(hf.fetch(config.model.hf))
  return {'weights': weights, **out, 'sampling.temperature': temperature}
