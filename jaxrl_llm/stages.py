"""Curricula and selections by name: the stages that a config chooses.

A new one is a file in `curriculum` or `selection` with a function of
`types.Sizes`, a line here, and a name in `config/fields.py`. The function's
keyword arguments are the fields of its config section, declared in
`config/method_fields.py`. One outside of the package is a module with a
function `create(sizes)`.
"""

import inspect
from typing import Any, Callable, NamedTuple

from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm.curriculum import dynamic, speed, uniform
from jaxrl_llm.selection import all_rows, cbs, replay
from jaxrl_llm.tasks import modules
from jaxrl_llm.types import Curriculum, NoSignalError, Selection, Sizes


class Stage(NamedTuple):
  """Maker of a stage, and the config section of its hyperparameters.

  Attributes:
    create: (Sizes, **hyperparameters) -> Curriculum or Selection.
    section: name of the section; '' for none.
  """
  create: Callable[..., Any]
  section: str = ''

  @property
  def fields(self) -> dict[str, str]:
    """Fields of its hyperparameters to the names that `create` gives them."""
    names = list(inspect.signature(self.create).parameters)[1:]
    return {f'{self.section}.{name}': name for name in names}


CURRICULA = {
    'uniform': Stage(uniform.create),
    'dynamic': Stage(dynamic.create),
    'speed': Stage(speed.create, 'speed'),
}

SELECTIONS = {
    'all_rows': Stage(all_rows.create),
    'random': Stage(replay.random, 'replay'),
    'newest': Stage(replay.newest, 'replay'),
    'replay': Stage(replay.replay, 'replay'),
    'cbs': Stage(cbs.create, 'cbs'),
}


class Stages(NamedTuple):
  """The stages of a run.

  Attributes:
    curriculum: chooses the problems.
    selection: chooses the rows to train on.
  """
  curriculum: Curriculum
  selection: Selection


def make(config: ConfigDict, problems: int = 1) -> Stages:
  """Makes the stages of a config.

  Args:
    config: checked by `config.validate`.
    problems: D, size of the training set; capacities do not depend on it.

  Returns:
    The stages.

  Raises:
    ValueError: a module cannot be loaded, or does not make such a stage.
  """
  sizes = Sizes(
      problems=problems, seed=config.seed, batch=config.prompts_per_step,
      samples=config.samples_per_prompt,
      prompts=config.curriculum_prompts or config.prompts_per_step,
      lag=config.actor.lag, response=config.max_response)
  curriculum = _checked_curriculum(
      _make('curriculum', config, CURRICULA, Curriculum, sizes), sizes.batch)
  sizes = sizes._replace(rounds=curriculum.max_rounds)
  stages = Stages(curriculum, _checked_selection(
      _make('selection', config, SELECTIONS, Selection, sizes)))
  return Stages(*(
      stage if config[field] in known else stage._replace(**{
          part: _named(f'{field}={config[field]}', part, call)
          for part, call in stage._asdict().items() if callable(call)})
      for stage, field, known in zip(
          stages, Stages._fields, (CURRICULA, SELECTIONS))))


def _make(
    field: str, config: ConfigDict, known: dict[str, Stage], kind: type,
    sizes: Sizes) -> Any:
  """Makes one stage."""
  name = config[field]
  if name in known:
    create, section = known[name]
    return create(sizes, **{
        x: config[section][x] for x in known[name].fields.values()})
  create = modules.function(f'{name}:create')
  made = _named(f'{field}={name}', 'create(sizes)', create)(sizes)
  if not isinstance(made, kind):
    raise ValueError(
        f'{field}={name}: create(sizes) gives {type(made).__name__}, but a '
        f'jaxrl_llm.types.{kind.__name__} is needed.')
  if isinstance(made, Curriculum) and (
      made.max_requests < made.max_prompts * made.min_count):
    raise ValueError(
        f'{field}={name} has max_requests={made.max_requests}, fewer than '
        f'min_count={made.min_count} samples of max_prompts='
        f'{made.max_prompts} groups: raise it, or lower one of the others.')
  if made.capacity and not made.stale:
    raise ValueError(
        f'{field}={name} holds rollouts for later steps: set stale=True, so '
        'that their old log-probs are kept.')
  return made


def _named(
    stage: str, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
  """Makes a function of the user's fail with one sentence (ValueError)."""
  def run(*args, **options):
    try:
      return call(*args, **options)
    except (KeyboardInterrupt, NoSignalError):
      raise
    except BaseException as error:
      where = modules.place(error, own_only=True)
      if not where and isinstance(error, ValueError):
        raise  # by the checks below
      raise ValueError(modules.failure(
          f'{stage}: {part} failed', error,
          where or 'what it returns')) from error

  return run


def _checked_curriculum(made: Curriculum, batch: int) -> Curriculum:
  """Adds checks of what a curriculum asks and takes."""
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


def _checked_selection(made: Selection) -> Selection:
  """Adds checks of the rows that a selection picks."""
  def select(state, table, rows, key):
    state, picked = made.select(state, table, rows, key)
    picked = np.asarray(picked)
    if picked.shape != (made.rows,):
      raise ValueError(
          f'The selection picks rows of the shape {picked.shape}: pick '
          f'[{made.rows}] rows, -1 for filler.')
    there = picked[picked >= 0]
    known = there[there < len(table.group)]
    if len(known) < len(there) or (
        (table.round[known] < 0) | ~table.valid[known]).any():
      raise ValueError(
          'The selection picks a row that is not valid or has no round yet: '
          'pick rows whose `valid` is set and whose `round` is at least 0.')
    return state, picked

  return made._replace(select=select)
