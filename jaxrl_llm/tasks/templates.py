"""How a problem is put to a model: named formats, or a text of one's own."""

from typing import Any

_BOXED = ('Please reason step by step, and put your final answer within '
          '\\boxed{}.')
# Each is written out as the model reads it; {problem} stands for the problem.
FORMATS = {
    # The problem and the instruction as a user's turn, in the format that the
    # tokeniser itself has for chats.
    'chat': '{problem}\n' + _BOXED,
    # Of the CBS paper, after Liu et al. 2025 (arXiv:2503.20783).
    'qwen': (
        '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n'
        '<|im_start|>user\n{problem}\n' + _BOXED + '<|im_end|>\n'
        '<|im_start|>assistant\n'),
    # Of Qwen2.5-Math: the instruction is the system's.
    'qwen_math': (
        '<|im_start|>system\n' + _BOXED + '<|im_end|>\n'
        '<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n'),
    # For base models that know no chat.
    'question': 'Question: {problem}\n' + _BOXED + '\nAnswer:',
    'none': '{problem}',
}


def known(name: str) -> bool:
  """Whether `name` is a format, or a text with {problem} in it."""
  return name in FORMATS or '{problem}' in name


def render(name: str, problem: str, tokenizer: Any) -> str:
  """What the model reads.

  Args:
    name: of FORMATS, or a text with {problem} in it.
    problem: the problem.
    tokenizer: its `start` begins every text that is no chat, once; 'chat'
      takes its `chat(text)`.

  Returns:
    The prompt, special tokens spelled out.

  Raises:
    ValueError: the tokeniser has no format for chats.
  """
  # Not str.format: problems and templates are full of braces.
  text = FORMATS.get(name, name).replace('{problem}', problem)
  if name == 'chat':
    return tokenizer.chat(text)
  return tokenizer.start + text.removeprefix(tokenizer.start)
