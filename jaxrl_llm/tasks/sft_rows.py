"""Rows of supervised fine-tuning: texts to tokens, and which are learned.

A row has one of these forms, the first that it fits:
  messages: a conversation, with `tools` if there are some. Its answers are
    learned, all or the last.
  prompt, completion: two texts as the model reads them, or two lists of
    messages. The completion is learned.
  problem, solution: a problem as the task words it, and the response to learn.
    Their names are the task's options `problem` and `answer`, and those of
    known data sets.
  text: learned as a whole.

The generation marks of a chat template say which tokens of a conversation are
learned. Without marks, an answer's tokens are learned, but for the header that
the template writes before every answer. What is learned ends with a stop token.
"""

import json
import os
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
import numpy as np

from jaxrl_llm.base import plain
from jaxrl_llm.tasks import problem_files, rows, templates

_FORMS = (
    'A row to learn has messages; prompt and completion; problem and solution; '
    'or text.')
_PREFERENCES = (
    'Preferences are not learned, there is no DPO: rename chosen to completion '
    'to learn it alone.')


class Example(NamedTuple):
  """Tokens of a row.

  Attributes:
    prompt: [P] int32, those before the first one that is learned, at least one.
    response: [T] int32, the rest.
    learned: [T] bool, which of these are learned.
  """
  prompt: np.ndarray
  response: np.ndarray
  learned: np.ndarray


class RowLimits(NamedTuple):
  """Limits of a row's tokens, and the choice of those that are learned.

  Attributes:
    max_prompt: most tokens of `Example.prompt`.
    max_response: most of `Example.response`.
    split: whether the prompt ends where a row begins to be learned, else after
      its first token.
    cut: whether to cut a longer row at the limit, else it is left out.
    last: whether only the last answer of a conversation is learned.
  """
  max_prompt: int
  max_response: int
  split: bool = True
  cut: bool = False
  last: bool = False


def read(
    source: str, task: Any, limits: RowLimits,
) -> tuple[list[Example], list[int]]:
  """Reads the rows of a file or data set.

  Args:
    source: see `problem_files`.
    task: its tokeniser, and how it words problems.
    limits: of the rows.

  Returns:
    The rows that fit, in their order, and the lengths of the others.

  Raises:
    ValueError: rows are not valid. The message says how many, and names the
      file and the lines of the first ones.
  """
  found, long, faults = [], [], []
  stop, warned = _stop(task), False
  for where, row in problem_files.rows(source, faults):
    try:
      ids, learned = tokens(row, task, stop, last=limits.last)
    except ValueError as error:
      faults.append((where, str(error)))
      continue
    if not warned and not {*ids[learned]} & {*task.tokenizer.stop_ids}:
      warned = True
      logging.warning(
          '%s: no token that ends a response is learned, so that the model '
          'does not learn to stop: put the end of a turn within the generation '
          'marks of the chat template.', where)
    made = fitted(ids, learned, limits)
    if made:
      found.append(made)
    else:
      long.append(len(ids))
  problem_files.refuse(faults)
  return found, long


