"""Tests of `model.hf` in a config: its effects, and early errors."""

import json
import shutil
import sys

import jax
import pytest
import torch

from jaxrl_llm import config, evaluate, train
from jaxrl_llm.evaluation import weights
from jaxrl_llm.models import transformer
from jaxrl_llm.prepare import build
from tests.helpers import tiny, tiny_hf
from tests.reference import transformers_params


@pytest.fixture(scope='module')
def origin(tmp_path_factory):
  """Random Qwen3 in two shards, its tokeniser, and problems."""
  folder = tmp_path_factory.mktemp('origin')
  rows = tiny_hf.word_problems(40)
  tiny_hf.write(folder / 'problems.jsonl', rows)
  return tiny_hf.make(folder / 'model', rows, shard='60KB')


def load(origin, **fields):
  """Returns the config of a tiny run on mathematics with that model."""
  c = config.load(tiny.FILE, {
      'task': 'math', 'task.path': f'{origin.parent}/problems.jsonl',
      'task.heldout_count': '5', 'task.template': 'question',
      'model.hf': str(origin), 'max_prompt': '150',
      **{name.replace('__', '.'): str(x) for name, x in fields.items()}})
  config.validate(c)
  return c


def test_the_model_is_that_of_the_folder(origin):
  """Though the config file has another width, and so on."""
  c = load(origin)
  model = config.model_config(c)
  assert (model.width, model.layers, model.vocab_size) == (32, 2, 420)
  assert model.qk_norm and model.dtype == 'float32'
  half = config.model_config(load(
      origin, model__dtype='bfloat16', model__rope_theta=7))
  assert (half.dtype, half.rope_theta) == ('bfloat16', 7.0)
  # Without model.hf the file's own fields stay; so they do where it is none.
  for given in ({}, {'model.hf': 'none'}):
    assert config.load(tiny.FILE, given).model.layers == 1
  parts = build.parts(c)
  assert parts.task.tokenizer.folder == origin
  params = parts.programs.policy.init(parts.replicate(jax.random.key(0)))
  want = transformers_params.params(
      tiny_hf.transformers.AutoModelForCausalLM.from_pretrained(origin), model)
  assert tiny.same(params, want)


def test_countdown_is_played_with_any_tokeniser(origin):
  c = config.load(tiny.FILE, {'model.hf': str(origin), 'max_prompt': '20'})
  task = build.parts(c).task
  assert task.tokenizer.folder == origin
  assert {p.kind for p in task.train} == {'two'}


def test_long_prompts_are_counted_and_left_out(origin, caplog):
  lengths = {}
  whole = build.parts(load(origin, max_prompt=400)).task
  assert len(whole.train) == 35
  encode = whole.tokenizer.encode
  for p in whole.train:
    lengths[p.id] = len(encode(p.prompt))
  limit = sorted(lengths.values())[len(lengths) // 2]
  held = sum(len(encode(p.prompt)) > limit for p in whole.heldout)
  caplog.clear()
  task = build.parts(load(origin, max_prompt=limit)).task
  assert [p.id for p in task.train] == [
      p.id for p in whole.train if lengths[p.id] <= limit]
  dropped = len(whole.train) - len(task.train)
  assert dropped > 5
  said = [r.getMessage() for r in caplog.records]
  assert any(f"'train': {dropped} of {len(lengths)} problems" in s
             and f'max_prompt={limit}' in s for s in said)
  assert held == 0 or any(
      f"'heldout': {held} of 5 problems" in s for s in said)


def program(monkeypatch, capsys, origin, folder, *argv):
  """Returns exit code and message of the program for a model's folder."""
  monkeypatch.setattr(sys, 'argv', [
      'train', f'--config={tiny.FILE}', '--config.task=math',
      f'--config.task.path={origin.parent}/problems.jsonl',
      '--config.task.template=question', '--config.max_prompt=150',
      '--config.task.heldout_count=5',
      f'--config.model.hf={folder}',
      f'--config.workdir={folder}-run', *argv])
  with pytest.raises(SystemExit) as end:
    train.main()
  said, code = capsys.readouterr().err, end.value.code
  if isinstance(code, str):  # which the interpreter would print
    said, code = said + code, 1
  assert said and '\n' not in said.strip()
  return code, said


def cut(folder):
  path = sorted(folder.glob('model-*'))[-1]
  path.write_bytes(path.read_bytes()[:-100])


def scramble(folder):
  path = sorted(folder.glob('model-*'))[0]
  path.write_bytes(b'\xff' * 64 + path.read_bytes()[64:])


def lose(folder):
  sorted(folder.glob('model-*'))[1].unlink()


def changed(**fields):
  def change(folder):
    raw = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**raw, **fields}))
  return change


