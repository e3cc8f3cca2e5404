"""Mathematical problems, or those of own rewards, with tools to call.

The problems, their prompts and the judge are those of `tasks.math`. The last
turn of a trajectory is the answer.
"""

import dataclasses
from typing import Annotated, Any, Callable, Mapping, Sequence

from jaxrl_llm import answers
from jaxrl_llm.base import own_code
from jaxrl_llm.environments import Limits, Reply, tools
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.tasks import math, Problem

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
  tools: tuple[own_code.Name, ...] = (
      own_code.Name('jaxrl_llm.examples.calculator:calculator'),)
  max_turns: _Count = 4
  max_turn: Annotated[int | None, '[1, inf)'] = None
  max_observation: _Count = 256
  tool_timeout: Annotated[float, '(0, 86400]'] = 30.0


_PROBLEMS, _DEFAULTS = math.Options(), Options()


class _ToolTurns(Turns):
  """Turns whose texts begin with the reasoning that their prompts open."""

  def __init__(self, options: Options, tags: Sequence[str], later: str):
    """Makes the turns without starting a process.

    Args:
      options: of the tools.
      tags: names of the tags of reasoning.
      later: what a turn that is not the first follows.
    """
    super().__init__(
        tools.environment_name(options.tools, tags), Limits(
            options.max_turns, options.max_turn, options.max_observation),
        markup=True, timeout=options.tool_timeout, rewards=False)
    self._tags, self._later = tags, later
    self._tools = tools.Tools(options.tools, tags)  # reads calls here

  def ready(self) -> None:
    """Tries what the tools need; see `tools.Tools.ready`."""
    self._tools.ready()

  def submit(
      self, problem: Problem, seed: int, texts: Sequence[str],
      observations: Sequence[str]) -> Callable[[], Reply]:
    """Starts the step of a trajectory; see `Turns.submit`."""
    return super().submit(
        problem, seed, self._opened(problem, texts), observations)

  def _opened(self, problem: Problem, texts: Sequence[str]) -> list[str]:
    """Returns turns with the start tags that stand before them."""
    before = [problem.prompt, *[self._later] * len(texts)]
    return [answers.with_opened(prompt, text, self._tags)
            for prompt, text in zip(before, texts)]

  def messages(
      self, problem: Problem,
      turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a trajectory as messages, in the form of TRL's.

    Args:
      problem: of the trajectory.
      turns: with `text` and `observation`. That of the last is not read.

    Returns:
      Each turn with its calls, and its results as one message.
    """
    made: list[dict[str, Any]] = []
    texts = self._opened(problem, [turn['text'] for turn in turns])
    for turn, opened in zip(turns, texts):
      calls = [call for call in self._tools.calls(opened) if not call.fault]
      made += [dict(role='assistant', content=turn['text'], **({
          'tool_calls': [dict(type='function', function=dict(
              name=call.name, arguments=call.arguments)) for call in calls]
      } if calls else {})), dict(
          role='tool', name=', '.join(call.name for call in calls),
          content=turn['observation'])]
    return made[:-1]


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
  shown = tools.WithTools(tokenizer, options.tools)

  class Tooled(kind):
    """Task with tools; see `tasks.Task`."""

    turns = _ToolTurns(options, problems.reasoning_tags, shown.next_turn(''))

    def ready(self) -> None:
      """Raises ValueError if a tool does not work here."""
      self.turns.ready()

    def close(self) -> None:
      """Ends the worker processes."""
      self.turns.close()
      super().close()

  return Tooled(problems, shown)
