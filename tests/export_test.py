"""Tests of Hugging Face models through training and export."""

import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import jaxrl_llm
from jaxrl_llm import checkpoint, config, evaluate, export, train
from jaxrl_llm.base import tokenizer
from jaxrl_llm.evaluation import weights
from jaxrl_llm.jobs import export as export_job
from jaxrl_llm.models import hf, hf_config, lora, transformer
from jaxrl_llm.models.gguf import write as gguf_write
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.prepare import build, sft, start_weights
from tests.helpers import devices, tiny, tiny_hf
from tests.helpers.tolerance import decoder, EPS_16, rounding, typical


@pytest.fixture(scope='module')
def origin(tmp_path_factory):
  """A random bfloat16 Qwen3 with a tokeniser trained on the problems."""
  folder = tmp_path_factory.mktemp('origin')
  rows = tiny_hf.gsm8k(120)
  tiny_hf.write(folder / 'problems.jsonl', rows)
  return tiny_hf.make(folder / 'model', rows, dtype=torch.bfloat16)


def load(origin, workdir, **fields):
  """Returns the config of a short run on mathematics with that model."""
  c = config.load(tiny.FILE, {
      'task': 'math', 'task.path': f'{origin.parent}/problems.jsonl',
      'task.heldout_count': '5', 'task.take': 'number',
      'task.template': 'question', 'model.hf': str(origin),
      'max_prompt': '150', 'max_response': '24',
      'workdir': str(workdir), 'loss.entropy_bonus': '.01',
      'optimizer.learning_rate': '3e-3',
      **{name.replace('__', '.'): str(x) for name, x in fields.items()}})
  config.validate(c)
  return c


def reused(monkeypatch, c):
  """Makes every run reuse the programs of the first; returns its task."""
  parts = build.parts(c)
  monkeypatch.setattr(
      build, 'parts', lambda config: tiny.changed(parts, config=config))
  return parts.task


def program(monkeypatch, *argv):
  monkeypatch.setattr(sys, 'argv', ['export', *map(str, argv)])
  export.main()


METHODS = devices.ROOT / 'tests/outside/methods.py'


def test_methods_of_a_user_train_go_on_are_evaluated_and_exported(
    origin, tmp_path, monkeypatch):
  """All from files of the user, each program started in another folder."""
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine/methods.py').write_text(METHODS.read_text())
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.chdir(tmp_path / 'mine')
  workdir = tmp_path / 'run'
  c = load(
      origin, workdir, steps=2, advantage='methods.py:sharper',
      sharper__best='0:2,2:1', loss__objective='methods.py:soft',
      loss__shape='sigmoid', loss__importance='./methods.py:gate',
      curriculum='methods.py:lively', lively__most=2.0, eval__every=0)
  train.train(c)

  monkeypatch.chdir('/')
  saved = str(workdir / 'config.json')
  with pytest.raises(ValueError, match='loss.tau: 1.0 -> 2.0'):
    train.train(config.load(saved, {'loss.tau': 2.0, 'steps': 3}))
  again = config.load(saved, {'lively.rest': 4, 'steps': 3})
  train.train(again)
  rows = metrics.read(workdir / 'metrics.jsonl')
  assert [row.get('sharper/best') for row in rows] == [None, 2, 2, 1]
  assert all(row['update/skipped'] == 0 for row in rows[1:])
  assert evaluate.evaluate(config.load(saved), 'last')['step'] == 3
  program(monkeypatch, f'--workdir={workdir}', f'--out={tmp_path}/out',
          '--checkpoint=last')
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  np.testing.assert_array_equal(
      model.model.norm.weight.detach().float(),
      last(workdir)['norm'].astype(jnp.bfloat16).astype(np.float32))


