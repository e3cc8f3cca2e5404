"""Steps of environments in a worker process, see `rewards.pool`."""

import functools
import importlib
import math
from typing import Any, Mapping, NamedTuple

from jaxrl_llm.base import own_code, plain, results
from jaxrl_llm.environments import tools

# Characters of an observation that come back to the run, see `rewards.worker`.
LONGEST = 100_000
_KEPT = 1024  # trajectories whose states a worker keeps


class _Kept(NamedTuple):
  """State of a trajectory after some turns, and all that was said in it."""
  state: Any
  texts: list[str]
  observations: list[str]


_kept: dict[tuple[str, int, str], _Kept] = {}


@functools.cache
def environment(name: str) -> Any:
  """Returns an environment: FILE.py, a module, or tools: and their names.

  Raises:
    ValueError: it lacks a function.
  """
  if name.startswith(tools.PREFIX):
    return tools.named(name)
  module = own_code.load(name) if name.endswith('.py') else (
      importlib.import_module(name))
  missing = [f for f in ('reset', 'step') if not callable(
      getattr(module, f, None))]
  if missing:
    raise ValueError(
        f'{name} has no function {" and no function ".join(missing)}: see '
        'jaxrl_llm.environments.')
  return module


def begin(
    module: Any, name: str, problem: Mapping[str, Any], seed: int,
) -> tuple[Any, str]:
  """Calls `reset`, and checks what it returns.

  Returns:
    The state and the prompt.

  Raises:
    ValueError: it fails, or returns something else.
  """
  found = called(module, name, 'reset', problem, seed)
  if not (isinstance(found, tuple) and len(found) == 2
          and isinstance(found[1], str)):
    raise ValueError(
        f'reset of {name} returned {plain.shown(found, 80)}: return a pair of '
        'the state and the prompt, a text.')
  return found


def called(module: Any, name: str, function: str, *given: Any) -> Any:
  """Returns the result of an environment's function, which may be `async`."""
  return own_code.guarded(f'{function} of {name}', lambda: results.result(
      getattr(module, function)(*given)))()


def _stepped(module: Any, name: str, state: Any, text: str) -> tuple:
  """Calls `step`, and checks what it returns.

  The observation is what the run gets, now and when turns are done again: text
  that can be encoded, and not too long.
  """
  found = called(module, name, 'step', state, text)
  whole = isinstance(found, tuple) and len(found) == 3
  reward = plain.number(found[2]) if whole else None
  if reward is None or not (
      math.isfinite(reward) and isinstance(found[1], str | None)):
    raise ValueError(
        f'step of {name} returned {plain.shown(found, 80)}: return the state, '
        'the observation (a text, or None at the end) and the reward, a '
        'number.')
  state, observation, _ = found
  if observation is not None:
    observation = plain.text(observation)[:LONGEST]
  return state, observation, reward


def step(item: Mapping[str, Any]) -> dict[str, Any]:
  """Steps an environment, after the turns before if it must.

  Args:
    item: `name` of the environment, `problem` and its `prompt`, `seed`, the
      `key` of the problem, the `texts` of all turns so far, and the
      `observations` that came before the last.

  Returns:
    `kind`, `observation` and `reward` of the last turn. The kind is 'differs'
    if earlier turns have other observations now, or the prompt is another.
  """
  name, texts, said = item['name'], item['texts'], item['observations']
  module = environment(name)
  if isinstance(module, tools.Tools):  # each turn is answered by itself
    _, observation, reward = _stepped(module, name, None, texts[-1])
    return {'kind': 'turn', 'observation': observation, 'reward': reward}
  key = name, item['seed'], item['key']
  kept = _kept.pop(key, None)
  if kept is None or kept[1:] != (texts[:-1], said):
    state, prompt = begin(module, name, item['problem'], item['seed'])
    if prompt != item['prompt']:
      return {
          'kind': 'differs', 'detail': (
              f'{name} began problem {item["key"]} with {prompt!r:.60}, and '
              f'with {item["prompt"]!r:.60} for another seed: what differs by '
              'seed goes into the state or a later observation')}
    for number, (text, before) in enumerate(zip(texts, said)):
      state, observation, _ = _stepped(module, name, state, text)
      if observation != before:
        return {
            'kind': 'differs', 'detail': (
                f'{name} answered turn {number + 1} of problem {item["key"]} '
                f'with {before!r:.60} before, and with {observation!r:.60} '
                'now: it must depend on problem, seed and texts alone')}
  else:
    state = kept.state
  state, observation, reward = _stepped(module, name, state, texts[-1])
  if observation is not None:
    if len(_kept) >= _KEPT:
      del _kept[next(iter(_kept))]  # the oldest
    _kept[key] = _Kept(state, [*texts], [*said, observation])
  return {'kind': 'turn', 'observation': observation, 'reward': reward}