def tokens(
    row: problem_files.Row, task: Any, stop: int | None = None, *,
    last: bool = False) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens of a row.

  Args:
    row: its fields.
    task: its tokeniser, and how it words problems.
    stop: token that ends what is learned; None for that of the task.
    last: whether only the last answer of a conversation is learned.

  Returns:
    [N] int32 ids, and [N] bool, which of them are learned. The first one is
    not, since nothing predicts it.

  Raises:
    ValueError: the row has none of the forms, or a field is not valid.
  """
  tokenizer = task.tokenizer
  stop = _stop(task) if stop is None else stop
  # Tables have None where a row lacks a field that another one has.
  row = {name: value for name, value in row.items() if value is not None}
  lists = [name for name in ('messages', 'prompt', 'completion')
           if isinstance(row.get(name), list)]
  if lists in (['messages'], ['prompt', 'completion']):
    ids, learned, end = _conversation(
        tokenizer, rows.messages(' and '.join(lists), sum(
            (row[name] for name in lists), [])), _tools(row),
        len(row['prompt']) if len(lists) > 1 else 0, last)
  else:
    before, text, apart = _text_of(row, task, lists)
    if apart:
      given = tokenizer.encode(before)
      ids = [*given, *tokenizer.encode(text)]
      learned = np.arange(len(ids)) >= len(given)
    else:
      ids, learned = _learned(
          tokenizer, before + text, [(before, before + text)])
    end = ids[-1:]
  if not {*end} & {stop, *tokenizer.stop_ids}:
    ids, learned = [*ids, stop], np.append(learned, True)
  learned[:1] = False
  if not learned.any():
    raise ValueError('there is nothing to learn in it.')
  return np.asarray(ids, np.int32), learned


def _text_of(
    row: problem_files.Row, task: Any, lists: Sequence[str],
) -> tuple[str, str, bool]:
  """Returns the text before the learned one, and the learned one.

  Args:
    row: its fields.
    task: how it words problems.
    lists: fields of messages, which are too few or too many.

  Returns:
    The two texts, and whether they are encoded apart, as RL encodes prompts.
  """
  def text(name):
    found = rows.text(row, name)  # without the space around it
    return row[name] if isinstance(row[name], str) else found

  start, options = task.tokenizer.start, getattr(task, 'options', None)
  if lists or 'messages' in row:
    wrong = [name for name in ('messages', 'prompt', 'completion')
             if name in row and name not in lists] or lists
    raise ValueError(
        f'the field {wrong[0]!r} is {plain.shown(row[wrong[0]])}: a row has a '
        "list 'messages', or lists 'prompt' and 'completion', or two texts.")
  if 'completion' in row:
    return start + text('prompt').removeprefix(start), text('completion'), False
  if 'text' in row and not {'problem', 'question'} & row.keys():
    return '', start + text('text').removeprefix(start), False
  try:
    field, asked = rows.problem(row, getattr(options, 'problem', ''))
    given = getattr(options, 'answer', 'answer')
    name = 'solution' if given == 'answer' and rows.lookup(
        row, 'solution') else rows.answer(row, given)
    solution = rows.text(row, name)
  except ValueError as error:
    forms = _PREFERENCES if {'chosen', 'rejected'} <= row.keys() else _FORMS
    raise ValueError(f'{error} {forms}') from None
  chat = 'chat' if hasattr(task.tokenizer, 'chat') else 'none'
  template = options.template_of(field, asked) if (
      hasattr(options, 'template_of')) else templates.make_template(
          '{problem}', markup=chat)
  return templates.render(template, asked, task.tokenizer), solution, True


def _tools(row: problem_files.Row) -> Sequence[dict[str, Any]]:
  """Returns the schemas of the tools of a row, which may be a JSON text."""
  tools = row.get('tools') or []
  try:
    tools = json.loads(tools) if isinstance(tools, str) else tools
  except ValueError:
    pass  # refused below
  if not isinstance(tools, list) or not all(
      isinstance(tool, dict) for tool in tools):
    raise ValueError(
        f"the field 'tools' is {plain.shown(tools)}, not a list of JSON "
        'schemas.')
  rows.check_unicode('tools', json.dumps(
      tools, ensure_ascii=False, default=str))
  return tools


def _conversation(
    tokenizer: Any, messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]], first: int, last: bool,
) -> tuple[list[int], np.ndarray, list[int]]:
  """Returns the tokens of a conversation, which are learned, and the last ones.

  Args:
    tokenizer: the model's.
    messages: its messages.
    tools: schemas of its tools.
    first: number of the first message that may be learned.
    last: whether only the last answer is.
  """
  if not hasattr(tokenizer, 'conversation'):
    raise ValueError('messages need a model with a chat format: set model.hf.')
  turns = [i for i, message in enumerate(messages)
           if i >= first and message['role'] == 'assistant']
  answers = [i for i in turns if _weighted(messages[i], i + 1)]
  if not answers:
    raise ValueError('there is no message of the role assistant to learn.')
  if last:
    turns = answers = answers[-1:]
    messages = messages[:answers[-1] + 1]
  marked = tokenizer.marked(messages, tools)
  text = tokenizer.conversation(messages, tools)
  templates.refuse_left_out(
      messages, text, lambda others: tokenizer.conversation(others, tools))
  if tools and text == tokenizer.conversation(messages):
    raise ValueError(
        'the chat template leaves out the tools: choose another model, or '
        'leave out the field.')
  if marked:
    ids, learned = marked[0], np.array(marked[1], bool)
    _refuse_cut(messages[:answers[-1] + 1], tokenizer, tools, '')
    # An answer reaches up to the next one: what is between has no marks.
    bounds = [*turns, len(messages)]
    for i, after in zip(turns, bounds[1:]):
      if i not in answers:
        for n in i, after:
          _begun(tokenizer, text, messages, tools, n,
                 'leave out the weights, or set sft.turns=last')
        learned[slice(*(_common(ids, tokenizer.encode(tokenizer.conversation(
            messages[:n], tools))) for n in (i, after)))] = False
    if last or first:
      learned[:_common(ids, tokenizer.encode(tokenizer.conversation(
          messages[:answers[0]], tools, prompt=True)))] = False
    return ids, learned, [*tokenizer.stop_ids]  # the marks say it all
  ids, learned = _learned(
      tokenizer, text, [*_added(tokenizer, text, messages, tools, answers)])
  # The last answer begins behind the last token that is not learned.
  begin = max(np.flatnonzero(~learned), default=-1) + 1
  goes_on = answers[-1] + 1 < len(messages)
  return ids, learned, [*tokenizer.stop_ids] if goes_on else ids[begin:]


def _weighted(message: Mapping[str, Any], number: int) -> bool:
  """Returns whether an answer is learned: not with `weight` 0 or `train` false.
  """
  found = {name: message.get(name, 1) for name in ('weight', 'train')}
  for name, value in found.items():
    if value not in (0, 1):
      raise ValueError(
          f'message {number} has the {name} {plain.shown(value)}: only 0 and 1 '
          'are taken.')
  return all(found.values())


def _refuse_cut(messages, tokenizer, tools, text: str) -> None:
  """Raises ValueError if the chat markup cuts a part out of the last message.

  Args:
    messages, tokenizer, tools: those of `_conversation`.
    text: that the markup makes of them; '' if it is not known.
  """
  *before, message = messages
  text = text or tokenizer.conversation(messages, tools)
  # Some rows have the same reasoning under two names.
  named = {name: message[name] for name in (
      'reasoning_content', 'reasoning', 'thinking') if message.get(name)}
  written = [value for name, value in named.items()
             if text != tokenizer.conversation(
                 [*before, {**message, name: 'other'}], tools)]
  for name, value in named.items():
    if value not in written:
      raise ValueError(
          f'the chat template leaves out {name!r} of message {len(messages)}: '
          'write it into its content, or remove it.')
  if ''.join(message['content'].split()) not in ''.join(text.split()):
    raise ValueError(
        f'the chat template leaves out a part of message {len(messages)}, such '
        'as its reasoning: correct the template, or write the row as texts, '
        'prompt and completion.')


def _added(
    tokenizer, text, messages, tools, answers) -> Iterator[tuple[str, str]]:
  """Yields the text before and up to the end of what each answer adds."""
  for i in answers:
    fix = 'set sft.turns=last, or give the template generation marks'
    begun = _begun(tokenizer, text, messages, tools, i, fix)
    after = tokenizer.conversation(messages[:i + 1], tools)
    if not text.startswith(after):
      raise _changed(f'message {i + 1}', fix)
    _refuse_cut(messages[:i + 1], tokenizer, tools, after)
    yield begun, after


def _begun(tokenizer, text, messages, tools, i: int, fix: str) -> str:
  """Returns the text before message i, which stays if others follow."""
  before = tokenizer.conversation(messages[:i], tools)
  # Most answers begin like the prompt for one, which RL gives the model.
  prompt = tokenizer.conversation(messages[:i], tools, prompt=True)
  begun = os.path.commonprefix([text, prompt])
  # Some templates end a text that no answer follows.
  if not begun.startswith(os.path.commonprefix([before, prompt])):
    raise _changed(f'what stands before message {i + 1}', fix)
  return begun


def _changed(what: str, fix: str) -> ValueError:
  return ValueError(
      f'the chat template writes {what} in another way once others follow, '
      f'such as without reasoning: {fix}.')


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
  """Returns how many ids two lists begin with together."""
  return next((i for i, pair in enumerate(zip(ids, others))
               if pair[0] != pair[1]), min(len(ids), len(others)))


def _learned(
    tokenizer: Any, text: str, parts: Sequence[tuple[str, str]],
) -> tuple[list[int], np.ndarray]:
  """Returns the tokens of a text, and which are within parts of it.

  Args:
    tokenizer: the model's.
    text: the text.
    parts: what stands before each part, and that with the part.
  """
  ids, learned = tokenizer.encode(text), []
  ends = tokenizer.ends(text) if hasattr(tokenizer, 'ends') else None
  for before, after in parts:
    if ends is not None:
      learned.append((np.array(ends) > len(before)) & (
          np.array(ends) <= len(after)))
    else:
      first, end = (_common(ids, tokenizer.encode(x)) for x in (before, after))
      learned.append((np.arange(len(ids)) >= first) & (
          np.arange(len(ids)) < end))
  return ids, np.any(learned, 0)


def _stop(task: Any) -> int:
  """Returns the token that ends a response of a task."""
  tokenizer = task.tokenizer
  for text in getattr(task, 'stops', ()):
    if len(ids := tokenizer.encode(text)) == 1:
      return ids[0]
  return tokenizer.stop_ids[0]


def fitted(
    ids: np.ndarray, learned: np.ndarray, limits: RowLimits) -> Example | None:
  """Returns the tokens of a row up to the last one that is learned.

  Args:
    ids: [N].
    learned: [N] bool, one at least, not the first.
    limits: of the row.

  Returns:
    None if there are too many.
  """
  at = np.flatnonzero(learned)
  first, end = int(at[0]) if limits.split else 1, int(at[-1]) + 1
  if limits.cut:
    end = min(end, first + limits.max_response)
  if first > limits.max_prompt or end - first > limits.max_response or (
      not learned[first:end].any()):
    return None
  return Example(ids[:first], ids[first:end], learned[first:end])
