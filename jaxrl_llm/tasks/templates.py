"""Prompts: a text around a problem, and the model's chat markup around that.

A template is a text that contains {problem}, or the name of one. The markup is
a switch: with it, the text is a user's message in the model's own chat format,
behind a system message if there is one. A problem that is a list of messages
has its wording already; the template is put around its last user's message.
"""

import re
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from absl import logging

from jaxrl_llm.base.own_code import closest

_BOXED = ('Please reason step by step, and put your final answer within '
          '\\boxed{}.')
# The text that the model reads; {problem} is replaced by the problem.
FORMATS = {
    # As `chat`, but a task leaves problems with a wording as they stand.
    'auto': '{problem}\n' + _BOXED,
    # Problem and instruction as a user's turn, in the tokeniser's chat format.
    'chat': '{problem}\n' + _BOXED,
    # The CBS paper's template, after Liu et al. 2025 (arXiv:2503.20783).
    'qwen': (
        '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n'
        '<|im_start|>user\n{problem}\n' + _BOXED + '<|im_end|>\n'
        '<|im_start|>assistant\n'),
    # Qwen2.5-Math's template: the instruction is the system message.
    'qwen_math': (
        '<|im_start|>system\n' + _BOXED + '<|im_end|>\n'
        '<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'),
    # For base models without a chat format.
    'question': 'Question: {problem}\n' + _BOXED + '\nAnswer:',
    'none': '{problem}',
}
_IN_CHAT = frozenset({'auto', 'chat'})  # formats in the chat markup

# Special tokens as the families of models write them.
_SPECIAL = re.compile(r'<\|[^<>|{}\s]+\|>|<(?:start|end)_of_turn>')

_OTHER = 'another one'  # no message of a row has this text

Messages = Sequence[Mapping[str, Any]]


class RowError(ValueError):
  """Raised if the messages of a row are at fault, and not the template."""


class Template(NamedTuple):
  """How problems become prompts.

  Attributes:
    name: as the user gave it.
    text: it contains {problem}.
    chat: whether the text is a user's message in the model's chat markup.
    system: message in front of it; '' for none.
  """
  name: str
  text: str
  chat: bool
  system: str = ''


def make_template(
    name: str, formats: Mapping[str, str] = FORMATS, *, markup: str = 'auto',
    system: str = '') -> Template:
  """Makes a template.

  Args:
    name: a key of `formats`, or a text that contains {problem}.
    formats: texts by name. 'chat' and 'auto' are in the chat markup.
    markup: 'chat', 'none', or 'auto' for what the format says; a text alone has
      none.
    system: system message; '' for none.

  Raises:
    ValueError: there is no such format, or the three contradict each other.
  """
  if name not in formats and '{problem}' not in name:
    raise ValueError(
        f'task.template={name!r} is not a known format, no FILE.txt, and does '
        f'not contain {{problem}}.{closest(name, [*formats])}')
  text = formats.get(name, name)
  chat = name in _IN_CHAT if markup == 'auto' else markup == 'chat'
  shown = name if name in formats else repr(name)
  if chat and (found := _SPECIAL.search(text)):
    raise ValueError(
        f'task.template={shown} writes {found[0]} itself, and task.markup=chat '
        'would write it again: leave task.template out; or task.markup, if the '
        'problems are no messages.')
  if system and not chat:
    raise ValueError(
        f'task.system is a message of a chat, and task.template={shown} makes '
        'none: set task.markup=chat, or write the text into the template.')
  return Template(name, text, chat, system)


def render(
    template: Template, problem: str | Messages, tokenizer: Any) -> str:
  """Returns the prompt of a problem.

  Args:
    template: of `make_template`.
    problem: the problem's text, or its messages.
    tokenizer: the model's tokeniser. The chat markup is its `chat(messages)`;
      other prompts have its `start` once at the beginning.

  Returns:
    The prompt, with special tokens spelled out.

  Raises:
    RowError: the chat markup does not take these messages.
    ValueError: the tokeniser has no chat format, or none with a system message;
      or the template makes no chat of messages.
  """
  # Not str.format: problems and templates contain many braces.
  if isinstance(problem, str):
    text = template.text.replace('{problem}', problem)
    if not template.chat:
      return tokenizer.start + text.removeprefix(tokenizer.start)
    return tokenizer.chat(
        [dict(role='system', content=template.system),
         dict(role='user', content=text)] if template.system else text)
  if not template.chat:
    needs = ('Problems that are messages need chat markup, and task.template='
             f'{template.name!r} ')
    if found := _SPECIAL.search(template.text):
      raise ValueError(
          f'{needs}writes {found[0]} itself: leave task.template and '
          'task.markup out.')
    raise ValueError(f'{needs}makes none: set task.markup=chat.')
  messages = _worded(template, problem)
  try:
    text = tokenizer.chat(messages)
  except ValueError as error:
    tokenizer.chat('1 + 1?')  # raises an error that no row is to blame for
    raise RowError(str(error)) from None
  refuse_left_out(messages, text, tokenizer.chat)
  return text