def test_a_run_goes_on_from_the_weights_of_another(
    origin, tmp_path, monkeypatch):
  """Under other settings; a preset keeps the tokeniser of its task."""
  first = tiny.load(tmp_path / 'a', steps=1, eval__every=0)
  parts = build.parts(first)
  with monkeypatch.context() as patch:
    patch.setattr(build, 'parts', lambda _: parts)
    train.train(first)
  program(monkeypatch, f'--workdir={tmp_path}/a', f'--out={tmp_path}/weights',
          '--checkpoint=last')
  c = config.load(f'{tmp_path}/a/config.json', {
      'model.hf': f'{tmp_path}/weights', 'workdir': f'{tmp_path}/b',
      'sampling.temperature': '0:1,5:.5', 'loss.objective': 'gspo'})
  again = build.parts(c)
  assert again.task.tokenizer.alphabet == parts.task.tokenizer.alphabet
  start = start_weights.start(again, lambda *_: None, resumed=False)
  assert tiny.same(start.params, last(tmp_path / 'a'))
  digits = tokenizer.CharTokenizer('0123456789+-*=,>:')
  sampler = jaxrl_llm.Sampler(
      f'{tmp_path}/weights', digits, max_prompt=2, max_response=2)
  assert sampler.parts.programs.model.width == 32
  with pytest.raises(ValueError, match='has no tokeniser: give one'):
    jaxrl_llm.Sampler(f'{tmp_path}/weights')
  with pytest.raises(ValueError, match='leave out tokenizer='):
    jaxrl_llm.Sampler(str(origin), digits)
  # A model of others that lacks its tokeniser names what ends a response.
  lacking = shutil.copytree(origin, tmp_path / 'lacking')
  (lacking / 'tokenizer.json').unlink()
  with pytest.raises(ValueError, match='lacking has no tokeniser'):
    build.parts(tiny.load(model__hf=lacking))


def last(workdir):
  """Returns the newest checkpoint's parameters as NumPy arrays."""
  root = workdir / 'checkpoints'
  path = root / str(checkpoint.steps(root)[-1]) / 'tree' / 'metadata'
  tree, like = json.loads(path.read_text()), {}
  for name, (shape, kind) in tree.items():
    *sections, leaf = name.split('.')
    if sections[:3] == ['learners', '0', 'params']:
      at = like
      for section in sections:
        at = at.setdefault(section, {})
      at[leaf] = np.zeros(shape, kind)
  found = checkpoint.restore(root, like, partial=True).state
  return found['learners']['0']['params']


def logits(params, tokens, cfg):
  hidden, _ = transformer.forward(params, tokens, cfg=cfg)
  return np.asarray(transformer.logits(params, hidden, cfg))


def of_transformers(folder, tokens, **options):
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, attn_implementation='eager', dtype=torch.float32, **options)
  with torch.no_grad():
    return model(torch.from_numpy(tokens).long()).logits.numpy()


def close(got, want, cfg, length):
  """Compares logits: each library adds the terms in its own order.

  The model's norms have weights of 4, so attention's scores are up to 16 *
  head_dim ** .5, which makes as much of a relative error when softmax takes
  their exp. Few are that large: no further factor of safety.
  """
  scores = 16 * cfg.head_dim ** .5
  np.testing.assert_allclose(
      got, want, rtol=0, atol=typical(
          decoder(cfg, length), magnitude=scores * np.abs(want).max(),
          safety=1))


