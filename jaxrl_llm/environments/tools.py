"""Tools: functions that a model calls in its turns.

The chat template shows the model what the functions take, from their type hints
and docstrings. A turn with calls is answered by their results; one without is
the answer, which the task judges. `call_forms` reads the calls, behind the
reasoning. A call that cannot be read, or that fails, is answered by its error:
the model may try again. A function may have an attribute `ready`, a function
that raises ValueError if calls cannot work here.
"""

import functools
import inspect
import json
import re
import typing
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from jaxrl_llm import answers
from jaxrl_llm.base import own_code, plain, results
from jaxrl_llm.environments import call_forms
from jaxrl_llm.environments.call_forms import calls
from jaxrl_llm.rewards.sandbox import SandboxError

PREFIX = 'tools:'  # of the name of such an environment


class Tool(NamedTuple):
  """A function that a model may call.

  Attributes:
    name: what calls name it.
    function: the function.
    signature: what a call may give it, without what a partial has given.
    hints: types of these arguments, and of the result.
    doc: docstring; '' if there is none.
  """
  name: str
  function: Callable[..., Any]
  signature: inspect.Signature
  hints: Mapping[str, Any]
  doc: str


def _tool(given: str) -> Tool:
  """Imports a tool.

  Args:
    given: FILE.py:NAME or PACKAGE.MODULE:NAME.

  Raises:
    ValueError: there is no such function, or calls cannot name its arguments.
  """
  function = inner = own_code.function(given)
  if isinstance(function, type):
    raise ValueError(
        f'task.tools={given} is a class: name a function, or an object that '
        'can be called.')
  fixed: set[str] = set()
  while isinstance(inner, functools.partial):
    fixed, inner = fixed | {*inner.keywords}, inner.func
  doc = inspect.getdoc(inner)
  if not hasattr(inner, '__name__'):  # an object
    inner = inner.__call__
    doc = inspect.getdoc(inner) if inner.__doc__ else doc
  try:
    signature = inspect.signature(function)
    hints = typing.get_type_hints(inner)
  except Exception as error:  # of types that are named in quotes
    raise ValueError(_undescribed(given, error)) from None
  kept = [p for p in signature.parameters.values() if p.name not in fixed]
  for p in kept:
    if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
      raise ValueError(
          f'task.tools={given} takes {p.name} by its position, and calls name '
          "their arguments: remove '/' and '*' from the parameters, and use "
          'functools.wraps in a decorator.')
  own = getattr(function, '__name__', '')
  return Tool(
      own if own.isidentifier() else given.rpartition(':')[2], function,
      signature.replace(parameters=kept), hints, doc or '')


def _undescribed(given: str, error: Exception) -> str:
  return (f'task.tools={given} has no description for a model '
          f'({plain.line(plain.error(error))}): give each argument a type '
          'hint, and a line in the section Args of its docstring.')


def found(names: Sequence[str]) -> dict[str, Tool]:
  """Returns the tools of a config by the names that calls use.

  Raises:
    ValueError: see `_tool`; or two have one name.
  """
  made: dict[str, Tool] = {}
  given: dict[str, str] = {}
  for name in names:
    tool = _tool(name)
    if tool.name in made:
      raise ValueError(
          f'task.tools names {given[tool.name]} and {name}, which are both '
          f'{tool.name} to the model: rename one of the functions.')
    made[tool.name], given[tool.name] = tool, name
  return made


def schemas(names: Sequence[str]) -> list[dict[str, Any]]:
  """Returns the JSON schemas of functions, for a chat template.

  Args:
    names: FILE.py:NAME or PACKAGE.MODULE:NAME of each.

  Raises:
    ValueError: there is no such function, or it lacks a type hint or a part of
      its docstring; or two have one name.
  """
  from transformers.utils import get_json_schema
  made = []
  for given, tool in zip(names, found(names).values()):
    shown = [p for p in tool.signature.parameters.values()
             if p.kind != p.VAR_KEYWORD]

    def described():
      pass

    described.__name__, described.__doc__ = tool.name, tool.doc
    described.__signature__ = tool.signature.replace(parameters=shown)
    described.__annotations__ = {
        name: tool.hints[name] for name in (*(p.name for p in shown), 'return')
        if name in tool.hints}
    try:
      made.append(get_json_schema(described))
    except Exception as error:  # the library has kinds of its own
      raise ValueError(_undescribed(given, error)) from None
  return made


