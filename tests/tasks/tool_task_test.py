"""Tests of problems with tools, from the prompt to the verdict."""

import importlib.util
import json
import types

import numpy as np
import pytest

from jaxrl_llm import tasks
from jaxrl_llm.base.tokenizer import ModelTokenizer, with_stops
from jaxrl_llm.loop import rollout, turns
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.mesh import make_mesh
from jaxrl_llm.types import Rollouts
from tests.base import tokenizer_test

PLAIN = (
    '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}'
    '{% if add_generation_prompt %}<|assistant|>{% endif %}')
NATIVE = (
    '{% if tools %}<|tools|>{% for t in tools %}{{ t | tojson }}{% endfor %}'
    '<|end|>{% endif %}' + PLAIN.replace(
        '{{ m.content }}', '{{ m.content }}{% for c in m.tool_calls or [] %}'
        '<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}'))
# As templates of models that reason: an answer that is not the last one loses
# some of what was in it.
FORGETS = PLAIN.replace(
    '{{ m.content }}', '{{ m.content if loop.last or m.role == "user" '
    'else "..." }}')


def tokenizer(folder, chat):
  tokenizer_test.bpe(folder, start=False, chat=chat)
  return ModelTokenizer(folder)


@pytest.fixture
def problems(tmp_path):
  path = tmp_path / 'problems.jsonl'
  path.write_text(''.join(json.dumps(
      {'problem': f'What is {n} * 7?', 'answer': str(n * 7)}) + '\n'
                          for n in range(2, 6)))
  return str(path)


def make(tok, problems, **options):
  return tasks.get('tools', tok, path=(problems,), heldout_count=1, **options)


def test_the_template_shows_tools_in_its_own_form(tmp_path, problems):
  task = make(tokenizer(tmp_path, NATIVE), problems)
  prompt = task.train[0].prompt
  assert prompt.startswith('<|tools|>{') and '"calculator"' in prompt
  assert '<|system|>' not in prompt
  ids = task.turns.append(task.tokenizer, '14', task.tokenizer.stop_ids[0])
  # The turn's own end is there already.
  after = task.tokenizer.decode([*ids, 5, task.tokenizer.stop_ids[0]])
  assert after.startswith('<|tool|>14<|end|><|assistant|>')
  cut = task.turns.append(task.tokenizer, '14', 5)
  assert cut[0] == task.tokenizer.stop_ids[0] and cut[1:] == ids
  task.close()


def test_tools_are_described_where_the_template_has_no_form(tmp_path, problems):
  task = make(tokenizer(tmp_path, PLAIN), problems, system='Be brief.')
  prompt = task.train[0].prompt
  assert prompt.startswith('<|system|>Be brief.\n\nYou can call these')
  assert '"expression"' in prompt and prompt.count('<|system|>') == 1
  assert task.tokenizer.next_turn('14') == (
      '<|end|><|user|>14<|end|><|assistant|>')
  task.close()


def test_tools_are_described_to_a_model_without_a_system_message(
    tmp_path, problems):
  """In front of the user's first text, as for Gemma 2."""
  chat = ("{% if messages[0].role == 'system' %}{{ raise_exception('System role"
          " not supported') }}{% endif %}" + PLAIN)
  tok = tokenizer(tmp_path, chat)
  task = make(tok, problems)
  prompt = task.train[0].prompt
  assert prompt.startswith('<|user|>You can call these') and (
      '"expression"' in prompt)
  assert '\n\nWhat is ' in prompt and prompt.count('<|user|>') == 1
  task.close()
  with pytest.raises(ValueError, match='takes no system message'):
    make(tok, problems, system='Be brief.')


def test_a_template_that_changes_earlier_turns_is_refused(tmp_path, problems):
  tok = tokenizer(tmp_path, FORGETS)
  with pytest.raises(ValueError, match=f'{tmp_path} changes earlier turns'):
    make(tok, problems)


def test_what_needs_a_chat_says_so(tmp_path, problems):
  tok = tokenizer(tmp_path, PLAIN)
  with pytest.raises(ValueError, match='task.template=question makes none'):
    make(tok, problems, template='question')
  with pytest.raises(ValueError, match='task.tools is empty'):
    make(tok, problems, tools=())


def test_a_tool_that_cannot_work_here_says_so_before_the_run(
    tmp_path, problems):
  file = tmp_path / 'own.py'
  file.write_text('def search(a: str) -> str:\n  """Searches.\n\n  Args:\n'
                  '    a: What for.\n  """\n\n'
                  'def ready():\n  raise ValueError("no key for the search")\n'
                  '\nsearch.ready = ready\n')
  tok = tokenizer(tmp_path, PLAIN)
  make(tok, problems).ready()  # the calculator
  with pytest.raises(ValueError, match='no key for the search'):
    make(tok, problems, tools=(f'{file}:search',)).ready()