def test_a_run_on_word_problems_goes_on_and_comes_back(
    origin, tmp_path, monkeypatch, capsys):
  """Runs, resumes to the bit, and exports what transformers opens."""
  task = reused(monkeypatch, load(origin, tmp_path))
  train.train(load(origin, tmp_path / 'whole', steps=4))
  train.train(load(origin, tmp_path / 'cut', steps=2))
  train.train(load(origin, tmp_path / 'cut', steps=4))
  assert task._pool is None  # nothing is left
  params = last(tmp_path / 'whole')
  assert tiny.same(params, last(tmp_path / 'cut'))
  rows = metrics.read(tmp_path / 'cut' / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [0, 1, 2, 3, 4]
  kinds = {'verdict/correct', 'verdict/wrong', 'verdict/no_answer'}
  for row in rows[1:]:
    told = {k: v for k, v in row.items() if k.startswith('verdict/')}
    assert told.keys() <= kinds
    assert sum(told.values()) == pytest.approx(1)
  samples = [json.loads(line) for line in (
      tmp_path / 'cut' / 'samples.jsonl').read_text().splitlines()]
  assert all(s['prompt'].startswith('Question: ') and s['prompt'].endswith(
      'Answer:') for s in samples)
  capsys.readouterr()

  out = tmp_path / 'out'
  program(monkeypatch, f'--workdir={tmp_path}/cut', f'--out={out}',
          '--checkpoint=last', '--dtype=float32')
  said = capsys.readouterr().out
  assert f'{out}: the last checkpoint' in said and 'no update' not in said
  assert len({path.stat().st_mode for path in out.iterdir()}) == 1
  cfg = config.model_config(load(origin, tmp_path, model__dtype='float32'))
  tokens = np.random.default_rng(0).integers(0, 400, (3, 20), np.int32)
  want = logits(params, tokens, cfg)
  got = of_transformers(out, tokens)
  close(got, want, cfg, 20)
  # It has learned something, else this were the model it came from.
  assert np.abs(want - of_transformers(origin, tokens)).max() > 1e-2
  text = 'Ann has 3 apples.'
  ours, theirs = (
      transformers.AutoTokenizer.from_pretrained(f) for f in (out, origin))
  assert ours(text).input_ids == theirs(text).input_ids
  assert ours.chat_template == theirs.chat_template
  assert (out / 'generation_config.json').read_bytes() == (
      origin / 'generation_config.json').read_bytes()

  # Without --dtype, in the type of the model it came from.
  program(monkeypatch, f'--workdir={tmp_path}/cut', f'--out={out}16')
  raw = json.loads((tmp_path / 'out16' / 'config.json').read_text())
  assert raw['dtype'] == raw['torch_dtype'] == 'bfloat16'
  # The folder can be trained on.
  again = config.model_config(load(out, tmp_path))
  assert again == cfg


@pytest.mark.parametrize('warm', [
    pytest.param(0, marks=pytest.mark.slow), 3])
def test_lora_is_merged(origin, tmp_path, monkeypatch, warm):
  """Its checkpoints hold the small matrices alone; after a warm start too."""
  if warm:
    make, fields = tiny.load, dict(sft__steps=warm)
  else:
    make, fields = lambda folder, **x: load(origin, folder, **x), {}
  fields |= dict(
      lora__rank=3, lora__targets='q|down', loss__entropy_bonus=.05,
      loss__kl_coef=.1, optimizer__learning_rate=.01, steps=3)
  c = make(tmp_path / 'run', **fields)
  reused(monkeypatch, c)
  train.train(c)
  begin = make(tmp_path / 'start', **{**fields, 'steps': 0})
  train.train(begin)
  # What is frozen is made once; without it nothing goes on.
  monkeypatch.setattr(sft, 'run', None)
  params = last(tmp_path / 'run')
  assert set(params) == {'layers'}
  assert set(params['layers']) == {
      f'{name}_lora_{x}' for name in ('q', 'down') for x in 'ab'}
  merged, model, step = export.parameters(c, 'last')
  assert step == 3
  # What RL started from, and the sum written out.
  start, _, _ = export.parameters(begin, 'last')
  moved = 0
  for name, weight in merged['layers'].items():
    want = np.asarray(start['layers'][name], np.float64)
    if name in ('q', 'down'):
      a, b = (np.asarray(params['layers'][f'{name}_lora_{x}'], np.float64)
              for x in 'ab')
      assert np.abs(a @ b).max() > 1e-4
      want, moved = want + 16 / 3 * a @ b, moved + 1
    # A sum over the rank of 3, scaled and added.
    np.testing.assert_allclose(
        np.asarray(weight, np.float64), want, rtol=0,
        atol=rounding(3, 2, magnitude=np.abs(want).max()))
  assert moved == 2
  # An evaluation has the same, still apart.
  parts = build.parts(c)
  weights_, found, _ = weights.load(parts, 'last', lambda *_: None)
  assert found == 3
  for name in ('q', 'down'):
    np.testing.assert_array_equal(
        weights_['layers'][name].astype(jnp.float32),
        start['layers'][name].astype(jnp.float32))
    # Scaled, and rounded to bfloat16 by half of its eps at most.
    np.testing.assert_allclose(
        weights_['layers'][f'{name}_lora_b'].astype(jnp.float32),
        16 / 3 * params['layers'][f'{name}_lora_b'],
        rtol=EPS_16 / 2 + rounding(2))
  out = tmp_path / 'out'
  assert export.export(c, out, 'last', 'float32') == 3
  tokens = np.random.default_rng(0).integers(
      0, model.vocab_size, (2, 15), np.int32)
  cfg = config.model_config(make(tmp_path, model__dtype='float32'))
  exact = logits(
      jax.tree.map(lambda x: x.astype(jnp.float32), merged), tokens, cfg)
  close(of_transformers(out, tokens), exact, cfg, 15)
  assert not [n for n in lora.merge(merged)['layers'] if 'lora' in n]
  if warm:
    base, = (tmp_path / 'run').glob('base-*')
    base.unlink()
    with pytest.raises(ValueError, match=f'{base}, with the weights'):
      export.parameters(c, 'last')


@pytest.mark.parametrize('template, stop, ids', [
    ('chat', ('Question:',), [0, 2]), ('question', (), 0)])
def test_what_opens_the_folder_ends_a_response_as_the_run_did(
    origin, tmp_path, monkeypatch, caplog, template, stop, ids):
  """A base model's files name <|endoftext|> alone, its template <|im_end|>."""
  base = tmp_path / 'base'
  shutil.copytree(origin, base)
  for name, fields in (
      ('tokenizer_config.json', {'eos_token': '<|endoftext|>'}),
      ('generation_config.json', {'eos_token_id': 0, 'top_k': 7}),
      ('config.json', {'eos_token_id': 0})):
    path = base / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  c = load(origin, tmp_path / 'run', task__template=template)
  c.update({'sampling': {'stop': stop}, 'model': {'hf': str(base)}})
  params = transformer.init(jax.random.key(0), config.model_config(c))
  monkeypatch.setattr(
      export_job, 'parameters', lambda *_: (params, config.model_config(c), 3))
  export.export(c, tmp_path / 'out')
  found = transformers.GenerationConfig.from_pretrained(tmp_path / 'out')
  assert (found.eos_token_id, found.top_k) == (ids, 7)
  assert ("also ended with 'Question:'" in caplog.text) == bool(stop)


def test_a_gguf_file(origin, tmp_path, monkeypatch):
  """It has the weights, tokeniser and stops, and can be trained on."""
  c = load(origin, tmp_path / 'run', task__template='chat')
  c.update({'sampling': {'stop': ('<|im_start|>',)}})
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(config.to_json(c))
  params = transformer.init(jax.random.key(0), config.model_config(c))
  monkeypatch.setattr(
      export_job, 'parameters', lambda *_: (params, config.model_config(c), 3))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  out = tmp_path / 'out'
  program(monkeypatch, f'--workdir={tmp_path}/run', f'--out={out}',
          '--format=gguf', '--dtype=float32')
  assert {path.name for path in out.iterdir()} == {'README.md', 'model.gguf'}
  again = load(
      out / 'model.gguf', tmp_path / 'again', task__template='chat',
      task__path=f'{origin.parent}/problems.jsonl')
  assert config.model_config(again) == config.model_config(
      load(origin, tmp_path, model__dtype='float32'))
  assert build.parts(again).task.train
  found = hf.open_checkpoint(hf.fetch(str(out / 'model.gguf')))
  np.testing.assert_array_equal(
      found.tensors['model.layers.1.mlp.down_proj.weight'].read(
          (slice(None),)), params['layers']['down'][1].T)
  ours = tokenizer.ModelTokenizer(found.folder)
  theirs = tokenizer.ModelTokenizer(origin)
  assert theirs.stop_ids == (2,) and ours.stop_ids == (2, 1)
  assert ours.own.chat_template == theirs.own.chat_template
  for text in 'Ann has 3 apples.', '<|im_start|>user\n  12 é':
    assert ours.encode(text) == theirs.encode(text)

  of_no_model = tiny.load(tmp_path / 'run')
  monkeypatch.setattr(export_job, 'parameters', None)
  with pytest.raises(ValueError, match='has no model.hf: export with --format'):
    export.export(of_no_model, tmp_path / 'no', form='gguf')
  assert not (tmp_path / 'no').exists()


def test_transformers_opens_the_gguf_file(tmp_path):
  """Its llama, of which it needs no more than the file has."""
  rows = tiny_hf.word_problems(20)
  origin = tiny_hf.make(
      tmp_path / 'origin', rows, 'llama', rope_theta=500.0)
  c = tiny.load(tmp_path / 'run', model__hf=origin)
  shapes = hf.stored_shapes(config.model_config(c))
  weights_ = hf.open_checkpoint(origin).tensors
  out = tmp_path / 'model.gguf'
  own = tokenizer.ModelTokenizer(origin)
  raw = hf_config.read(origin)
  raw |= hf_config.to_hf(hf_config.read_config(origin), raw)
  fields = gguf_write.fields(raw, own.own, own.stop_ids, hf_config.from_hf)
  gguf_write.save(
      out, raw, fields, shapes,
      ((name, weights_[name].read((slice(None),))) for name in shapes))
  tokens = np.random.default_rng(0).integers(0, 400, (3, 20), np.int32)
  got = of_transformers(tmp_path, tokens, gguf_file='model.gguf')
  np.testing.assert_array_equal(got, of_transformers(origin, tokens))
  read = transformers.AutoTokenizer.from_pretrained(
      tmp_path, gguf_file='model.gguf')
  assert read('Ann has 3 apples.').input_ids == own.encode('Ann has 3 apples.')


def mistake(monkeypatch, capsys, *argv):
  with pytest.raises(SystemExit) as end:
    program(monkeypatch, *argv)
  code = end.value.code
  return code if isinstance(code, str) else capsys.readouterr().err


def test_mistakes(origin, tmp_path, monkeypatch, capsys):
  out = f'--out={tmp_path}/out'
  said = mistake(monkeypatch, capsys, f'--workdir={tmp_path}/no', out)
  assert f'no config file {tmp_path}/no/config.json' in said
  run = tmp_path / 'run'
  run.mkdir()
  c = load(origin, run)
  (run / 'config.json').write_text(config.to_json(c))
  said = mistake(monkeypatch, capsys, f'--workdir={run}', out)
  assert f'no whole checkpoint in {run}/checkpoints' in said
  said = mistake(
      monkeypatch, capsys, f'--workdir={run}', f'--out={origin}')
  assert f'{origin} is there already' in said
  said = mistake(monkeypatch, capsys, f'--workdir={run}', out, '--dtype=int8')
  assert 'int8' in said and 'bfloat16' in said
  assert not list(tmp_path.glob('out*'))


def test_other_files_under_the_same_name_are_noticed(
    origin, tmp_path, monkeypatch):
  """Of the problems by whatever goes on, of the model by what adds to it."""
  folder = shutil.copytree(origin.parent, tmp_path / 'mine')
  c = load(folder / 'model', tmp_path / 'run', steps=1, lora__rank=2)
  reused(monkeypatch, c)
  train.train(c)
  monkeypatch.undo()
  rows = tiny_hf.word_problems(121)[1:]
  tiny_hf.write(folder / 'problems.jsonl', rows)
  with pytest.raises(ValueError, match='the training problems were others'):
    train.train(c)
  export.parameters(c, 'last')  # which needs no problems
  tiny_hf.make(folder / 'model', rows, dtype=torch.bfloat16, rope_theta=5e3)
  with pytest.raises(ValueError, match='files of model.hf=.* were others'):
    export.parameters(c, 'last')
  with pytest.raises(ValueError, match='files of model.hf were others'):
    weights.load(build.parts(c), 'last', lambda *_: None)


def test_what_no_family_can_be_is_refused(tmp_path):
  """A mixture of features of our own; nothing is left behind."""
  c = tiny.load(tmp_path / 'run', steps=0, model__post_norms=True)
  train.train(c)
  with pytest.raises(ValueError, match='post_norms=True'):
    export.export(c, tmp_path / 'out')
  assert not list(tmp_path.glob('out*'))


@pytest.mark.parametrize('args, words', [
    (['--workdir=', '--out=x'], '--workdir is empty'),
    (['--workdir=x', '--out='], '--out is empty'),
    (['--workdir=x', '--out=~nouser/x'], "no user 'nouser'"),
    (['--workdir=x'], 'required: --out'),
])
def test_mistakes_of_the_command_line(capsys, args, words):
  with pytest.raises(SystemExit) as end:
    export.parse(args)
  said = capsys.readouterr().err
  assert end.value.code == 2 and words in said and said.count('\n') <= 3


def test_paths_begin_at_home(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  args = export.parse(['--workdir=~/run', '--out=~/out'])
  assert (args.workdir, args.out) == ('/home/me/run', '/home/me/out')
