"""The curriculum and the selection that a config chooses, with checks."""

from typing import Any, TypeVar

from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import own_code
from jaxrl_llm.config import plugs
from jaxrl_llm.prepare import methods, own_functions
from jaxrl_llm.prepare import needs as needs_lib
from jaxrl_llm.types import (
  Carry,
  Curriculum,
  NoSignalError,
  RunSizes,
  Selection,
  Stages,
)

_Stage = TypeVar('_Stage', Curriculum, Selection)


def make_stages(config: ConfigDict, problems: int = 1) -> Stages:
  """Makes the stages of a config.

  Args:
    config: checked by `config.validate`.
    problems: D, size of the training set; capacities do not depend on it.

  Returns:
    The stages.

  Raises:
    ValueError: a stage does not fit the sizes of the run, is none, or
      contradicts itself; or jackpot.z=exact meets rows of earlier steps.
  """
  sizes = RunSizes(
      problems=problems, seed=config.seed, batch=config.prompts_per_step,
      samples=config.samples_per_prompt,
      prompts=config.curriculum_prompts or config.prompts_per_step,
      lag=config.actor.lag, response=config.max_response)
  made = _make('curriculum', config, Curriculum, sizes)
  carry = _carry(config, made)
  if carry:
    groups = _carried_groups(config, carry)
    waves = -(-groups // carry.groups)
    sizes = sizes._replace(lag=waves, together=groups)
    made = _make('curriculum', config, Curriculum, sizes)
  curriculum = _checked_curriculum(made, sizes.batch)
  if carry:
    curriculum = curriculum._replace(
        max_prompts=groups, max_requests=waves * carry.requests)
  sizes = sizes._replace(rounds=curriculum.max_rounds)
  selection = _checked_selection(
      _make('selection', config, Selection, sizes),
      f'selection={config.selection}')
  if config.off_policy == 'jackpot' and (
      config.jackpot.target, config.jackpot.z) == ('p_new', 'exact'):
    for name, value, stale in (
        ('sampling.carry_over', True, carry),
        ('actor.lag', sizes.lag, sizes.lag > 0),
        ('curriculum', config.curriculum, curriculum.stale),
        ('selection', config.selection, selection.stale)):
      if stale:
        raise ValueError(
            'jackpot.z=exact needs the policy that wrote each row, but '
            f'{name}={value} trains on rows of earlier steps: use '
            'jackpot.z=topk.')
  return Stages(
      curriculum, selection, needs_lib.of(
          config, curriculum, selection, carry is not None),
      methods.settings(config, carry))


def _carry(config: ConfigDict, made: Curriculum) -> Carry | None:
  """Returns the sizes of waves that end before their longest response.

  They are None without `sampling.carry_over`, or if a wave has the steps for
  all responses that it may begin, even on one shard: it then cuts none. The
  turns of an environment are calls of the sampler, each as long as its longest
  response; a wave that is played in two parts has two of each.
  """
  sampling, longest = config.sampling, config.max_response
  if not sampling.carry_over:
    return None
  steps = sampling.wave_steps or max(longest // 4, 1)
  fills = -(-made.max_requests // sampling.slots)
  calls = 2 * config.task.max_turns if methods.has_turns(config) else 1
  # Between two responses a slot may wait for a refill.
  waits = (fills - 1) * (sampling.steps_per_refill - 1)
  if steps >= calls * (fills * longest + waits):
    return None
  return Carry(
      steps, config.curriculum_prompts or config.prompts_per_step,
      made.max_prompts, made.max_requests)


def _carried_groups(config: ConfigDict, carry: Carry) -> int:
  """Returns the most groups that are begun and have not left.

  Raises:
    ValueError: `sampling.carry_groups` is less than those of a wave.
  """
  given = config.sampling.carry_groups
  if given is None:
    return carry.groups * (1 + -(-config.max_response // carry.steps))
  if given < carry.groups:
    raise ValueError(
        f'sampling.carry_groups={given} is less than the {carry.groups} groups '
        'that a wave may ask for: raise it.')
  return given


def validate(config: ConfigDict, **given: bool) -> None:
  """Checks a config, its stages with their sizes, and the user's functions.

  Args:
    config: of a run.
    **given: as for `config.validate`.

  Raises:
    ValueError: as `config.validate`, `make_stages` and
      `own_functions.check` do.
  """
  config_lib.validate(config, **given)
  own_functions.check(config, make_stages(config).needs)


def _make(
    field: str, config: ConfigDict, kind: type[_Stage],
    sizes: RunSizes) -> _Stage:
  """Makes one stage."""
  plug, given = plugs.chosen(field, config_lib.flatten(config))
  made = plug.guarded()(sizes, **given)
  if not isinstance(made, kind):
    raise ValueError(
        f'{field}={plug.name} gives {type(made).__name__}, but a '
        f'jaxrl_llm.types.{kind.__name__} is needed.')
  if isinstance(made, Curriculum) and (
      made.max_requests < made.max_prompts * made.min_count):
    raise ValueError(
        f'{field}={plug.name} has max_requests={made.max_requests}, fewer than '
        f'min_count={made.min_count} samples of max_prompts='
        f'{made.max_prompts} groups: raise it, or lower one of the others.')
  if made.capacity and not made.stale:
    raise ValueError(
        f'{field}={plug.name} holds rollouts for later steps: set stale=True, '
        'so that their old log-probs are kept.')
  if plug.packaged:
    return made
  parts: dict[str, Any] = {
      part: own_code.guarded(
          f'{field}={plug.name}: {part}', call, NoSignalError)
      for part, call in made._asdict().items() if callable(call)}
  return made._replace(**parts)


def _checked_curriculum(made: Curriculum, batch: int) -> Curriculum:
  """Adds checks of the requests and batches of a curriculum."""
  def propose(state):
    state, ask = made.propose(state)
    groups, samples = len(ask.group), int(ask.count.sum())
    least = ask.count.min(initial=made.min_count)
    if (groups > made.max_prompts or samples > made.max_requests
        or least < made.min_count):
      raise ValueError(
          f'The curriculum asks for {samples} samples of {groups} groups, at '
          f'least {least} of each, against max_requests={made.max_requests}, '
          f'max_prompts={made.max_prompts} and min_count={made.min_count}: '
          'change these capacities, or ask for as many as they say.')
    return state, ask

  def take(state):
    state, taken = made.take(state)
    sizes = [len(groups) for groups in taken]
    if len(sizes) > made.max_rounds or any(size != batch for size in sizes):
      raise ValueError(
          f'The curriculum takes batches of {sizes} groups: take at most '
          f'max_rounds={made.max_rounds} of prompts_per_step={batch} groups.')
    return state, taken

  return made._replace(propose=propose, take=take)


def _checked_selection(made: Selection, name: str) -> Selection:
  """Adds checks of the rows that a selection of a name picks."""
  def select(state, table, rows, key):
    state, picked = made.select(state, table, rows, key)
    picked = np.asarray(picked)
    if picked.shape != (made.rows,) or not np.issubdtype(
        picked.dtype, np.integer):
      raise ValueError(
          f'{name} picks rows of the shape {picked.shape} and the type '
          f'{picked.dtype}: pick [{made.rows}] integers, -1 for filler.')
    there = picked[picked >= 0]
    known = there[there < len(table.group)]
    if len(known) < len(there) or (
        (table.round[known] < 0) | ~table.valid[known]).any():
      raise ValueError(
          f'{name} picks a row that is not valid or has no round yet: '
          'pick rows whose `valid` is set and whose `round` is at least 0.')
    return state, picked

  return made._replace(select=select)
