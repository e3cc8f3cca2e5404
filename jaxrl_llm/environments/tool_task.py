"""Mathematical problems, or those of own rewards, with tools to call.

The problems, their prompts and the judge are those of `tasks.math`. The last
turn of a trajectory is the answer.
"""

import dataclasses
from typing import Annotated, Any

from jaxrl_llm.environments import Limits, tools
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.plugs import modules
from jaxrl_llm.tasks import math

_Count = Annotated[int, '[1, inf)']


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the tools, and the limits of trajectories.

  Attributes:
    tools: functions that the model may call, FILE.py:NAME or
      PACKAGE.MODULE:NAME with commas between them; with type hints, and a line
      for each argument in the section Args of the docstring.
    max_turns: most turns of the model in a trajectory.
    max_turn: most tokens of a turn, its stop token included (none: what
      max_response leaves).
    max_observation: most tokens of the results of a turn's calls; of longer
      ones the model reads the beginning.
    tool_timeout: time limit in seconds for the calls of a turn.
  """
  tools: tuple[modules.Name, ...] = (
      modules.Name('jaxrl_llm.environments.calculator:calculator'),)
  max_turns: _Count = 4
  max_turn: Annotated[int | None, '[1, inf)'] = None
  max_observation: _Count = 256
  tool_timeout: Annotated[float, '(0, 86400]'] = 30.0


_PROBLEMS, _DEFAULTS = math.Options(), Options()


def create(
    tokenizer: Any = None, problems: math.Options = _PROBLEMS,
    options: Options = _DEFAULTS) -> math.Problems:
  """Makes the task.

  Args:
    tokenizer: of a model with a chat template.
    problems: options of the problems, and of the judge.
    options: options of the tools.

  Raises:
    ValueError: there is no tool, no chat markup, or no such function.
  """
  if not options.tools:
    raise ValueError(
        'task.tools is empty: name a function, or use task.name=math.')
  if not problems.worded().chat:
    raise ValueError(
        f'Tools are called in a chat, and task.template={problems.template} '
        'makes none: set task.template=auto, or task.markup=chat.')
  if not hasattr(tokenizer, 'chat'):
    raise ValueError(
        'Tools are called in a chat: set model.hf to a model with a chat '
        'template.')
  kind = math.Rewarded if problems.reward else math.Math

  class Tooled(kind):
    """Task with tools; see `tasks.Task`."""

    turns = Turns(
        tools.PREFIX + ','.join(options.tools), Limits(
            options.max_turns, options.max_turn, options.max_observation),
        markup=True, timeout=options.tool_timeout, rewards=False)

    def close(self) -> None:
      """Ends the worker processes."""
      self.turns.close()
      super().close()

  return Tooled(problems, tools.WithTools(tokenizer, options.tools))