_INTRODUCTION = """You can call these functions:
{functions}
To call one, write
<tool_call>{{"name": "NAME", "arguments": {{"ARGUMENT": VALUE}}}}</tool_call>
and nothing after it. The next message has its result. A message without a call
is your answer."""

# A function, a call and its result that no template has already.
_QUESTION, _ANSWER, _RESULT = 'Question-probe', 'Answer-probe', 'Result-probe'
_NAME, _KEY, _VALUE = 'probe_name', 'probe_key', 'a "b"\nc'
_PROBE = {'type': 'function', 'function': {
    'name': _NAME, 'description': 'Says.', 'parameters': {
        'type': 'object', 'required': [_KEY], 'properties': {
            _KEY: {'type': 'string', 'description': 'Text.'}}}}}
_READ_FORM = re.compile(
    r'<tool_call>\s*(?:\{\s*["\'](?:name|arguments)|<function=)')
# What a line has that may say how to call: two words, or a sign of code.
_TAG = re.compile(r'<\|[^|]*\|>|</?\w+>|\[/?\w+\]')
_SAYS = re.compile(r'[a-z]{2,}[^a-z]+[a-z]{2,}|[<\[({=]', re.IGNORECASE)


def shows_tools(own: Any) -> bool:
  """Tells whether a chat template shows tools, and asks for calls as we read.

  Args:
    own: a model's tokeniser with a chat template.

  Returns:
    False if tools have to be described in a message.

  Raises:
    ValueError: the template asks for calls in another form.
  """
  without, shown = own.chat(_QUESTION), own.chat(_QUESTION, [_PROBE])
  if shown == without:
    return False
  written = _written_call(own)
  if written is None:  # the template shows no earlier calls
    read = bool(_READ_FORM.search(shown))
    schema = json.dumps(_PROBE, indent=1)
    other = not read and any(
        _SAYS.search(_TAG.sub('', line)) for line in shown.splitlines()
        if line not in without and line.strip() not in schema
        and _NAME not in line and _KEY not in line)
  else:
    read = [call[:2] for call in calls(written, {_NAME: {_KEY: str}})] == [
        (_NAME, {_KEY: _VALUE})]
    other = not read
  if other:
    raise ValueError(
        f'The chat template of {own.folder} asks for calls of tools in a form '
        'that is not read'
        + (f', {plain.shown(written, 100)}' if written else '')
        + ': choose a model that writes <tool_call> and JSON or '
        '<function=NAME>, or remove the tools from the chat template; they are '
        'then described in a system message.')
  return read and _NAME in shown and _KEY in shown


