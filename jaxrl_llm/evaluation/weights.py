"""Parameters to evaluate, and the settings that their responses depend on."""

from typing import Any

from ml_collections import ConfigDict

from jaxrl_llm import checkpoint
from jaxrl_llm import config as config_lib
from jaxrl_llm.models import hf
from jaxrl_llm.prepare import build, describe, sft, start_weights
from jaxrl_llm.storage import paths


def load(
    parts: build.Parts, which: str, show: start_weights.Report,
    player: str = 'policy') -> tuple[Any, int, str]:
  """Loads the parameters to evaluate.

  Args:
    parts: those in which the player is the policy.
    which: 'best', 'last' or 'start'.
    show: callback for the steps of SFT.
    player: the one whose parameters to load.

  Returns:
    The parameters in the sampling layout, their step, and an identifier of
    their checkpoint.

  Raises:
    ValueError: the checkpoint does not exist, or belongs to another model.
  """
  config = parts.config
  if which == 'start':
    rows = sft.load(parts).digest if config_lib.has_sft(config) else ''
    # Not in the folder of the run, which may be at work there.
    params, frozen, _ = start_weights.start(
        parts, show, resumed=False, evaluated=True,
        name=f'evaluation/sft-{player}{rows}')
    return parts.programs.policy.to_sampling(params, frozen), 0, (
        f'start {rows}'.strip())
  folder = paths.place(config.workdir) / 'checkpoints'
  only = ['model', 'lora']
  if config.lora.rank:  # the adapters need the same frozen weights
    only.append('contents.model')
  number = config_lib.PLAYERS.index(player)
  restored = checkpoint.restore(
      folder, {'learners': [
          *[None] * number,
          {'params': parts.programs.learner.state['policy'].params}]},
      differs=lambda saved: [
          line for name, line in config_lib.difference(
              config_lib.of_player(saved, player), describe.described(parts),
              only).items()
          if name != 'model.dtype'],
      best=which == 'best', partial=True, channel=parts.processes.channel)
  if restored is None:
    raise ValueError(
        f'There is no whole checkpoint in {folder}: train first, or set '
        '--config.workdir to the folder of a run, or evaluate the initial '
        'parameters with --checkpoint=start.')
  frozen = None
  if config.lora.rank:
    frozen = start_weights.start(parts, show, resumed=True).frozen
  params = parts.programs.policy.to_sampling(
      restored.state['learners'][number]['params'], frozen)
  identity = checkpoint.digest(folder, restored.step)
  return params, restored.step, identity + f'/{player}' * bool(number)


def settings(
    config: ConfigDict, weights: str, temperature: float,
    dtype: str | None = None) -> dict[str, Any]:
  """Returns the settings that responses depend on, except their problems.

  Args:
    config: that of the evaluation, without choices of a run.
    weights: identifier of the checkpoint, from `load`.
    temperature: sampling temperature; 0 for greedy.
    dtype: compute type; None for that of the config.
  """
  what = [config_lib.EVALUATION]
  # In this case the rows of SFT affect the weights, and so all that words them.
  if config_lib.has_sft(config) and (weights.startswith('start') or (
      config.lora.rank and not config_lib.sft_of_lora(config))):
    what += [config_lib.SFT, config_lib.ROUNDING]
  out = config_lib.affecting(config, *what)
  if config.model.hf:
    out['model.files'] = hf.digest(hf.fetch(config.model.hf))
    if dtype and dtype != config_lib.model_config(config).dtype:
      out['model.dtype'] = dtype
  return {'weights': weights, **out, 'sampling.temperature': temperature}
