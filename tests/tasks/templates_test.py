"""Tests of the prompt templates."""

import types

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.tasks import templates

ASK = ('Please reason step by step, and put your final answer within '
       '\\boxed{}.')


def tokenizer(start=''):
  return types.SimpleNamespace(
      start=start, chat=lambda text: f'<user>{text}<model>')


def render(name, problem, tokenizer):
  return templates.render(templates.make_template(name), problem, tokenizer)


@pytest.mark.parametrize('name, want', [
    ('auto', f'<user>1+1?\n{ASK}<model>'),
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
  assert render(name, '1+1?', tokenizer()) == want


def test_all_formats_are_tested_and_hold_the_problem():
  assert list(templates.FORMATS) == [
      'auto', 'chat', 'qwen', 'qwen_math', 'question', 'none']
  for name in templates.FORMATS:
    assert render(name, '1+1?', tokenizer()).count('1+1?') == 1


@pytest.mark.parametrize('name', ['Chat', 'quen', '', '{}', '{ problem }'])
def test_unknown(name):
  with pytest.raises(ValueError, match='not a known format'):
    templates.make_template(name)


@pytest.mark.parametrize('problem', [
    '{0} {x} {{}} %s %d', '{problem}', '\\frac{1}{2}', '\\1 \\g<0>', '{'])
def test_a_problem_is_put_as_it_is(problem):
  assert render('<{problem}>', problem, tokenizer()) == f'<{problem}>'


def test_what_texts_start_with_comes_once():
  bos = tokenizer('<bos>')
  assert render('none', 'x', bos) == '<bos>x'
  assert render('<bos>{problem}', 'x', bos) == '<bos>x'
  assert render('question', 'x', bos).startswith('<bos>Question: x')
  # The format for chats has its own.
  assert render('chat', 'x', bos).startswith('<user>x')


def knowing(*tokens):
  """A tokeniser with these special tokens; others become characters."""
  return types.SimpleNamespace(
      start='', chat=str, encode=lambda t: [0] if t in tokens else list(t))


@pytest.mark.parametrize('name, known, words', [
    ('qwen', (), ['task.template=qwen ', '<|im_start|> and <|im_end|>,',
                  'set task.template=chat']),
    ('qwen_math', ('<|im_start|>',), ['contains <|im_end|>,']),
    ('<start_of_turn>user {problem}', (), ['contains <start_of_turn>,']),
])
def test_special_tokens_that_the_tokeniser_splits(caplog, name, known, words):
  templates.check_tokenizer(
      templates.make_template(name), knowing(*known), 'math')
  record, = caplog.records
  for word in words:
    assert word in record.getMessage()
  assert all(token not in record.getMessage() for token in known)


@pytest.mark.parametrize('name', [
    'qwen', 'chat', 'none', 'question', 'a < b | c > d, <|{problem}|>'])
def test_no_warning_without_need(caplog, name):
  templates.check_tokenizer(
      templates.make_template(name), knowing('<|im_start|>', '<|im_end|>'),
      'math')
  assert not caplog.records


def test_a_task_warns_once(tmp_path, caplog):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"problem": "1+1?", "answer": 2}\n'
                  '{"problem": "1+2?", "answer": 3}\n')
  options = dict(path=(str(path),), heldout_count=1)
  tasks.get('math', knowing(), template='qwen', **options)
  assert len(caplog.records) == 1
  tasks.get('math', knowing(), **options)
  assert len(caplog.records) == 1


@pytest.mark.parametrize('template, after, special, want', [
    ('chat', '<|im_end|>\n<|im_start|>user\n', ('<|im_end|>',), ['<|im_end|>']),
    ('chat', '<|eot_id|><|start_header_id|>user', (), ['<|eot_id|>']),
    ('chat', '<end_of_turn>\n<start_of_turn>user\n', (), ['<end_of_turn>']),
    ('chat', ' </s><s>[INST] ', ('<s>', '</s>'), ['</s>']),
    ('chat', '<\uff5cend\uff5c><\uff5cUser\uff5c>',
     ('<\uff5cend\uff5c>', '<\uff5cUser\uff5c>'), ['<\uff5cend\uff5c>']),
    ('chat', '\n\nUSER: ', (), ['\n\nUSER:']),
    ('chat', ' [/A] </s>', ('</s>',), [' [/A]']),
    ('chat', '\n', (), []), ('chat', '', (), []),
    ('qwen', '', (), ['<|im_end|>']), ('qwen_math', '', (), ['<|im_end|>']),
    ('question', '', (), []), ('none', '', ('<s>',), []),
    ('<start_of_turn>user\n{problem}<end_of_turn>\n<start_of_turn>model\n',
     '', (), ['<end_of_turn>']),
    ('<|user|>\n{problem}</s>\n<|assistant|>\n', '', ('</s>',), ['</s>']),
    ('<s><|user|>{problem}<|assistant|>', '', ('<s>',),
     ['<|assistant|>', '<|user|>']),
    ('{problem} <sep>', '', ('<sep>',), ['<sep>'])])
def test_what_ends_an_answer(template, after, special, want):
  own = types.SimpleNamespace(special=special, after_answer=lambda: after)
  assert [*templates.stops(templates.make_template(template), own)] == want


def test_a_tokeniser_that_says_nothing_of_its_chats():
  own = types.SimpleNamespace(start='', chat=str)
  assert templates.stops(templates.make_template('chat'), own) == ()


@pytest.mark.parametrize('name, markup, advice', [
    ('qwen', 'auto', 'leave task.template and task.markup out'),
    ('qwen', 'chat', 'leave task.template out'),
    ('qwen', 'none', 'leave task.template and task.markup out'),
    ('<|im_start|>{problem}', 'auto', 'leave task.template and'),
    ('question', 'auto', 'set task.markup=chat.'),
    ('auto', 'none', 'set task.markup=chat.')])
def test_the_advice_about_messages_leads_to_a_prompt(name, markup, advice):
  tok = types.SimpleNamespace(start='', chat=lambda turns: str(turns))
  messages = [{'role': 'user', 'content': '1+1?'}]
  with pytest.raises(ValueError, match=f'{advice}.*$'):
    templates.render(
        templates.make_template(name, markup=markup), messages, tok)
  if 'task.template' in advice:
    name = 'auto'
  if 'task.markup' in advice:
    markup = 'chat' if 'set' in advice else 'auto'
  assert '1+1?' in templates.render(
      templates.make_template(name, markup=markup), messages, tok)
