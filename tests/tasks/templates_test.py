"""Tests of the prompt templates."""

import types

import pytest

from jaxrl_llm.tasks import templates

ASK = ('Please reason step by step, and put your final answer within '
       '\\boxed{}.')


def tokenizer(start=''):
  return types.SimpleNamespace(
      start=start, chat=lambda text: f'<user>{text}<model>')


@pytest.mark.parametrize('name, want', [
    ('chat', f'<user>1+1?\n{ASK}<model>'),
    ('qwen', '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n'
     f'<|im_start|>user\n1+1?\n{ASK}<|im_end|>\n<|im_start|>assistant\n'),
    ('qwen_math', f'<|im_start|>system\n{ASK}<|im_end|>\n'
     '<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n'),
    ('question', f'Question: 1+1?\n{ASK}\nAnswer:'),
    ('none', '1+1?'),
    ('Q: {problem} A: ', 'Q: 1+1? A: '),
    ('{problem} or {problem}', '1+1? or 1+1?'),
])
def test_formats(name, want):
  assert templates.known(name)
  assert templates.render(name, '1+1?', tokenizer()) == want


def test_all_formats_are_tested_and_hold_the_problem():
  assert list(templates.FORMATS) == [
      'chat', 'qwen', 'qwen_math', 'question', 'none']
  for name in templates.FORMATS:
    assert templates.render(name, '1+1?', tokenizer()).count('1+1?') == 1


@pytest.mark.parametrize('name', ['Chat', 'quen', '', '{}', '{ problem }'])
def test_unknown(name):
  assert not templates.known(name)


@pytest.mark.parametrize('problem', [
    '{0} {x} {{}} %s %d', '{problem}', '\\frac{1}{2}', '\\1 \\g<0>', '{'])
def test_a_problem_is_put_as_it_is(problem):
  assert templates.render('<{problem}>', problem, tokenizer()) == f'<{problem}>'


def test_what_texts_start_with_comes_once():
  bos = tokenizer('<bos>')
  assert templates.render('none', 'x', bos) == '<bos>x'
  assert templates.render('<bos>{problem}', 'x', bos) == '<bos>x'
  assert templates.render('question', 'x', bos).startswith('<bos>Question: x')
  # The format for chats has its own.
  assert templates.render('chat', 'x', bos).startswith('<user>x')
