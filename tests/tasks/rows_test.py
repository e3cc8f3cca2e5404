"""Tests of problem files as TRL and verl have them."""

import json
import types

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.tasks import rows

ASK = ('\nPlease reason step by step, and put your final answer within '
       '\\boxed{}.')
USER = {'role': 'user', 'content': ' 1+1? '}
SYSTEM = {'role': 'system', 'content': 'Be brief.'}


def chat(turns):
  if isinstance(turns, str):
    return f'<user>{turns}<model>'
  return ''.join(f'<{m["role"]}>{m["content"]}' for m in turns) + '<model>'


TOKENIZER = types.SimpleNamespace(start='<s>', chat=chat, encode=list)


@pytest.fixture
def load(tmp_path):
  """Returns (*rows, **options) -> problems of a file with these rows."""

  def call(*of_file, **options):
    path = tmp_path / 'a.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in of_file))
    return tasks.get(
        'math', TOKENIZER, path=(str(path),), heldout_count=0, **options).train

  return call


@pytest.mark.parametrize('row, options, want', [
    (dict(problem='1+1?'), {}, f'<user>1+1?{ASK}<model>'),
    (dict(question='1+1?'), {}, f'<user>1+1?{ASK}<model>'),
    # Prompts have their wording: as they stand, as TRL takes them.
    (dict(prompt='1+1?'), {}, '<s>1+1?'),
    (dict(prompt='1+1?', question='x'), {}, '<s>1+1?'),
    (dict(prompt='1+1?', problem=None), {}, '<s>1+1?'),
    (dict(prompt=[USER]), {}, '<user> 1+1? <model>'),
    (dict(prompt=[SYSTEM, USER]), {}, '<system>Be brief.<user> 1+1? <model>'),
    (dict(q=[USER]), dict(problem='q'), '<user> 1+1? <model>'),
    (dict(x=dict(y='1+1?')), dict(problem='x.y'), f'<user>1+1?{ASK}<model>'),
    # Unless the user words them.
    (dict(prompt='1+1?'), dict(template='chat'), f'<user>1+1?{ASK}<model>'),
    (dict(prompt='1+1?'), dict(markup='chat'), '<user>1+1?<model>'),
    (dict(prompt='1+1?'), dict(system='S'), '<system>S<user>1+1?<model>'),
    (dict(prompt='1+1?'), dict(template='Q{problem}'), '<s>Q1+1?'),
    (dict(problem='1+1?'), dict(template='Q{problem}', markup='chat'),
     '<user>Q1+1?<model>'),
    (dict(problem='1+1?'), dict(template='none', markup='chat', system='S'),
     '<system>S<user>1+1?<model>'),
    (dict(problem='1+1?'), dict(markup='none'), f'<s>1+1?{ASK}'),
    (dict(prompt=[SYSTEM, USER]), dict(template='Q{problem}A', markup='chat'),
     '<system>Be brief.<user>Q 1+1? A<model>'),
    (dict(prompt=[USER, dict(role='assistant', content='So'),
                  dict(role='user', content='and?'),
                  dict(role='assistant', content='It')]),
     dict(template='{problem}!', markup='chat', system='S'),
     '<system>S<user> 1+1? <assistant>So<user>and?!<assistant>It<model>'),
])
def test_prompts(load, row, options, want):
  found, = load(dict(row, answer='2'), **options)
  assert found.prompt == want and found.info == '2'


def test_a_lone_message_is_the_problem_that_its_text_is(load):
  a, b = load({'prompt': [USER], 'answer': 2}), load(
      {'problem': '1+1?', 'answer': 2})
  assert a[0].id == b[0].id and a[0].shown == b[0].shown == '1+1?'
  c, = load({'prompt': [SYSTEM, USER], 'answer': 2})
  assert c.shown == 'system: Be brief.\n\nuser: 1+1?' and c.id != a[0].id