def refuse_left_out(
    messages: Sequence[dict[str, Any]], text: str,
    chat: Callable[[Messages], str]) -> None:
  """Raises RowError if the chat markup leaves out a message or a call.

  Templates know the roles system, user and assistant; they pass over others
  without an error. Some write a tool's text as JSON, so the text itself need
  not be in the prompt, but another one must make another prompt.

  Args:
    messages: as the chat markup gets them.
    text: the prompt.
    chat: messages -> prompt.
  """
  def unchanged(row, message):
    try:
      return text == chat([*messages[:row], message, *messages[row + 1:]])
    except ValueError:
      return False

  for row, message in enumerate(messages):
    role, calls = message['role'], message.get('tool_calls', [])
    unusual = role not in ('system', 'user', 'assistant') or (
        calls and message['content'].strip())
    if unusual and unchanged(row, {**message, 'content': _OTHER}):
      raise RowError(
          f'the chat template leaves out the text of the role {role!r}'
          f'{" beside tool_calls" if calls else ""}: give it in another '
          'message, or choose another model.')
    for number in range(len(calls)):
      other = [*calls]
      other[number] = {**calls[number], 'function': {
          'name': _OTHER, 'arguments': {}}}
      if unchanged(row, {**message, 'tool_calls': other}):
        raise RowError(
            f'the chat template leaves out tool_calls of the role {role!r}: '
            'write them as the text of the message, or choose another model.')


def _worded(template: Template, problem: Messages) -> list[dict[str, Any]]:
  """Returns messages with the system message and the template's text."""
  messages = [dict(message) for message in problem]
  if template.system:
    if any(message['role'] == 'system' for message in messages):
      raise RowError(
          'the messages have a system message already: leave task.system '
          'empty, or remove it from the row.')
    messages.insert(0, dict(role='system', content=template.system))
  last = max(i for i, m in enumerate(messages) if m['role'] == 'user')
  messages[last]['content'] = template.text.replace(
      '{problem}', messages[last]['content'])
  return messages


def check_tokenizer(
    template: Template, tokenizer: Any, task: str) -> None:
  """Warns if the tokeniser splits a special token of a template into pieces.

  Args:
    template: of `make_template`.
    tokenizer: the model's tokeniser; None if it has none.
    task: name of the task, which cannot do without one.

  Raises:
    ValueError: there is no tokeniser.
  """
  if tokenizer is None:
    raise ValueError(
        f'task.name={task} needs the tokeniser of a model: set config.model.hf '
        'to a Hugging Face model. The tasks countdown and '
        'jaxrl_llm.examples.arc_mini have one of their own.')
  if template.chat:  # the tokeniser's own
    return
  found = dict.fromkeys(_SPECIAL.findall(template.text))
  split = [token for token in found if len(tokenizer.encode(token)) != 1]
  if split:
    logging.warning(
        "task.template=%s contains %s, which the model's tokeniser does not "
        'know as one token: set task.template=chat, or another format without '
        'it.', template.name if template.name != template.text
        else repr(template.name), ' and '.join(split))


def stops(template: Template, tokenizer: Any) -> tuple[str, ...]:
  """Returns the texts that end an answer in a template.

  In a chat format it is what stands between an answer and the next turn: its
  first special token, such as <|im_end|>, or else the text. Other formats show
  how the user's turn ends, by the first special token after the problem. If no
  other one follows, it may begin the answer: then the turn's first one is a
  stop too, since it begins the next turn.

  Args:
    template: of `make_template`.
    tokenizer: the model's tokeniser; see `tokenizer.Tokenizer`.

  Returns:
    Texts without duplicates; () if the template shows none.
  """
  own = sorted({*getattr(tokenizer, 'special', ())}, key=len, reverse=True)
  special = re.compile('|'.join([*map(re.escape, own), _SPECIAL.pattern]))
  if template.chat:
    after = getattr(tokenizer, 'after_answer', str)()
    first = special.search(after)
    text = after[:first.start()] if first else after
    return (text.rstrip(),) if text.strip() else tuple(
        [first[0]] if first else [])
  before, _, after = template.text.rpartition('{problem}')
  found = special.findall(after)
  if len(found) == 1:
    found += special.findall(before)[-1:]
  else:
    found = found[:1]
  return tuple(dict.fromkeys(found))