def test_the_judge_of_the_problems_is_chosen(
    tmp_path, problems, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  tok = tokenizer(tmp_path, PLAIN)
  with pytest.raises(ValueError, match='task.judge=math_verify needs'):
    make(tok, problems, judge='math_verify')


# Schemas as most templates show them.
SHOWN = '{% for t in tools %}{{ t | tojson }}\n{% endfor %}'


def template(head, call='', arguments='c.function.arguments', chat=PLAIN):
  """Returns a template that shows tools, and how it writes a call of one."""
  written = ('{% for c in m.tool_calls or [] %}' + call.replace(
      'NAME', '{{ c.function.name }}').replace(
          'ARGUMENTS', '{{ ' + arguments + ' }}') + '{% endfor %}')
  return '{% if tools %}' + head + '{% endif %}' + chat.replace(
      '{{ m.content }}', '{{ m.content or "" }}' + written if call else (
          '{{ m.content }}'))


SAYS = SHOWN + 'Reply <tool_call>{"name": ...}</tool_call> to call one.'
JSON = 'c.function.arguments | tojson'
XML = ('<tool_call>\n<function=NAME>\n{% for k, v in c.function.arguments.'
       'items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}'
       '</function>\n</tool_call>')


@pytest.mark.parametrize('made', [
    template(SHOWN, '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}'
             '</tool_call>', JSON),
    # Arguments as JSON within JSON, and as texts that the template appends.
    template(SHOWN, '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}'
             '</tool_call>', 'c.function.arguments | tojson | tojson'),
    template(SHOWN, '<tool_call>{"name": "NAME", "arguments": '
             '{{ "" + c.function.arguments }}}</tool_call>'),
    template(SHOWN, '{"name": "NAME", "parameters": ARGUMENTS}', JSON),
    template(SHOWN, XML),
    # Calls only of messages without a text.
    template(SHOWN, XML).replace('m.tool_calls or []', (
        '(m.tool_calls if m.content is not string) or []')),
    # These show no call of an earlier turn, but say a form.
    template(SAYS, chat=PLAIN.replace('|>{{', '|>{{ m.name }}{{')),
    template(SHOWN + 'Reply <tool_call>\n<function=NAME> to call one.')])
def test_forms_of_templates_that_are_read(tmp_path, problems, made):
  task = make(tokenizer(tmp_path, made), problems)
  assert task.train[0].prompt.startswith('{"type"')
  assert '<|system|>' not in task.train[0].prompt
  task.close()


@pytest.mark.parametrize('made', [
    template(SHOWN, '[TOOL_CALLS][{"name": "NAME", "arguments": ARGUMENTS}]',
             JSON),
    template(SHOWN, '<call>NAME\n```json\nARGUMENTS\n```</call>', JSON),
    template(SHOWN, '<tool_call>NAME\n<arg_key>a</arg_key>ARGUMENTS'
             '</tool_call>', JSON),
    # These show no call of an earlier turn, but say a form.
    template(SHOWN + 'Reply ```tool_code\nname(a=1)\n``` to call one.'),
    template(SHOWN + '<tool_call>{name}\n<arg_key>{key}</arg_key></tool_call>'),
    template(SHOWN + '<invoke name="...">')])
def test_other_forms_are_refused_at_the_start(tmp_path, problems, made):
  tok = tokenizer(tmp_path, made)
  with pytest.raises(ValueError, match=f'{tmp_path} asks .*: choose a'):
    make(tok, problems)


@pytest.mark.parametrize('made', [
    # A name that stands in a prompt without tools, too, is no sign of them.
    'The calculator takes an expression.' + PLAIN,
    template('{% for t in tools %}{{ t.function.name }}{% endfor %}', XML),
    template(SHOWN),
    template(SHOWN, XML, chat=PLAIN.replace(
        'in messages', 'in messages if m.role != "tool"')),
    template(SAYS, chat=PLAIN.replace(
        '{% for m in messages %}', '{% for m in messages %}'
        '{% if m.role == "tool" %}{{ raise_exception("no") }}{% endif %}'))])
def test_tools_are_described_if_the_template_does_not(tmp_path, problems, made):
  task = make(tokenizer(tmp_path, made), problems)
  assert '<|system|>You can call these' in task.train[0].prompt
  assert '<|user|>14<|end|>' in task.tokenizer.next_turn('14')
  task.close()


def test_reasoning_that_the_prompt_opens_has_no_call(tmp_path, problems):
  opens = NATIVE.replace('<|{{ m.role }}|>', (
      '<|{{ m.role }}|>{{ "<think>" if m.role == "assistant" }}')).replace(
          '<|assistant|>', '<|assistant|><think>')
  task = make(tokenizer(tmp_path, opens), problems, reasoning_tags=('think',))
  assert task.train[0].prompt.endswith('<think>')
  call = ('<tool_call>{"name": "calculator", "arguments": {"expression": "7"}}'
          '</tool_call>')

  def said(texts, observations):
    return task.turns.submit(
        task.train[0], 1, texts, observations)().observation

  assert said([call], []) is None
  assert said([f'{call}</think>{call}'], []) == '7'
  for last, found in (call, None), (f'</think>{call}', '7'):
    assert said([f'</think>{call}', last], ['7']) == found
  task.close()


def played(task, problem, scripts, columns=400):
  """Plays scripts of turns, each a text or tokens, by the number of the sample.

  Returns:
    The responses and their judgements.
  """
  tok = task.tokenizer

  def sample(params, prompts, requests, key, draw, policy_step, shard):
    tokens = np.zeros((len(shard), columns), np.int32)
    length = requests.done.copy()
    for row, name in enumerate(requests.sample.tolist()):
      turn = scripts[name].pop(0)
      ids = [*tok.encode(turn), tok.stop_ids[0]] if isinstance(
          turn, str) else turn
      ids = ids[:requests.budget[row] - length[row]]
      tokens[row, length[row]:length[row] + len(ids)] = ids
      length[row] += len(ids)
    zeros = np.zeros(tokens.shape, np.float32)
    return Rollouts(
        tokens=tokens, length=length, truncated=length >= requests.budget,
        logprobs=np.where(np.arange(columns) < length[:, None], -1, zeros),
        entropy=zeros, problem_id=None, sample=None, policy_step=None), dict(
            steps=1, busy=1, slots=1)

  processes = processes_lib.make_processes(make_mesh(1, 1, 1))
  count = len(scripts)
  parts = types.SimpleNamespace(
      key=None, processes=processes, task=task, stages=types.SimpleNamespace(
          settings=types.SimpleNamespace(seed=0, max_response=columns)))
  responses = turns.play(
      parts, rollout.SampleCall(
          [problem], rollout.encode([problem], tok, 400), rollout.requests(
              np.zeros(count, int), np.arange(count), columns)),
      turns.WaveSampling(sample, None, None, 0, 4))
  judged = rollout.start_judging(task, responses, processes)()
  task.close()
  return responses, judged


CALL = '<tool_call>{"name": "calculator", "arguments": %s}</tool_call>'


def test_a_trajectory_from_the_prompt_to_the_verdict(tmp_path, problems):
  task = make(tokenizer(tmp_path, NATIVE), problems, max_turns=3)
  tok = task.tokenizer
  stop, = tok.stop_ids
  problem = next(p for p in (*task.train, *task.heldout) if p.info == '14')
  responses, judged = played(task, problem, {
      0: [CALL % '{"expression": "2*7"}', 'It is \\boxed{14}.'],
      1: [CALL % '{"expression": "2*"}', CALL % '{"x": 1}', '\\boxed{14}'],
      2: ['\\boxed{15}'],
      3: [CALL % '{"expression": "1"}'] * 5})
  assert judged.kind == ['correct', 'correct', 'wrong', 'no_answer']
  assert judged.reward.tolist() == [1, 1, 0, 0]
  assert responses.played.count.tolist() == [2, 3, 1, 3]
  assert judged.truncated.tolist() == [False, False, False, True]
  first, second = ([turn['observation'] for turn in responses.played.turns[i]]
                   for i in (0, 1))
  assert first == ['14', '']
  assert second[0].startswith("Error: ValueError: '2*' is no expression")
  assert second[1].startswith('Error: calculator: ')
  # What the model read stands between what it wrote, token by token.
  made = responses.rollouts
  row, wrote = made.tokens[0], made.generated[0]
  texts = [turn['text'] for turn in responses.played.turns[0]]
  own = [*tok.encode(texts[0]), stop]
  assert row[:len(own)].tolist() == own and wrote[:len(own)].all()
  read = task.turns.append(tok, '14', stop)
  assert row[len(own):len(own) + len(read)].tolist() == read
  assert not wrote[len(own):len(own) + len(read)].any()
  assert judged.observed[0] == len(read)
  assert made.length[0] == judged.generated[0] + len(read)


def test_whatever_ends_a_call_the_template_goes_on(tmp_path, problems):
  """A stop text stays in the turn; a foreign stop token leaves the tokens."""
  task = make(tokenizer(tmp_path, NATIVE), problems, max_turns=2)
  own = task.tokenizer
  tok = task.tokenizer = with_stops(
      own, [*task.stops, '</tool_call>', '<|pad|>'], 300)
  problem = next(p for p in task.train if p.info == '21')
  call = CALL % '{"expression": "3*7"}'
  pad, = own.encode('<|pad|>')
  answer = '\\boxed{21}'
  responses, judged = played(task, problem, {
      0: [own.encode(call), answer], 1: [[*own.encode(call[:-1]), pad], answer],
      2: [[*own.encode(call), tok.stop_ids[0]], answer]})
  assert judged.kind == ['correct'] * 3
  after = '<|end|><|tool|>21<|end|><|assistant|>' + answer + '<|end|>'
  said = [call, call[:-1], call]
  for row, (text, turn) in enumerate(zip(said, responses.played.turns)):
    made = responses.rollouts
    ids = made.tokens[row, :made.length[row]]
    assert turn[0]['text'] == text and (
        turn[0]['observation'] == '21' if text == call
        else 'no </tool_call>' in turn[0]['observation'])
    spelled = own.spell(ids)
    assert spelled.startswith(f'{text}<|end|><|tool|>')
    assert text != call or spelled == text + after
    # What the model did not write has no part in the loss.
    wrote, logprobs = made.generated[row], made.logprobs[row]
    assert not logprobs[~wrote].any() and logprobs[wrote].all()
    assert own.spell(made.tokens[row][wrote]) == (
        text + '<|end|>' * (row == 2) + answer + '<|end|>')


@pytest.mark.parametrize('turn, columns', [
    ('14 ' + CALL % '{"expression": "14", "x": "14"}', 50),
    (CALL % '{"expression": "14"}', 400)])
def test_a_trajectory_that_ends_in_a_call_has_no_answer(
    tmp_path, problems, turn, columns):
  task = make(tokenizer(tmp_path, NATIVE), problems, max_turns=1, take='number')
  problem = next(p for p in (*task.train, *task.heldout) if p.info == '14')
  responses, judged = played(
      task, problem, {0: [turn], 1: ['so 14']}, columns)
  assert judged.kind == ['no_answer', 'correct']
  assert judged.truncated.tolist() == [True, False]


REWARD = '''
def seen(completions, completion_ids, log_extra, **columns):
  log_extra('completions', completions)
  log_extra('ids', completion_ids)
  return [1.0] * len(completions)
'''


@pytest.mark.parametrize('messages', [True, False])
def test_reward_functions_get_the_messages_of_a_trajectory(tmp_path, messages):
  """Messages as TRL's; a problem that is a text gets the last turn."""
  text = 'What is 2 * 7?'
  (tmp_path / 'mine.py').write_text(REWARD)
  path = tmp_path / 'problems.jsonl'
  path.write_text(''.join(json.dumps({'problem': [
      {'role': 'user', 'content': text + end}] if messages else text + end})
                          + '\n' for end in ('', ' Say it.')))
  task = make(
      tokenizer(tmp_path, NATIVE), str(path), max_turns=2,
      reward=(f'{tmp_path}/mine.py:seen',))
  tok, call = task.tokenizer, CALL % '{"expression": "2*7"}'
  responses, judged = played(task, task.train[0], {
      0: [f'I ask. {call}{call}', '14'], 1: ['15'], 2: [call, call]})
  found = [v.extra for v in judged.verdicts]
  rows = [responses.rollouts.tokens[i, :n].tolist()
          for i, n in enumerate(responses.rollouts.length)]
  if not messages:
    assert [x['completions'] for x in found] == ['14', '15', '']
    assert [tok.decode(x['ids']) for x in found] == ['14', '15', call]
    return
  called = {'type': 'function', 'function': {
      'name': 'calculator', 'arguments': {'expression': '2*7'}}}
  assert [x['ids'] for x in found] == rows
  assert [x['completions'] for x in found] == [
      [{'role': 'assistant', 'content': f'I ask. {call}{call}',
        'tool_calls': [called, called]},
       {'role': 'tool', 'name': 'calculator, calculator', 'content': '14\n14'},
       {'role': 'assistant', 'content': '14'}],
      [{'role': 'assistant', 'content': '15'}],
      [{'role': 'assistant', 'content': call, 'tool_calls': [called]},
       {'role': 'tool', 'name': 'calculator', 'content': '14'},
       {'role': 'assistant', 'content': call, 'tool_calls': [called]}]]