VERL = {'data_source': 'openai/gsm8k', 'prompt': [USER], 'ability': 'math',
        'reward_model': {'style': 'rule', 'ground_truth': '72'},
        'extra_info': {'split': 'train', 'index': 0, 'answer': '#### 72'}}


@pytest.mark.parametrize('row, options, want', [
    (VERL, {}, '72'), ({'problem': 'x', 'solution': r'\boxed{3}'}, {}, '3'),
    ({'problem': 'x', 'ground_truth': 4}, {}, '4'),
    ({**VERL, 'answer': 5, 'solution': '6'}, {}, '5'),
    ({**VERL, 'solution': '6'}, dict(answer='solution'), '6'),
    (VERL, dict(answer='extra_info.answer'), '72')])
def test_answers(load, row, options, want):
  assert load(row, **options)[0].info == want


def test_a_parquet_file_of_verl(tmp_path):
  pa = pytest.importorskip('pyarrow')
  from pyarrow import parquet
  path = str(tmp_path / 'train.parquet')
  parquet.write_table(pa.Table.from_pylist([VERL]), path)
  options = dict(path=(path,), heldout_count=0, kind='data_source')
  found, = tasks.get('math', TOKENIZER, **options).train
  assert (found.prompt, found.kind, found.info) == (
      '<user> 1+1? <model>', 'openai/gsm8k', '72')
  # Columns that are lists and dictionaries reach reward functions as they are.
  found, = tasks.get('math', TOKENIZER, **options, reward=(
      'tests.tasks.bad_rows_test:give_zeros',)).train
  assert found.info == ([USER], '72', {
      name: value for name, value in VERL.items() if name != 'prompt'})


@pytest.mark.parametrize('row, options, said', [
    (dict(problem='x', prompt=[USER]), {},
     "both fields 'problem' and 'prompt': set config.task.problem to"),
    (dict(text='x'), {}, "no field 'problem'"),
    (dict(prompt=['x']), {}, "message 1 of the field 'prompt' has no text as "
     "its 'role': 'x'. Messages are dictionaries"),
    (dict(prompt=[USER, dict(role='user', content=[1])]), {},
     "message 2 of the field 'prompt' has no text as its 'content'"),
    (dict(prompt=[SYSTEM]), {}, 'has no message of the role user'),
    (dict(prompt=[dict(USER, content='\ud800')]), {}, 'is not valid text'),
    (dict(prompt=[]), {}, 'has no message of the role user'),
    (dict(prompt=[SYSTEM, USER]), dict(system='S'),
     'have a system message already: leave task.system empty'),
    (dict(VERL, answer=None, solution='3'), {},
     "no field 'answer', but 'solution' and 'reward_model.ground_truth': set "
     'config.task.answer')])
def test_rows_that_are_not_clear(load, tmp_path, row, options, said):
  for count in 1, 2:
    with pytest.raises(ValueError) as error:
      load(*[{'answer': 2, **row}] * count, **options)
    assert said.rstrip('.') in str(error.value)
    assert str(tmp_path / 'a.jsonl') in str(error.value)
    assert ('2 bad rows' in str(error.value)) == (count == 2)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('options, said', [
    (dict(template='question', system='S'), 'task.system is a message of a '
     'chat, and task.template=question makes none: set task.markup=chat'),
    (dict(template='qwen', markup='chat'), r'writes <\|im_start\|> itself'),
    (dict(template='question'), "messages need chat markup, and task.template="
     "'question' makes none")])
def test_wordings_that_contradict_each_other(load, options, said):
  with pytest.raises(ValueError, match=said) as error:
    load(*[{'prompt': [USER], 'answer': 2}] * 2, **options)
  assert 'bad row' not in str(error.value)