def _written_call(own: Any) -> str | None:
  """Returns a turn with a call as the chat template writes it, or None."""
  def turn(**message):
    text = own.chat([
        dict(role='user', content=_QUESTION),
        dict(role='assistant', **message),
        dict(role='tool', name=_NAME, tool_call_id='000000000',
             content=_RESULT)], [_PROBE])
    return text.rpartition(_QUESTION)[2].partition(_RESULT)[0]

  try:
    before, _, after = turn(content=_ANSWER).partition(_ANSWER)
  except ValueError:  # no result is allowed without a call
    before = after = ''
  arguments = {_KEY: _VALUE}
  for content in '', None:
    for given in arguments, json.dumps(arguments):  # templates want one of them
      try:
        text = turn(content=content, tool_calls=[dict(
            type='function', id='000000000',
            function=dict(name=_NAME, arguments=given))])
      except ValueError:
        continue
      if _KEY in text:  # the name may stand beside the result too
        return text.removeprefix(before).removesuffix(after)
  return None


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
        answer, or asks for calls in a form that is not read.
    """
    self._own, self._tools = own, schemas(names)
    self._system, self._role, self._takes_system = '', 'tool', True
    if not shows_tools(own) or not self._shows_results():
      self._system = _INTRODUCTION.format(functions='\n'.join(
          json.dumps(tool['function']) for tool in self._tools))
      self._role = 'user'
      try:
        self.chat('1 + 1?')
      except ValueError:
        self._takes_system = False
        self.chat('1 + 1?')
      self.next_turn('')

  def _shows_results(self) -> bool:
    try:
      return _RESULT in self.next_turn(_RESULT)
    except ValueError:  # the template may still take a user's turn
      return False

  def __getattr__(self, name: str) -> Any:
    return getattr(self._own, name)

  def chat(self, turns: str | Sequence[Mapping[str, Any]]) -> str:
    """Formats messages as `ModelTokenizer.chat` does, with the functions."""
    if not self._system:
      return self._own.chat(turns, self._tools)
    messages = [dict(role='user', content=turns)] if (
        isinstance(turns, str)) else [*turns]
    if not self._takes_system:
      i = [message['role'] for message in messages].index('user')
      messages[i] = dict(messages[i], content=(
          f'{self._system}\n\n{messages[i]["content"]}'))
      return self._own.chat(messages)
    system = self._system
    if messages[0]['role'] == 'system':
      system = f'{messages.pop(0)["content"]}\n\n{system}'
    return self._own.chat([dict(role='system', content=system), *messages])

  def next_turn(self, text: str) -> str:
    """Returns what follows a turn with calls, up to the next turn."""
    return self._own.next_turn(
        text, self._role, () if self._system else self._tools)


def environment_name(names: Sequence[str], tags: Sequence[str]) -> str:
  """Returns the name of the environment of functions.

  Args:
    names: of the functions.
    tags: names of the tags of reasoning.
  """
  return f'{PREFIX}{",".join(names)};{",".join(tags)}'


def named(name: str) -> 'Tools':
  """Returns the environment of a name of `environment_name`."""
  names, given, tags = name.removeprefix(PREFIX).partition(';')
  return Tools(names.split(','), [*filter(None, tags.split(','))] if (
      given) else answers.TAGS)


class Tools:
  """Environment of tools; see `environments`."""

  def __init__(
      self, names: Sequence[str], tags: Sequence[str] = answers.TAGS):
    """Imports the functions.

    Args:
      names: of the functions.
      tags: names of the tags of reasoning; calls are read behind it.
    """
    self._tools, self._tags = found(names), tags
    self._hints = {tool.name: tool.hints for tool in self._tools.values()}

  def ready(self) -> None:
    """Tries what the functions need.

    Raises:
      ValueError: it does not work here.
    """
    for tool in self._tools.values():
      getattr(tool.function, 'ready', lambda: None)()

  def reset(self, problem: Mapping[str, Any], seed: int) -> tuple[None, str]:
    """Begins a trajectory; the task writes the prompt."""
    del problem, seed
    return None, ''

  def step(self, state: None, text: str) -> tuple[None, str | None, float]:
    """Answers the calls of a turn; without one it ends the trajectory."""
    made = self.calls(text)
    said = plain.text('\n'.join(map(self._answer, made)))
    return state, said if made else None, 0.0

  def calls(self, text: str) -> list[call_forms.Call]:
    """Returns the calls of a turn, see `call_forms.calls`."""
    return calls(call_forms.behind_reasoning(text, self._tags), self._hints)

  def _answer(self, call: call_forms.Call) -> str:
    """Returns the result of a call as text, or what is wrong with it."""
    if call.fault:
      return f'Error: {call.fault}.'
    if call.name not in self._tools:
      return (f'Error: there is no tool {call.name}; there '
              f'is {", ".join(self._tools)}.')
    tool = self._tools[call.name]
    try:
      tool.signature.bind(**call.arguments)
    except TypeError as error:
      return f'Error: {call.name}: {error}.'
    try:
      return str(results.result(tool.function(**call.arguments)))
    except SandboxError:  # which says nothing of the call
      raise
    except BaseException as error:  # sys.exit() is no end of the trajectory
      return f'Error: {plain.line(plain.error(error))}'
