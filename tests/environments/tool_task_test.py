"""Tests of problems with tools, from the prompt to the verdict."""

import json

import numpy as np
import pytest

from jaxrl_llm import tasks
from jaxrl_llm.host import rollout, turns
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.mesh import make_mesh
from jaxrl_llm.tokenizer import ModelTokenizer
from jaxrl_llm.types import Rollouts
from tests import tokenizer_test

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


def test_a_trajectory_from_the_prompt_to_the_verdict(tmp_path, problems):
  task = make(tokenizer(tmp_path, NATIVE), problems, max_turns=3)
  tok, columns = task.tokenizer, 400
  stop, = tok.stop_ids
  call = '<tool_call>{"name": "calculator", "arguments": %s}</tool_call>'
  scripts = {
      0: [call % '{"expression": "2*7"}', 'It is \\boxed{14}.'],
      1: [call % '{"expression": "2*"}', call % '{"x": 1}', '\\boxed{14}'],
      2: ['\\boxed{15}'],
      3: [call % '{"expression": "1"}'] * 5}

  def sample(params, prompts, requests, key, draw, policy_step, shard):
    tokens = np.zeros((len(shard), columns), np.int32)
    length = requests.done.copy()
    for row, name in enumerate(requests.sample.tolist()):
      ids = [*tok.encode(scripts[name].pop(0)), stop]
      tokens[row, length[row]:length[row] + len(ids)] = ids
      length[row] += len(ids)
    zeros = np.zeros(tokens.shape, np.float32)
    return Rollouts(
        tokens=tokens, length=length, truncated=length < 0, logprobs=zeros,
        entropy=zeros, problem_id=None, sample=None, policy_step=None), dict(
            steps=1, busy=1, slots=1)

  problem = next(p for p in (*task.train, *task.heldout) if p.info == '14')
  processes = processes_lib.make(make_mesh(1, 1, 1))
  responses = turns.play(
      task.turns, rollout.SampleCall(
          [problem], rollout.encode([problem], tok, 400), rollout.requests(
              np.zeros(4, int), np.arange(4), columns)),
      turns.Sampling(sample, None, None, 0, 4), turns.Run(
          None, 0, columns, tok, processes))
  judged = rollout.submit(task, responses, processes)()
  task.close()
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
