"""Tests of what ends a run's responses: tokens of the model, and texts."""

import json
import pathlib

import numpy as np
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import evaluate, export, train
from jaxrl_llm.base.tokenizer import ModelTokenizer
from jaxrl_llm.loop import rollout
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, describe
from tests.helpers import tiny, tiny_hf

ROWS = tiny_hf.word_problems(12)


@pytest.fixture(name='model', scope='module')
def _model(tmp_path_factory):
  """A base model: its stop token is <|endoftext|>, its chats use another."""
  folder = tiny_hf.make(tmp_path_factory.mktemp('base') / 'model', ROWS)
  path = folder / 'tokenizer_config.json'
  path.write_text(json.dumps(
      json.loads(path.read_text()) | {'eos_token': '<|endoftext|>'}))
  for name in ('config.json', 'generation_config.json'):
    path = folder / name
    path.write_text(json.dumps(
        json.loads(path.read_text()) | {'eos_token_id': 0}))
  return folder


def math(folder, **fields):
  return build.parts(tiny.load(
      task__name='math', model__hf=folder, max_prompt=300, task__path=str(
          tiny_hf.write(folder.parent / 'rows.jsonl', ROWS)),
      task__heldout_count=2, **fields))


@pytest.mark.parametrize('template, ids', [
    ('chat', (0, 2)), ('qwen', (0, 2)), ('qwen_math', (0, 2)),
    ('question', (0,)), ('<|im_start|>{problem}<|im_start|>', (0, 1))])
def test_the_end_of_a_turn_is_a_stop(model, template, ids):
  parts = math(model, task__template=template)
  assert parts.programs.sampler.sampler.stop_ids == ids
  assert parts.programs.sampler.sampler.stop_texts is None
  assert describe.ends(parts) == ('A response ends with ' + ', '.join(
      f"'{tiny_hf.SPECIAL[i]}' (token {i})" for i in ids) + '.\n')
  words = parts.task.tokenizer.encode('So 4')
  assert parts.task.tokenizer.decode([*words, ids[-1]]) == 'So 4'


def test_an_end_of_a_turn_that_is_no_token_is_a_text(model):
  parts = math(
      model, task__template='<|user|>{problem}<|end|><|assistant|>',
      sampling__stop=['\n\nQuestion:', '<|im_end|>'])
  sampler = parts.programs.sampler.sampler
  assert sampler.stop_ids == (0, 2)
  assert sampler.stop_texts.kind.shape == (420,)  # rows of the model
  assert parts.task.tokenizer.stop_texts == ('<|end|>', '\n\nQuestion:')
  assert describe.ends(parts) == (
      "A response ends with '<|endoftext|>' (token 0), '<|im_end|>' (token 2), "
      "the text '<|end|>', the text '\\n\\nQuestion:'.\n")


def test_a_stop_that_the_tokeniser_cannot_spell():
  with pytest.raises(ValueError, match="'é' cannot end .* sampling.stop"):
    build.parts(tiny.load(sampling__stop='é'))


def test_what_is_judged_and_what_is_trained(monkeypatch):
  """The text ends with the stop; all of its tokens are trained on."""
  config = tiny.load(sampling__stop='["1","+2","2-"]', eval__problems=2)
  parts = build.parts(config)
  judged = []

  def verify(problem, text, truncated):
    judged.append((problem.id, text, truncated))
    return tiny.by_length(problem, text, truncated)

  watched = tiny.watch(parts, verify)
  state, fixed, weights = tiny.begin(watched.parts)
  train.take_step(watched.parts, state, fixed, timing.Timer())
  rollouts, = watched.rollouts
  texts = config.sampling.stop
  ended = 0
  for row, (problem, text, truncated) in enumerate(judged):
    ids = rollouts.tokens[row, :rollouts.length[row]]
    whole = parts.task.tokenizer._own.decode(ids)
    assert problem == rollouts.problem_id[row]
    assert truncated == rollouts.truncated[row]
    assert whole.startswith(text) and not any(t in text[:-1] for t in texts)
    stopped = text.endswith(texts)  # its last token may add more, as in '<21>'
    assert stopped or whole == text and (truncated or ids[-1] == 1)
    ended += stopped
  assert ended > 3
  # The learner's rows have all of these tokens, the stop's among them.
  batch, = watched.batches
  assert sorted(batch.mask.sum(1)) == sorted(rollouts.length)
  rows = {bytes(x[:n]) for x, n in zip(rollouts.tokens, rollouts.length)}
  for tokens, first, length in zip(
      batch.tokens, batch.prompt_length, batch.response_length):
    assert bytes(np.array(tokens[first:first + length], np.int32)) in rows
  del weights


