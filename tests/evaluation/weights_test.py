"""Tests of the settings that responses depend on."""

import json
import pathlib
import types

import pytest

from jaxrl_llm import checkpoint, tasks
from jaxrl_llm import config as config_lib
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.evaluation import weights
from jaxrl_llm.models import hf
from jaxrl_llm.prepare import build
from jaxrl_llm.tasks import math
from tests.helpers import tiny


def name(identity='a', temperature=.5, **fields):
  return config_lib.fingerprint(
      weights.settings(tiny.load(**fields), identity, temperature))


@pytest.mark.parametrize('fields', [
    dict(identity='b'), dict(temperature=.6), dict(seed=1), dict(max_prompt=10),
    dict(max_response=11), dict(model__rope_theta=7), dict(lora__rank=2),
    dict(sampling__top_k=3), dict(sampling__top_p=.5), dict(sampling__min_p=.1),
    dict(task__seed=1), dict(task__kinds='three')])
def test_what_bears_on_responses(fields):
  assert name(**fields) != name()


@pytest.mark.parametrize('fields', [
    dict(eval__samples=9), dict(eval__k=(1, 2)), dict(workdir='x'),
    dict(prompts_per_step=8), dict(sampling__slots=4), dict(steps=9),
    dict(task__train=(30,)), dict(task__heldout=(9,)),
    dict(optimizer__learning_rate=1.0), dict(sft__steps=3)])
def test_what_does_not(fields):
  assert name(**fields) == name()


@pytest.mark.parametrize('fields', [
    dict(identity='start'), dict(lora__rank=2)])
def test_a_warm_start_bears_on_what_comes_from_it(fields):
  """The start itself, and the frozen weights beside LoRA's."""
  for change in (
      dict(sft__steps=4), dict(sft__learning_rate=1.0),
      dict(task__train=(30,)), dict(learner__unroll=2)):
    assert name(**fields, **{'sft__steps': 3, **change}) != name(
        **fields, sft__steps=3)
    # Without one, only what else depends on it.
    if 'sft__steps' not in change:
      assert name(**fields, **change) == name(**fields)


def test_the_mathematical_tasks_options():
  def options(**changes):
    config = tiny.load()
    config.task = {'name': 'math', **vars(math.Options(**changes))}
    return config_lib.fingerprint(weights.settings(config, 'a', .5))

  for same in (dict(path=('x',)), dict(heldout=('x',)), dict(workers=3),
               dict(heldout_count=3)):
    assert options(**same) == options()
  for other in (dict(take='number'), dict(timeout=9.0),
                dict(template='none')):
    assert options(**other) != options()


def test_a_models_files(tmp_path):
  def write(where, **changes):
    where.mkdir()
    files = {'config.json': '{}', 'tokenizer.json': '[]',
             'model.safetensors': 'x' * 200_000, **changes}
    for file, text in files.items():
      (where / file).write_text(text)
    return hf.digest(where)

  one = write(tmp_path / '1')
  assert one == write(tmp_path / '2', **{'README.md': 'new'})
  x = 'x' * 100_000
  for i, changes in enumerate((
      {'config.json': '{1}'}, {'model.safetensors': f'{x}y{x[1:]}'},
      {'chat.jinja': ''}, {'model.safetensors': x + x + 'x'})):
    assert write(tmp_path / f'other{i}', **changes) != one
  # Of a large file, not all is read, but some of it everywhere.
  large = tmp_path / '1' / 'model.safetensors'
  with large.open('r+b') as file:
    file.truncate(1 << 28)
    before = hf.digest(tmp_path / '1')
    file.seek(3 << 26)
    file.write(b'y' * (1 << 19))
    file.flush()
  assert hf.digest(tmp_path / '1') != before


def test_the_model_is_in_the_name(monkeypatch, tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  monkeypatch.setattr(weights.hf, 'fetch', lambda _: pathlib.Path(tmp_path))
  config = tiny.load()
  config.model.hf = 'some/model'
  known = weights.settings(config, 'start', 1.0)
  assert known['model.hf'] == 'some/model'
  assert known['model.files'] == hf.digest(tmp_path)
  assert known['weights'] == 'start' and known['sampling.temperature'] == 1
  json.dumps(known)


def test_a_checkpoint_is_told_from_another_of_the_same_step(tmp_path):
  for where in 'ab':
    folder = tmp_path / where / '3'
    folder.mkdir(parents=True)
    (folder / 'files.json').write_text(json.dumps({'state': where}))
  digests = [checkpoint.digest(tmp_path / where, 3) for where in 'aba']
  assert digests[0] == digests[2] != digests[1]


def test_parts_can_be_made_without_problems(parts, monkeypatch):
  config, task = tiny.load(), parts.task
  long = [tasks.Problem(0, '1' * 20, 'two')]
  empty = types.SimpleNamespace(
      tokenizer=task.tokenizer, train=[], heldout=long)
  monkeypatch.setattr(tasks, 'get', lambda *_, **__: empty)
  got = build.parts(config, training=False)
  assert got.task.heldout == long and got.kinds == {}
  with pytest.raises(ValueError, match='no problems'):
    build.parts(config)


def test_the_mathematical_task_can_be_made_without_problems(tmp_path):
  task = math.create(CharTokenizer('1+=5'), math.Options(template='none'))
  assert task.train == task.heldout == []
  (tmp_path / 'a.jsonl').write_text('{"problem": "1+1=", "answer": "2"}')
  assert task.load(str(tmp_path / 'a.jsonl'))[0].prompt == '1+1='