def test_a_row_that_the_chat_format_refuses(load, monkeypatch):
  """A fault of the format itself is told once, one of a row with its line."""
  def refuse(turns):
    if not isinstance(turns, str) and len(turns) > 1:
      raise ValueError('Roles must alternate.')
    return chat(turns)

  monkeypatch.setattr(TOKENIZER, 'chat', refuse)
  with pytest.raises(ValueError, match='line 2: Roles must alternate'):
    load({'prompt': [USER], 'answer': 2}, {'prompt': [USER] * 2, 'answer': 2})

  def never(turns):
    raise ValueError('There is no format for chats.')

  monkeypatch.setattr(TOKENIZER, 'chat', never)
  with pytest.raises(ValueError, match='^There is no format for chats.$'):
    load({'prompt': [USER], 'answer': 2})


CALL = {'type': 'function', 'function': {
    'name': 'add', 'arguments': {'a': 1, 'b': 1}}}
CALLS = '<assistant>%s[add {"a": 1, "b": 1}]'


def with_calls(turns):
  """Writes calls, and what tools say as JSON, as some templates do."""
  if isinstance(turns, str):
    return chat(turns)
  text = ''
  for turn in turns:
    said = turn['content']
    text += f'<{turn["role"]}>' + (
        json.dumps(said) if turn['role'] == 'tool' else said)
    for call in turn.get('tool_calls', ()):
      function = call['function']
      text += f'[{function["name"]} {json.dumps(function["arguments"])}]'
  return text + '<model>'


@pytest.mark.parametrize('message', [
    dict(content=None, tool_calls=[CALL]), dict(content='', tool_calls=[CALL]),
    dict(tool_calls=[CALL], name=None), dict(content='So', tool_calls=[CALL]),
    dict(content=None, tool_calls=[{'function': {
        'name': 'add', 'arguments': '{"a": 1, "b": 1}'}}])])
def test_calls_of_tools_in_a_prompt(load, monkeypatch, message):
  monkeypatch.setattr(TOKENIZER, 'chat', with_calls)
  said = {'role': 'tool', 'content': '"2"', 'tool_calls': None}
  found, = load({'prompt': [
      USER, {'role': 'assistant', **message}, said, {**said, 'content': ''}],
                 'answer': 2})
  assert found.prompt == (
      '<user> 1+1? ' + CALLS % (message.get('content') or '')
      + r'<tool>"\"2\""<tool>""<model>')
  assert 'add' in found.text and '"a": 1' in found.text


@pytest.mark.parametrize('messages, said', [
    ([USER, dict(role='assistant', content='So', tool_calls=[CALL])],
     "leaves out tool_calls of the role 'assistant'"),
    ([USER, dict(role='user', content='So', tool_calls=[CALL])],
     "leaves out the text of the role 'user' beside tool_calls"),
    ([dict(role='developer', content='1'), USER],
     "leaves out the text of the role 'developer'"),
    ([USER, dict(role='assistant', tool_calls=[{'name': 'add'}])],
     'message 2 .* has tool_calls of another form'),
    ([USER, dict(role='assistant', tool_calls='add')], 'of another form'),
    ([USER, dict(role='assistant', tool_calls=[])], "no text as its 'content'"),
    ([USER, dict(role='tool', content=5)], "no text as its 'content'")])
def test_messages_that_a_template_leaves_out(load, monkeypatch, messages, said):
  """Whatever else of their text stands in the prompt."""
  monkeypatch.setattr(TOKENIZER, 'chat', lambda turns: chat(
      turns if isinstance(turns, str) else [
          turn for turn in turns if turn['role'] == 'assistant'
          or turn['role'] == 'user' and 'tool_calls' not in turn]))
  with pytest.raises(ValueError, match=f'a.jsonl, line 1: .*{said}'):
    load({'prompt': messages, 'answer': 2})


def test_lookup():
  row = {'a.b': 1, 'a': {'b': 2, 'c': {'d': 3}}, 'e': None}
  assert [rows.lookup(row, name) for name in (
      'a.b', 'a.c.d', 'e', 'e.f', 'a.c.x', '')] == [1, 3, None, None, None,
                                                    None]
