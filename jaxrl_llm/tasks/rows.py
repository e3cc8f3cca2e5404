"""Fields of the rows of a problem file, as data sets name them.

A field is named as it stands in the row, or by its place in a field that is a
dictionary: `reward_model.ground_truth`. Where the user names none, the names of
known data sets are tried: `problem`, TRL's `prompt`, `question`; `answer`,
`solution`, verl's `reward_model.ground_truth`.
"""

import json
import numbers
from typing import Any, Mapping

from jaxrl_llm.base import plain
from jaxrl_llm.tasks import closest, problem_files, templates

PROMPT = 'prompt'  # a field whose texts have their wording already
_ANSWERS = 'answer', 'solution', 'ground_truth', 'reward_model.ground_truth'

Row = problem_files.Row


def problem(row: Row, name: str) -> tuple[str, str | templates.Messages]:
  """Returns the name of the field with the problem, and the problem.

  Args:
    row: of a file.
    name: the field; '' for problem or prompt, or without either question.

  Raises:
    ValueError: there is no such field, it holds no text and no messages, or
      there are both problem and prompt.
  """
  if not name:
    there = [n for n in ('problem', PROMPT) if row.get(n) is not None]
    if len(there) > 1:
      raise ValueError(
          "there are both fields 'problem' and 'prompt': set "
          'config.task.problem to the one that the model is to read.')
    name = (there or [n for n in ('question', PROMPT) if n in row]
            or ['problem'])[0]
  value = lookup(row, name)
  if isinstance(value, list):
    return name, messages(name, value)
  return name, text(row, name)


def answer(row: Row, name: str, *, sure: bool = True) -> str:
  """Returns the name of the field with the answer.

  Args:
    row: of a file.
    name: the field. If a row has no field 'answer', it may be another one.
    sure: whether it must be the only one.

  Raises:
    ValueError: it may be one of several.
  """
  if name != _ANSWERS[0] or lookup(row, name) is not None:
    return name
  there = [n for n in _ANSWERS if lookup(row, n) is not None]
  if len(there) > 1 and sure:
    raise ValueError(
        f"there is no field 'answer', but {' and '.join(map(repr, there))}: "
        'set config.task.answer to one of them.')
  return (there or [name])[0]


def lookup(row: Row, name: str) -> Any:
  """Returns the value of a field, None if there is none."""
  if name in row:
    return row[name]
  first, _, rest = name.partition('.')
  inside = row.get(first)
  return lookup(inside, rest) if rest and isinstance(inside, Mapping) else None


def text(row: Row, name: str) -> str:
  """Returns a field as text, or raises an error if it is missing or empty."""
  value = lookup(row, name)
  if value is None and name not in row:
    raise ValueError(
        f'there is no field {name!r}.{closest(name, [*row])} Set '
        'config.task.problem, .answer and .kind to the names of your fields.')
  # Some tables store NaN for a missing value; NaN differs from itself.
  if value is None or value != value or not (found := str(value).strip()):
    raise ValueError(f'field {name!r} is empty.')
  if isinstance(value, bool) or not isinstance(value, (str, numbers.Number)):
    raise ValueError(
        f'field {name!r} is {value!r:.60}, not a text or a number.')
  refuse_infinity(name, value)
  check_unicode(name, found)
  return found


def refuse_infinity(name: str, value: Any) -> None:
  """Raises ValueError for Infinity, and for numbers beyond all, as 1e400."""
  if isinstance(value, float) and abs(value) == float('inf'):
    raise ValueError(
        f'field {name!r} is a number without end or beyond 1e308 ({value}): '
        'write it as a text, such as "\\infty" or "10^{400}".')


def check_unicode(name: str, value: str) -> None:
  """Raises ValueError for a text with halves of surrogates."""
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f'field {name!r} is not valid text ({error}).') from None


def messages(name: str, given: list[Any]) -> list[dict[str, Any]]:
  """Returns messages as chat templates take them.

  Tables have None where a message lacks a field that another one has. A message
  with calls of tools may lack its text, which becomes ''. Templates take the
  arguments of a call as a dictionary, not as JSON.

  Args:
    name: of the field.
    given: its value.

  Raises:
    ValueError: a message has no role or no text, or a call has no name.
  """
  found = []
  for number, message in enumerate(given, 1):
    where = f'message {number} of the field {name!r}'
    made = {key: value for key, value in message.items() if value is not None
            } if isinstance(message, Mapping) else {}
    if calls := made.pop('tool_calls', None):
      made['tool_calls'] = _calls(where, calls)
    if calls or made.get('role') == 'tool':  # a tool may say nothing
      made.setdefault('content', '')
    for key in ('role', 'content'):
      value = made.get(key)
      empty = key == 'content' and (calls or made.get('role') == 'tool')
      if not isinstance(value, str) or not (value.strip() or empty):
        raise ValueError(
            f'{where} has no text as its {key!r}: {plain.shown(message)}. '
            'Messages are dictionaries such as {"role": "user", "content": '
            '"1 + 1?"}.')
    check_unicode(name, json.dumps(made, ensure_ascii=False, default=str))
    found.append(made)
  if all(message['role'] != 'user' for message in found):
    raise ValueError(f'the field {name!r} has no message of the role user.')
  return found


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
  """Returns the calls of tools in a message as chat templates take them."""
  try:
    made = [{**call, 'function': {**call['function']}} for call in calls]
    for call in made:
      if not isinstance(call['function']['name'], str):
        raise TypeError
      arguments = call['function'].get('arguments') or {}
      if isinstance(arguments, str):
        arguments = json.loads(arguments)
      call['function']['arguments'] = {**arguments}
  except (KeyError, TypeError, ValueError, RecursionError):
    raise ValueError(
        f'{where} has tool_calls of another form: {plain.shown(calls)}. They '
        'are a list such as [{"type": "function", "function": {"name": "add", '
        '"arguments": {"a": 1}}}].') from None
  return made


def shown(value: str | templates.Messages) -> str:
  """Returns a problem as text; of several messages, with their roles."""
  if isinstance(value, str):
    return value
  if len(value) == 1:
    return value[0]['content'].strip()
  return '\n\n'.join(
      ' '.join([f'{m["role"]}:', m['content'].strip(), *(
          json.dumps(call['function'], default=str)
          for call in m.get('tool_calls', ()))]).strip() for m in value)
