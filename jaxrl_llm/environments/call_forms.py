"""Calls of functions as models write them in their turns.

  <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
  {"name": "add", "parameters": {"a": 1, "b": 2}}

The latter is the whole turn, or stands behind <|python_tag|>. Between the tags
there may also be the XML of `qwen_xml`. JSON or XML says where a call ends: a
tag in a text of it is text.
"""

import json
import re
from typing import Any, Mapping, NamedTuple, Sequence

from jaxrl_llm import answers
from jaxrl_llm.base import plain
from jaxrl_llm.environments import qwen_xml

_OPEN, _CLOSE, _MARK = '<tool_call>', '</tool_call>', '<|python_tag|>'
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r'[\s;,]*(?=[\[{])')  # two calls
_XML = re.compile(r'\s*(?=<function=)')
# The tag is missing where it is a stop token.
_CLOSING = re.compile(rf'\s*(?:{_CLOSE}|\Z)')
# The start of a call that is the whole turn; it may be cut.
_BEGUN = re.compile(
    r'[\s\[]*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]*)"'
    r'\s*,\s*"(?:arguments|parameters)"\s*:')

# Type hints of the arguments of each function.
Hints = Mapping[str, Mapping[str, Any]]


class Call(NamedTuple):
  """A call of a function; `fault` says why it cannot be made."""
  name: str = ''
  arguments: Mapping[str, Any] = {}
  fault: str = ''


def calls(text: str, hints: Hints | None = None) -> list[Call]:
  """Returns the calls of a turn.

  Args:
    text: the turn, without its reasoning.
    hints: of the functions that there are. A turn that is JSON without tags is
      a call only of one of them. None: of any, and values in XML are texts.

  Returns:
    The calls in their order; [] if the turn is an answer.
  """
  if found := _untagged(text, hints):
    return found
  at, mark = text.find(_OPEN), text.find(_MARK)
  if mark >= 0 and not 0 <= at < mark:
    return _untagged(text[mark + len(_MARK):], hints, marked=True)
  while at >= 0:
    made, end = _tagged(text, at + len(_OPEN), hints)
    found += made
    at = text.find(_OPEN, end)
  return found


def behind_reasoning(text: str, tags: Sequence[str]) -> str:
  """Returns what follows the reasoning of a turn.

  It is `answers.final_part`, for which a tag within a call, or in quotes, is
  text.

  Args:
    text: the turn, with the tag that its prompt ended with, if any.
    tags: names of the tags of reasoning.
  """
  names = '|'.join(map(re.escape, tags))
  before = re.compile(
      rf'(?:\A|{_OPEN}|{re.escape(_MARK)}|</(?:{names})\s*>)\s*(?=[\[{{<])')
  shown = re.sub(
      rf'([`"\'])</?(?:{names})\s*>\1', lambda found: ' ' * len(found[0]), text)
  at = 0
  while found := before.search(text, at):
    start = found.end()
    try:
      _, end = _values(text, start)
    except ValueError:
      end = start
    shown = shown[:start] + ' ' * (end - start) + shown[end:]
    at = end or 1
  return text[len(text) - len(answers.final_part(shown, tags)):]


def _values(text: str, start: int) -> tuple[list[Any], int]:
  """Reads calls that follow each other.

  Returns:
    Values of JSON, or a `Call` with texts as arguments for one in XML; and
    where they end.

  Raises:
    ValueError: there is none, or one is not valid.
  """
  if xml := _XML.match(text, start):
    read = qwen_xml.read(text, xml.end())
    if read is None:
      raise ValueError('the call has no whole <function=NAME>...</function>')
    return [Call(*read[:2])], read[2]
  found, at = [], start
  while between := _BETWEEN.match(text, at):
    try:
      value, at = _DECODER.raw_decode(text, between.end())
    except (ValueError, RecursionError) as error:
      raise ValueError(
          f'the call is not valid JSON ({plain.error(error)})') from None
    found += value if isinstance(value, list) else [value]
  if not found:
    raise ValueError('the call is not valid JSON')
  return found, at


def _tagged(
    text: str, start: int, hints: Hints | None) -> tuple[list[Call], int]:
  """Reads the calls behind a start tag.

  Returns:
    The calls, or one with a fault; and where they end.
  """
  try:
    values, end = _values(text, start)
    fault = 'there is more than a call before </tool_call>'
  except ValueError as error:
    values, end, fault = [], start, str(error)
  if values and (closing := _CLOSING.match(text, end)):
    return [_call(value, hints) for value in values], closing.end()
  closed, again = text.find(_CLOSE, end), text.find(_OPEN, end)
  if closed < 0 or 0 <= again < closed:
    return [Call(fault='the call has no </tool_call>')], end
  return [Call(fault=fault)], closed + len(_CLOSE)


def _untagged(
    text: str, hints: Hints | None, marked: bool = False) -> list[Call]:
  """Reads calls without tags; [] if the text is another one.

  Args:
    text: the turn, or what follows the mark.
    hints: see `calls`.
    marked: whether a mark says that these are calls.
  """
  try:
    values, end = _values(text, 0)
  except ValueError as error:
    begun = _BEGUN.match(text)
    if marked or begun and (hints is None or begun[1] in hints):
      return [Call(fault=str(error))]
    return []
  if not marked and not all(_is_call(value, hints) for value in values):
    return []
  if text[end:].strip(' ;\n'):
    return [Call(fault='a message with a call has nothing else behind it')]
  return [_call(value, hints) for value in values]


def _is_call(value: Any, hints: Hints | None) -> bool:
  """Tells whether a value of JSON is a call, not an answer in JSON."""
  return isinstance(value, dict) and isinstance(value.get('name'), str) and (
      hints is None or value['name'] in hints) and (
          'arguments' in value or 'parameters' in value)


def _call(value: Any, hints: Hints | None) -> Call:
  """Returns the call that a value of `_values` is."""
  if isinstance(value, Call):
    known = (hints or {}).get(value.name, {})
    return value._replace(arguments={
        key: qwen_xml.value(text, known.get(key, str))
        for key, text in value.arguments.items()})
  if not isinstance(value, dict) or not isinstance(value.get('name'), str):
    return Call(fault='the call is no JSON object with a "name"')
  arguments = value.get('arguments', value.get('parameters'))
  if arguments in (None, ''):
    arguments = {}
  elif isinstance(arguments, str):
    try:
      arguments = json.loads(arguments)
    except (ValueError, RecursionError):
      pass  # a text is no object
  if not isinstance(arguments, dict):
    return Call(fault=f'the arguments of {value["name"]} are no JSON object')
  return Call(value['name'], arguments)