def test_evaluations_have_the_same_stops(monkeypatch, capsys, tmp_path):
  """And other stops are other responses, which are kept elsewhere."""
  folders = set()
  for stop in ('none', '1'):
    config = tiny.load(
        tmp_path, sampling__stop=stop, log__display=True, eval__problems=2)
    result = evaluate.evaluate(config, 'start')
    folders.add(result['responses'])
    said = capsys.readouterr().out
    settings = json.loads(
        pathlib.Path(result['responses']).with_name('settings.json').read_text())
    assert settings.get('stops') == (['1'] if stop == '1' else None)
    assert ("the text '1'" in said) == (stop == '1')
    with open(result['responses']) as file:
      texts = [json.loads(line)['response'] for line in file]
    assert any('1' in text[:-1] for text in texts) == (stop == 'none')
    assert stop == 'none' or any(text.endswith('1') for text in texts)
  assert len(folders) == 2


@pytest.mark.parametrize('longest, warned', [(724, False), (725, True)])
def test_positions_beyond_those_of_the_model(model, caplog, longest, warned):
  math(model, max_response=longest)  # after prompts of up to 300 tokens
  assert ('more than max_position_embeddings=1024 of' in caplog.text) == warned


@pytest.mark.parametrize('longest, warned', [(1016, False), (1017, True)])
def test_positions_of_a_hint_beyond_those_of_the_model(
    model, caplog, longest, warned, tmp_path):
  """The policy is its own teacher."""
  (tmp_path / 'hints.py').write_text(
      'def short(problem):\n  return problem.prompt[:9]\n')
  math(model, max_response=8, **{
      'teacher.hint': f'{tmp_path}/hints.py:short',
      'teacher.max_tokens': longest})
  assert ('teacher.max_tokens + max_response is 1025 tokens, more than max_pos'
          in caplog.text) == warned


def test_a_response_ends_at_its_limit_or_stop():
  config = tiny.load(sampling__stop='=')
  tokenizer = build.parts(config).task.tokenizer
  ids = np.array([tokenizer.encode('1+2=3'), [*tokenizer.encode('1+2='), 0]])
  rollouts = tiny.Rollouts(
      tokens=ids, length=np.array([5, 4]), truncated=np.array([True, False]),
      **dict.fromkeys(('logprobs', 'entropy', 'problem_id', 'sample',
                       'policy_step')))
  assert rollout.decode(rollouts, tokenizer) == ['1+2=', '1+2=']
  assert config_lib.flatten(config)['sampling.stop'] == ('=',)


ENVIRONMENT = '''
def problems(split, seed):
  return [{'n': i, 'of': split} for i in range(3)]

def reset(problem, seed):
  return 0, 'n?'

def step(state, text):
  return state, None, 1.0
'''
TASK = '''
import types
from jaxrl_llm.tasks import Problem

def create(tokenizer, path: tuple[str, ...] = ('here',)):
  assert path
  return types.SimpleNamespace(
      tokenizer=tokenizer, stops=('<|im_end|>', '##'), verify=print,
      train=[Problem(1, '1', 'k')], heldout=[Problem(2, '2', 'k')])
'''
ROW = {
    'problem': 'Add 1.', 'answer': '2', 'tests': ['assert f(1) == 2'],
    'id': 'a', **{side: [{'input': [[1]], 'output': [[2]]}] for side in (
        'train', 'test')}}


@pytest.mark.parametrize('task', [
    'math', 'tools', 'code', 'arc', 'jaxrl_llm.examples.arithmetic',
    'countdown', 'environment.py', 'own.py', 'lost.py'])
def test_an_export_names_what_ended_the_responses(
    model, tmp_path, monkeypatch, caplog, task):
  """For every task, and without the problems and the judge of the run."""
  for name, text in ('environment', ENVIRONMENT), ('own', TASK), (
      'judge', 'def judge(completions, **_):\n  return [1.0]\n'):
    (tmp_path / f'{name}.py').write_text(text)
  (tmp_path / 'lost.py').write_text(TASK.replace('assert', 'import os; assert '
                                                 'os.environ["HERE"] and'))
  monkeypatch.setenv('HERE', '1')
  monkeypatch.chdir(tmp_path)
  tiny_hf.write(tmp_path / 'rows.jsonl', [ROW])
  options = {}
  if task in ('math', 'tools', 'code', 'arc'):
    options = dict(task__path='rows.jsonl', task__template='chat')
  if task in ('math', 'tools'):
    options |= dict(task__heldout_count=0, task__reward='judge.py:judge')
  if task == 'code':
    options |= dict(
        task__heldout_count=0, task__sandbox='subprocess',
        task__allow_unsafe=True)
  config = tiny.load(
      task__name=task, model__hf=model, max_prompt=300,
      sampling__stop='["So"]', **options)
  cfg, own = config_lib.model_config(config), ModelTokenizer(model)
  trained = build._task(config, cfg, own, False)[0].tokenizer
  for name in 'rows.jsonl', 'judge.py':
    (tmp_path / name).unlink()
  monkeypatch.delenv('HERE')
  found = export._stops(config, cfg, own)
  if task == 'lost.py':
    assert found is own and 'KeyError' in caplog.text
    return
  assert found.stop_ids == trained.stop_ids
  assert found.stop_texts == trained.stop_texts
  assert found.stop_ids[-1] == (2 if task != 'countdown' else 0)