def no_tokeniser(folder):
  for path in folder.glob('token*'):
    path.unlink()


def shrink(folder):
  """Shrinks the embedding to fewer rows than the tokeniser has tokens."""
  model = tiny_hf.transformers.AutoModelForCausalLM.from_pretrained(folder)
  model.resize_token_embeddings(300)
  for path in folder.glob('model*'):
    path.unlink()
  model.save_pretrained(folder)


def stop_elsewhere(folder):
  (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 500]}')


@pytest.mark.parametrize('harm, words', [
    (stop_elsewhere, ['model.vocab_size=420', '501 tokens']),
    (cut, ['model-', 'cut off or damaged']),
    (scramble, ['model-00001', 'cut off or damaged']),
    (lose, ['model-00002', 'is missing']),
    (changed(vocab_size=421), ['embed_tokens', '(420, 32)', '(421, 32)']),
    (changed(model_type='mamba'), ['model_type=mamba', 'qwen3']),
    (changed(hidden_act='relu'), ['relu', 'not supported']),
    (no_tokeniser, ['no tokeniser']),
    (shrink, ['model.vocab_size=300', '400 tokens']),
])
def test_what_is_wrong_with_a_model_is_said_before_any_compile(
    origin, tmp_path, monkeypatch, capsys, harm, words):
  monkeypatch.setattr(transformer, 'forward', None)
  folder = shutil.copytree(origin, tmp_path / 'harmed')
  harm(folder)
  capsys.readouterr()
  code, said = program(monkeypatch, capsys, origin, folder)
  assert code in (1, 2)
  for word in words:
    assert word in said, said


@pytest.mark.parametrize('args, words', [
    (['model.width=64'], ['model.width=64', '32', 'leave it out']),
    (['model.vocab_size=500'], ['model.vocab_size=500', '420']),
    (['max_prompt=3'], ['max_prompt=3', 'the shortest has']),
    (['task.path=no.jsonl'], ['There is no file /', '/no.jsonl: correct']),
    (['task.path='], ["set 'train', and", 'set config.task.path']),
    (['task.take=last'], ['task.take', 'number']),
    (['task.problem=question'], ['problems.jsonl', 'line 1,', "'question'"]),
    (['lora.rank=2', 'lora.targets=q_proj'], ['lora.targets=q_proj', 'gate']),
])
def test_mistakes_on_the_command_line(
    origin, tmp_path, monkeypatch, capsys, args, words):
  monkeypatch.setattr(transformer, 'forward', None)
  code, said = program(
      monkeypatch, capsys, origin, origin,
      f'--config.workdir={tmp_path}/run', *(f'--config.{a}' for a in args))
  assert code in (1, 2)
  for word in words:
    assert word in said, said


def test_mathematics_needs_a_model_with_a_tokeniser(tmp_path):
  with pytest.raises(ValueError, match='config.model.hf'):
    build.parts(config.load(tiny.FILE, {
        'task': 'math', 'task.path': 'x.jsonl', 'workdir': str(tmp_path)}))


