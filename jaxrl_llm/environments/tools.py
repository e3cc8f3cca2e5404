"""Tools: functions that a model calls in its turns.

The chat template shows the model what the functions take, from their type hints
and docstrings. A turn with calls is answered by their results; one without is
the answer, which the task judges. Calls are read in the two forms that models
of today write:

  <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
  {"name": "add", "parameters": {"a": 1, "b": 2}}

the latter as the whole turn. A call that cannot be read, or that fails, is
answered by its error: the model may try again.
"""

import inspect
import json
import re
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from jaxrl_llm.plugs import modules
from jaxrl_llm.rewards import plain

PREFIX = 'tools:'  # of the name of such an environment
_BLOCK = re.compile(r'<tool_call>(.*?)(</tool_call>|\Z)', re.DOTALL)


class Call(NamedTuple):
  """A call of a function; `fault` says why it cannot be made."""
  name: str = ''
  arguments: Mapping[str, Any] = {}
  fault: str = ''


def calls(text: str) -> list[Call]:
  """Returns the calls of a turn; [] if there is none."""
  blocks = _BLOCK.findall(text)
  if blocks:
    return [_call(body) if end else Call(
        fault='the call has no </tool_call>') for body, end in blocks]
  whole = text.strip().removeprefix('<|python_tag|>').strip()
  if whole.startswith('{') and '"name"' in whole:
    return [_call(whole)]
  return []


def _call(text: str) -> Call:
  """Reads a call written as JSON."""
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    return Call(fault=f'the call is not valid JSON ({plain.error(error)})')
  if not isinstance(found, dict) or not isinstance(found.get('name'), str):
    return Call(fault='the call is no JSON object with a "name"')
  arguments = found.get('arguments', found.get('parameters', {}))
  if not isinstance(arguments, dict):
    return Call(fault=f'the arguments of {found["name"]} are no JSON object')
  return Call(found['name'], arguments)


def schemas(names: Sequence[str]) -> list[dict[str, Any]]:
  """Returns the JSON schemas of functions, for a chat template.

  Args:
    names: FILE.py:NAME or PACKAGE.MODULE:NAME of each.

  Raises:
    ValueError: there is no such function, or it lacks a type hint or a part of
      its docstring.
  """
  from transformers.utils import get_json_schema
  made = []
  for name in names:
    function = modules.function(name)
    try:
      made.append(get_json_schema(function))
    except Exception as error:  # the library has kinds of its own
      raise ValueError(
          f'task.tools={name} has no description for a model '
          f'({plain.line(plain.error(error))}): give each argument a type '
          'hint, and a line in the section Args of its docstring.') from None
  return made


_INTRODUCTION = """You can call these functions:
{functions}
To call one, write
<tool_call>{{"name": "NAME", "arguments": {{"ARGUMENT": VALUE}}}}</tool_call>
and nothing after it. The next message has its result. A message without a call
is your answer."""


class WithTools:
  """A model's tokeniser whose chats show the model some functions.

  They are in the form of the chat template. If it has none, they are described
  in a system message, and results are a user's turns.
  """

  def __init__(self, own: Any, names: Sequence[str]):
    """Makes the tokeniser.

    Args:
      own: the model's.
      names: of the functions.

    Raises:
      ValueError: one has no description, or the template cannot go on after an
        answer.
    """
    self._own, self._tools = own, schemas(names)
    called = [tool['function']['name'] for tool in self._tools]
    shown = own.chat('1 + 1?', self._tools)
    self._system = '' if all(name in shown for name in called) else (
        _INTRODUCTION.format(functions='\n'.join(
            json.dumps(tool['function']) for tool in self._tools)))
    self._role = 'user' if self._system else 'tool'
    self.next_turn('')

  def __getattr__(self, name: str) -> Any:
    return getattr(self._own, name)

  def chat(self, turns: str | Sequence[Mapping[str, Any]]) -> str:
    """Formats messages as `ModelTokenizer.chat` does, with the functions."""
    if not self._system:
      return self._own.chat(turns, self._tools)
    messages = [dict(role='user', content=turns)] if (
        isinstance(turns, str)) else [*turns]
    system = self._system
    if messages[0]['role'] == 'system':
      system = f'{messages.pop(0)["content"]}\n\n{system}'
    return self._own.chat([dict(role='system', content=system), *messages])

  def next_turn(self, text: str) -> str:
    """Returns what follows a turn with calls, up to the next turn."""
    return self._own.next_turn(
        text, self._role, () if self._system else self._tools)


class Tools:
  """Environment of tools; see `environments`."""

  def __init__(self, names: Sequence[str]):
    self._functions: dict[str, Callable[..., Any]] = {}
    for name in names:
      function = modules.function(name)
      self._functions[function.__name__] = function

  def reset(self, problem: Mapping[str, Any], seed: int) -> tuple[None, str]:
    """Begins a trajectory; the task writes the prompt."""
    del problem, seed
    return None, ''

  def step(self, state: None, text: str) -> tuple[None, str | None, float]:
    """Answers the calls of a turn; without one it ends the trajectory."""
    found = calls(text)
    return state, '\n'.join(map(self._answer, found)) if found else None, 0.0

  def _answer(self, call: Call) -> str:
    """Returns the result of a call as text, or what is wrong with it."""
    if call.fault:
      return f'Error: {call.fault}.'
    if call.name not in self._functions:
      return (f'Error: there is no tool {call.name}; there '
              f'is {", ".join(self._functions)}.')
    function = self._functions[call.name]
    try:
      inspect.signature(function).bind(**call.arguments)
    except TypeError as error:
      return f'Error: {call.name}: {error}.'
    try:
      return plain.text(str(function(**call.arguments)))
    except Exception as error:  # the model's arguments are to blame
      return f'Error: {plain.line(plain.error(error))}'
