"""Environments: what answers a response, so that the model goes on.

An environment is a module with two functions:

  reset(problem, seed) -> (state, prompt)
  step(state, text) -> (state, observation, reward)

`problem` is a dictionary, a row of a problem file. `reset` begins a trajectory;
its prompt is the same for every seed. `step` gets the text that the model wrote
in its turn. The observation is a text that the model reads next, or None, which
ends the trajectory. The reward of a trajectory is the sum over its turns.

Both are functions of their arguments alone: (problem, seed, texts) give the
same observations and rewards in every process and at any time. A state is thus
never saved. It lives in a worker process, and is made again from the texts
where it is not there.

A module may also have:

  problems(split, seed) -> [problem], split 'train' or 'heldout'
  demonstration(problem, seed) -> [(text, observation)], for a warm start
  ALPHABET, the characters that a model without a tokeniser reads and writes
"""

from typing import NamedTuple


class Reply(NamedTuple):
  """Answer of an environment to a turn.

  Attributes:
    observation: what the model reads next; None ends the trajectory.
    reward: of this turn.
    kind: 'turn'; or 'timeout' or 'error', if the environment failed.
    detail: one line about the failure.
  """
  observation: str | None
  reward: float
  kind: str = 'turn'
  detail: str = ''


class Limits(NamedTuple):
  """Limits of a trajectory; all of it also has to fit into a response.

  Attributes:
    turns: most turns of the model.
    turn: most tokens of a turn, its stop token included; None for no limit.
    observation: most tokens of an observation, without the markup around it;
      of a longer one the model reads the beginning.
  """
  turns: int
  turn: int | None
  observation: int