def test_help_shows_the_models_own_values(origin, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [
      'train', f'--config={tiny.FILE}', f'--config.model.hf={origin}',
      '--help=model'])
  with pytest.raises(SystemExit) as end:
    train.main()
  assert end.value.code == 0
  rows = {line.split()[0]: line for line in capsys.readouterr().out.split('\n')
          if line.startswith('model.')}
  assert '(420)' in rows['model.vocab_size']
  assert '(True)' in rows['model.qk_norm'] or '(true)' in rows['model.qk_norm']


def test_help_needs_no_model(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [
      'train', f'--config={tiny.FILE}', '--config.model.hf=/nowhere/at/all',
      '--help'])
  with pytest.raises(SystemExit) as end:
    train.main()
  assert end.value.code == 0
  assert '/nowhere/at/all' in ''.join(capsys.readouterr().out.split())


def test_evaluation_of_files_needs_no_others(origin, tmp_path):
  """Neither training nor held-out problems need be there."""
  c = load(origin, workdir=tmp_path / 'run', eval__samples=2, eval__k=1)
  c.task.path, c.task.heldout = ('gone.jsonl',), ('gone.jsonl',)
  source = tiny_hf.write(tmp_path / 'few.jsonl', tiny_hf.word_problems(3))
  found = evaluate.evaluate(c, 'start', files=[str(source)])
  assert found['problems'] == 3
  with pytest.raises(ValueError, match='no file /.*gone.jsonl'):
    evaluate.evaluate(c, 'start')


def compute_type(c):
  """Returns the compute type of a run, and of its config."""
  parts = build.parts(c)
  return parts.programs.model.dtype, parts.config.model.dtype


def test_weights_of_float16_are_trained_in_a_type_of_more_range(tmp_path):
  rows = tiny_hf.word_problems(10)
  tiny_hf.write(tmp_path / 'problems.jsonl', rows)
  folder = tiny_hf.make(tmp_path / 'model', rows, dtype=torch.float16)
  assert config.model_config(load(folder)).dtype == 'float32'
  chosen = load(folder, model__dtype='float16')
  assert config.model_config(chosen).dtype == 'float16'


def test_a_cpu_computes_in_float32_unless_told_otherwise(tmp_path, caplog):
  rows = tiny_hf.word_problems(10)
  tiny_hf.write(tmp_path / 'problems.jsonl', rows)
  folder = tiny_hf.make(tmp_path / 'model', rows, dtype=torch.bfloat16)
  c = load(folder, workdir=tmp_path / 'run')
  assert config.model_config(c).dtype == 'bfloat16'
  assert compute_type(c) == ('float32', 'float32')
  said = [x.getMessage() for x in caplog.records if 'float32' in x.getMessage()]
  assert len(said) == 1 and 'model.dtype' in said[0]
  caplog.clear()
  half = load(folder, model__dtype='bfloat16')
  assert compute_type(half) == ('bfloat16', 'bfloat16')
  assert not caplog.records
  # Responses of one type are not those of the other.
  known = [weights.settings(c, 'start', 1.0, dtype)
           for dtype in (None, 'bfloat16', 'float32')]
  assert known[0] == known[1] != known[2]
  # A run goes on with the type that it began with.
  folder_of_run = tmp_path / 'run'
  folder_of_run.mkdir()
  (folder_of_run / 'choices.json').write_text(config.choices(
      load(folder, workdir=folder_of_run, model__dtype='bfloat16')))
  former, now = c.to_dict(), config.with_saved_auto_values(c).to_dict()
  assert now['model']['dtype'] == 'bfloat16'
  assert not config.resume_conflicts(former, now)
  other = load(folder, workdir=folder_of_run, model__dtype='float32')
  assert config.resume_conflicts(now, other.to_dict()) == [
      'model.dtype: bfloat16 -> float32']
  (folder_of_run / 'choices.json').write_text(config.choices(other))
  assert config.with_saved_auto_values(c).model.dtype == 'float32'
  # Elsewhere the type is that of the stored weights.
  _, models = build._typed(c, config.models(c), 'gpu')
  assert models['policy'].dtype == 'bfloat16'
