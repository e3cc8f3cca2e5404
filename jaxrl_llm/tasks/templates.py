"""Prompt templates: named formats, or a text given by the user."""

import re
from typing import Any

from absl import logging

_BOXED = ('Please reason step by step, and put your final answer within '
          '\\boxed{}.')
# The text that the model reads; {problem} is replaced by the problem.
FORMATS = {
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

# Special tokens as the families of models write them.
_SPECIAL = re.compile(r'<\|[^<>|{}\s]+\|>|<(?:start|end)_of_turn>')


def known(name: str) -> bool:
  """Returns whether `name` is a format or a text that contains {problem}."""
  return name in FORMATS or '{problem}' in name


def render(name: str, problem: str, tokenizer: Any) -> str:
  """Returns the prompt of a problem.

  Args:
    name: a key of FORMATS, or a text that contains {problem}.
    problem: the problem's text.
    tokenizer: the model's tokeniser. 'chat' calls its `chat(text)`; the other
      formats put its `start` once at the beginning.

  Returns:
    The prompt, with special tokens spelled out.

  Raises:
    ValueError: the tokeniser has no chat format.
  """
  # Not str.format: problems and templates contain many braces.
  text = FORMATS.get(name, name).replace('{problem}', problem)
  if name == 'chat':
    return tokenizer.chat(text)
  return tokenizer.start + text.removeprefix(tokenizer.start)


def warn_of_unknown_tokens(name: str, tokenizer: Any) -> None:
  """Warns if the tokeniser splits a special token of a template into pieces.

  Args:
    name: a key of FORMATS, or a text that contains {problem}.
    tokenizer: the model's tokeniser.
  """
  if name == 'chat':  # the tokeniser's own
    return
  found = dict.fromkeys(_SPECIAL.findall(FORMATS.get(name, name)))
  split = [token for token in found if len(tokenizer.encode(token)) != 1]
  if split:
    logging.warning(
        "task.template=%s contains %s, which the model's tokeniser does not "
        'know as one token: set task.template=chat, or another format without '
        'it.', name if name in FORMATS else repr(name), ' and '.join(split))


def stops(name: str, tokenizer: Any) -> tuple[str, ...]:
  """Returns the texts that end an answer in a template.

  In a chat format it is what stands between an answer and the next turn: its
  first special token, such as <|im_end|>, or else the text. Other formats show
  how the user's turn ends, by the first special token after the problem. If no
  other one follows, it may begin the answer: then the turn's first one is a
  stop too, since it begins the next turn.

  Args:
    name: a key of FORMATS, or a text that contains {problem}.
    tokenizer: the model's tokeniser; see `tokenizer.Tokenizer`.

  Returns:
    Texts without duplicates; () if the template shows none.
  """
  own = sorted({*getattr(tokenizer, 'special', ())}, key=len, reverse=True)
  special = re.compile('|'.join([*map(re.escape, own), _SPECIAL.pattern]))
  if name == 'chat':
    after = getattr(tokenizer, 'after_answer', str)()
    first = special.search(after)
    text = after[:first.start()] if first else after
    return (text.rstrip(),) if text.strip() else tuple(
        [first[0]] if first else [])
  before, _, after = FORMATS.get(name, name).rpartition('{problem}')
  found = special.findall(after)
  if len(found) == 1:
    found += special.findall(before)[-1:]
  else:
    found = found[:1]
  return tuple(dict.fromkeys(found))
