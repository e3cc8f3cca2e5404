"""Prompt templates: named formats, or a text given by the user."""

from typing import Any

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
