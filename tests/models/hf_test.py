"""Tests of Hugging Face checkpoints: import and export."""

import copy
import functools
import json
import pathlib

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import torch
import transformers

from jaxrl_llm import sharding
from jaxrl_llm.models import hf, tensor_files, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests
from tests.helpers import devices, families, tiny
from tests.helpers.tolerance import decoder, rounding
from tests.reference import transformers_params

_T = 64
_LENGTHS = (1, 5, 13, 20)  # of prompts, up to past gemma2's window


def load(folder, sizes=(1, 1, 1)):
  """Loads (config, float32 parameters on a mesh) from a folder."""
  checkpoint = hf.open_checkpoint(pathlib.Path(folder))
  shapes = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), checkpoint.config))
  places = sharding.shardings(
      shapes, sharding.TRAIN_RULES, sharding.make_mesh(*sizes))
  return checkpoint.config, hf.load(checkpoint, jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(
          x.shape, jnp.float32, sharding=place), shapes, places))


def equal(a, b):
  """Returns whether two trees are equal, bit by bit."""
  return jax.tree.all(jax.tree.map(
      lambda x, y: x.dtype == y.dtype and np.array_equal(x, y), a, b))


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Function that returns folder, config and parameters of a saved model."""
  @functools.cache
  def get(name, dtype):
    folder = families.save(name, tmp_path_factory.mktemp(name), dtype)
    return folder, *load(folder)
  return get


@functools.partial(jax.jit, static_argnames='cfg')
def _logits(params, tokens, cfg):
  return transformer.logits(
      params, transformer.forward(params, tokens, cfg=cfg)[0], cfg)


@functools.cache
def _sampler(cfg):
  sampler = generate_lib.SamplerConfig(
      slots=6, max_response=_T, top_logprobs=cfg.vocab_size)
  return jax.jit(
      functools.partial(generate_lib.generate, cfg=cfg, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})


def _decode(cfg, params, **values):
  """Decodes two responses of 64 tokens to each prompt.

  Returns:
    List of (tokens, response's log-probs [64, V]).
  """
  n = len(_LENGTHS)
  prompts = Prompts(
      families.tokens(n, max(_LENGTHS)), np.array(_LENGTHS, np.int32),
      np.arange(n, dtype=np.int32))
  requests = Requests(
      np.arange(n, dtype=np.int32).repeat(2),
      np.tile(np.arange(2, dtype=np.int32), n), np.full(2 * n, _T, np.int32))
  out, _ = _sampler(cfg)(
      params, Queue(prompts, requests, 2 * n), jax.random.key(0),
      SamplingParams(**values), 0)
  logprobs = np.zeros((2 * n, _T, cfg.vocab_size))
  np.put_along_axis(logprobs, *(
      np.swapaxes(x, 1, 2) for x in (out.top_ids, out.top_logprobs)), -1)
  return [
      (np.concatenate([prompts.tokens[p, :_LENGTHS[p]], out.tokens[i]]), rows)
      for i, (p, rows) in enumerate(zip(requests.prompt, logprobs))]


def _torch_logprobs(model, tokens):
  """Returns transformers' log-probs of the last 64 tokens, [64, V]."""
  logits = families.torch_logits(model, tokens[None])[0, -_T - 1:-1]
  return np.asarray(jax.nn.log_softmax(logits))


def _close(got, want, cfg, length):
  # Log-probs are one more sum, over the vocabulary.
  np.testing.assert_allclose(
      got, want, rtol=0, atol=rounding(
          decoder(cfg, length), cfg.vocab_size, magnitude=np.abs(want).max()))


@pytest.mark.parametrize('name', families.NAMES)
def test_a_folder_becomes_the_model_that_wrote_it(name, saved):
  _, cfg, params = saved(name, torch.float32)
  want_cfg, want, model = families.pair(name)
  assert cfg == want_cfg
  assert equal(params, want)
  tokens = families.tokens()
  _close(_logits(params, tokens, cfg), families.torch_logits(model, tokens),
         cfg, tokens.shape[1])


def test_tensors_are_counted(saved, tmp_path, monkeypatch):
  folder, cfg, params = saved('qwen2', torch.float32)
  counts = tiny.counts(monkeypatch)
  load(folder)
  hf.save(tmp_path, params, cfg)
  total = len(tensor_files.find(pathlib.Path(folder)))
  assert counts == [
      (name, done, total)
      for name in ('loading the model', 'writing the model')
      for done in range(1, total + 1)]


@pytest.mark.parametrize('name', [
    # generate_test.py has these two against a twin.
    pytest.param(name, marks=(
        pytest.mark.slow if name in ('gemma3', 'qwen3_moe') else ()))
    for name in families.NAMES])
def test_token_by_token_as_transformers(name, saved):
  """Through the sampler's cache: all log-probs, and greedy decoding."""
  _, cfg, params = saved(name, torch.float32)
  model = families.torch_model(name)
  for tokens, logprobs in _decode(cfg, params):
    _close(logprobs, _torch_logprobs(model, tokens), cfg, len(tokens))
  for tokens, _ in _decode(cfg, params, temperature=0.0)[::6]:
    prompt = torch.from_numpy(tokens[None, :-_T]).long()
    want = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
        max_new_tokens=_T)
    np.testing.assert_array_equal(tokens, want[0])


@pytest.mark.parametrize('name, cached', [
    ('qwen2', False), ('qwen3', True), ('llama3', False), ('gemma2', True)])
def test_bfloat16(name, cached, saved):
  """The likeliest token, in a forward pass and through the cache.

  The same bfloat16 weights are run by us in bfloat16, by transformers in
  bfloat16, and by transformers in float32, which is the truth. Random models
  have many near-ties: transformers itself finds the truth's token at 95 to 99%
  of the positions. So over all positions we must do no worse than it does; and
  99% is asked where the truth's first two logits are farther apart than 4
  times transformers' mean rounding error, or 8 times, where two roundings are
  compared. That leaves most positions.
  """
  _, cfg, params = saved(name, torch.bfloat16)
  assert cfg.dtype == 'bfloat16'
  model = families.torch_model(name, torch.bfloat16)
  exact = copy.deepcopy(model).float()
  tokens = families.tokens(32, 60)
  rows = [(_logits(params, tokens, cfg), families.torch_logits(model, tokens),
           families.torch_logits(exact, tokens))]
  rows += [(logprobs, _torch_logprobs(model, tokens),
            _torch_logprobs(exact, tokens))
           for tokens, logprobs in (_decode(cfg, params) if cached else ())]
  ours, theirs, truth = (
      np.concatenate([x.reshape(-1, cfg.vocab_size) for x in parts])
      for parts in zip(*rows))
  error = np.abs(theirs - truth).mean()
  assert np.abs(ours - truth).mean() < 1.05 * error
  ours, theirs, best = (x.argmax(-1) for x in (ours, theirs, truth))
  assert np.mean(ours == best) > np.mean(theirs == best) - 0.005
  margin = np.diff(np.sort(truth)[:, -2:])[:, 0] / error
  assert np.mean(margin > 4) > 0.7 and np.mean(margin > 8) > 0.5
  assert np.mean(ours == best, where=margin > 4) > 0.99
  assert np.mean(ours == theirs, where=margin > 8) > 0.99


def _tensors(folder):
  return {name: x for file in folder.glob('*.safetensors')
          for name, x in load_file(file).items()}


@pytest.mark.parametrize('name', families.NAMES)
@pytest.mark.parametrize('dtype', (torch.float32, torch.bfloat16), ids=str)
def test_import_export_import(name, dtype, saved, tmp_path):
  folder, cfg, params = saved(name, dtype)
  sharded = families.save(
      name, tmp_path / 'sharded', dtype, max_shard_size='15KB')
  assert len(list(sharded.glob('*.safetensors'))) > 2
  assert equal(load(sharded)[1], params)
  for shard_bytes in (10 ** 9, 15_000):
    export = tmp_path / str(shard_bytes)
    export.mkdir()
    hf.save(export, params, cfg, shard_bytes=shard_bytes)
    assert ((export / tensor_files.INDEX).exists()
            == (shard_bytes == 15_000))
    got, want = _tensors(export), _tensors(folder)
    assert got.keys() == want.keys() and equal(got, want)
    again = load(export)
    assert again[0] == cfg and equal(again[1], params)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        export, attn_implementation='eager')
    assert model.dtype == dtype
    tokens = families.tokens()
    np.testing.assert_array_equal(
        families.torch_logits(model, tokens),
        families.torch_logits(families.torch_model(name, dtype), tokens))


def test_float16_is_read_exactly_and_computed_in_float32(tmp_path):
  folder = families.save('qwen3', tmp_path, torch.float16)
  for file in folder.glob('*.safetensors'):  # the helper keeps float32 files
    save_file({name: x.astype(np.float16)
               for name, x in load_file(file).items()}, file)
  cfg, params = load(folder)
  assert cfg.dtype == 'float32'
  assert equal(params, jax.tree.map(
      jnp.asarray, transformers_params.params(
          families.torch_model('qwen3', torch.float16), cfg)))


@pytest.mark.parametrize('prefix, head, other', [
    ('language_model.model.', 'language_model.lm_head.', ''),  # of version 4
    ('model.language_model.', 'lm_head.', 'model.')])
def test_the_text_part_of_a_model_of_texts_and_images(
    prefix, head, other, saved, tmp_path):
  folder, cfg, params = saved('gemma3', torch.float32)
  raw = json.loads((folder / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps(dict(
      model_type='gemma3', architectures=['Gemma3ForConditionalGeneration'],
      text_config=raw, vision_config={})))
  tensors = {
      name.replace('model.', prefix, 1): x
      for name, x in _tensors(folder).items()}
  tensors[f'{head}weight'] = tensors[f'{prefix}embed_tokens.weight']
  for part in ('vision_tower.x', 'multi_modal_projector.y'):
    tensors[other + part] = np.ones(3, np.float32)
  save_file(tensors, tmp_path / tensor_files.SINGLE)
  assert load(tmp_path)[0] == cfg and equal(load(tmp_path)[1], params)
  for name in ('preprocessor_config.json', 'tokenizer.json'):
    (tmp_path / name).write_text('{}')
  assert [p.name for p in hf.companions(tmp_path)] == ['tokenizer.json']


_SIZES = dict(vocab_size=16, width=8, layers=2, heads=4, kv_heads=4,
              head_dim=4, mlp_width=8)
# Models whose axes can be split, and meshes.
_WIDE = {
    'qwen2': (
        ModelConfig(**_SIZES, qkv_bias=True, tie_embeddings=False),
        ((2, 1, 2), (1, 4, 1), (2, 2, 1))),
    'gemma2': (
        ModelConfig(
            **_SIZES, activation='gelu_tanh', norm_plus_one=True,
            post_norms=True, scale_embeddings=True, query_scale=0.25, window=4,
            dtype='bfloat16'),
        ((4, 1, 1), (1, 2, 2))),
    'qwen3_moe': (
        ModelConfig(
            **_SIZES, qk_norm=True, experts=4, experts_per_token=2,
            expert_width=6, sparse_step=2), ((2, 1, 2), (1, 2, 2)))}


def _on_meshes(folder):
  """Returns the errors after import and export on each mesh."""
  wrong = []
  for family, (cfg, meshes) in _WIDE.items():
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: jnp.asarray(random.normal(size=x.shape), cfg.dtype)
        .astype(jnp.float32),
        jax.eval_shape(lambda: transformer.init(jax.random.key(0), cfg)))
    first = pathlib.Path(folder) / family
    first.mkdir()
    hf.save(first, params, cfg)
    read, old = [], tensor_files.Tensor.read
    tensor_files.Tensor.read = lambda self, index: read.append(
        old(self, index)) or read[-1]
    for sizes in meshes:
      read.clear()
      _, loaded = load(first, sizes)
      places = sharding.shardings(
          params, sharding.TRAIN_RULES, sharding.make_mesh(*sizes))
      second = pathlib.Path(folder) / f'{family}{sizes}'
      second.mkdir()
      hf.save(second, loaded, cfg, shard_bytes=500)
      kept = [x for x in jax.tree.leaves(loaded) if x._npy_value is not None]
      wrong += [f'{family} {sizes} {what}' for what, ok in dict(
          values=equal(params, loaded),
          places=jax.tree.all(jax.tree.map(
              lambda x, place: x.sharding == place, loaded, places)),
          # Replicas share what was read: host memory holds a tensor once.
          read=sum(x.nbytes for x in read) == sum(
              x.nbytes for x in _tensors(first).values()),
          export=equal(_tensors(first), _tensors(second)),
          # Nor does it keep what was fetched from the devices to be written.
          kept=not kept,
      ).items() if not ok]
    tensor_files.Tensor.read = old
  return wrong


def test_every_layout_has_the_same_weights(tmp_path):
  assert devices.run(_on_meshes, str(tmp_path), devices=4) == []


@pytest.fixture
def folder(tmp_path):
  """Folder of an untied model in one file, for tests that damage it."""
  return families.save('qwen3', tmp_path)


def _change(folder, **changes):
  """Replaces tensors of a file, or removes those given as None."""
  file = folder / tensor_files.SINGLE
  tensors = {name: x for name, x in {**load_file(file), **changes}.items()
             if x is not None}
  save_file(tensors, file, metadata={'format': 'pt'})


_NORM = 'model.layers.1.self_attn.k_norm.weight'


@pytest.mark.parametrize('changes, message', [
    ({_NORM: None}, rf'lacks the tensor {_NORM} that config.json asks for'),
    ({'lm_head.weight': None}, 'lacks the tensor lm_head.weight'),
    ({_NORM: np.ones(9, np.float32)},
     rf'{_NORM} has shape \(9,\), but config.json asks for \(10,\)'),
    ({'lm_head.weight': np.ones((40, 30), np.float32)},
     r'lm_head.weight has shape \(40, 30\), .* asks for \(37, 30\)'),
    ({_NORM: np.ones(10, np.float64)}, f'{_NORM} is stored as F64'),
    ({'model.layers.3.mlp.up_proj.weight': np.ones(3, np.float32),
      'score.weight': np.ones(3, np.float32)},
     'tensor model.layers.3.mlp.up_proj.weight and 1 more would be left out'),
    ({'model.layers.0.self_attn.q_proj.bias': np.ones(60, np.float32)},
     'q_proj.bias would be left out'),
], ids=str)
def test_tensors_that_are_not_the_model_s(
    changes, message, folder, monkeypatch):
  monkeypatch.setattr(tensor_files.Tensor, 'blocks', None)  # nothing is read
  _change(folder, **changes)
  with pytest.raises(ValueError, match=message):
    hf.open_checkpoint(folder)


def test_tables_of_older_versions_are_left_out(folder):
  want = load(folder)
  _change(folder, **{
      'model.layers.0.self_attn.rotary_emb.inv_freq': np.ones(5, np.float32)})
  assert equal(load(folder), want)


@pytest.mark.parametrize('value', (np.nan, np.inf))
def test_values_that_are_not_finite(value, folder):
  name = 'model.layers.2.mlp.down_proj.weight'
  weight = load_file(folder / tensor_files.SINGLE)[name]
  weight[7, 3] = value
  _change(folder, **{name: weight})
  hf.open_checkpoint(folder)
  with pytest.raises(ValueError, match=f'{name} has values .* not finite'):
    load(folder)


def test_a_copy_of_tied_weights_must_be_one(tmp_path):
  folder = families.save('gemma2', tmp_path)
  want = load(folder)
  embed = load_file(folder / tensor_files.SINGLE)['model.embed_tokens.weight']
  _change(folder, **{'lm_head.weight': embed})
  assert equal(load(folder), want)
  embed[-1, -1] += 1
  _change(folder, **{'lm_head.weight': embed})
  with pytest.raises(ValueError, match='lm_head.weight differs from model.'):
    load(folder)


def test_mixed_types_compute_in_float32(tmp_path):
  folder = families.save('qwen3', tmp_path, torch.bfloat16)
  _change(folder, **{_NORM: np.full(10, 0.1, np.float32)})
  cfg, params = load(folder)
  assert cfg.dtype == 'float32'
  assert params['layers']['k_norm'][1, 0] == np.float32(0.1)


def test_fetch(tmp_path, monkeypatch):
  calls = []

  def download(name, allow_patterns):
    calls.append(name)
    if name == 'no/network':
      raise ConnectionError('no route to\nthe hub')
    files = ('config.json', 'model-00001-of-00002.safetensors',
             'pytorch_model.bin', 'tokenizer.model', 'chat_template.jinja',
             'model.safetensors.index.json', 'merges.txt')
    for file in huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=allow_patterns):
      (tmp_path / file).touch()
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  hf._download.cache_clear()
  assert hf.fetch(str(tmp_path)) == tmp_path and not calls
  small = {'config.json', 'tokenizer.model', 'chat_template.jinja',
           'merges.txt', 'model.safetensors.index.json'}
  assert hf.fetch('a/b', weights=False) == tmp_path
  assert {file.name for file in tmp_path.iterdir()} == small
  assert hf.fetch('a/b') == hf.fetch('a/b') == tmp_path
  assert {file.name for file in tmp_path.iterdir()} == {
      *small, 'model-00001-of-00002.safetensors'}
  assert calls == ['a/b', 'a/b']
  with pytest.raises(ValueError) as error:
    hf.fetch('no/network')
  assert str(error.value) == (
      'model.hf=no/network is not a folder and could not be fetched from the '
      'hub (ConnectionError: no route to): check the name, or download the '
      'model and give its folder.')
  # A path is no name of the hub.
  monkeypatch.chdir(tmp_path)
  for path in ('./models/x', f'{tmp_path}/models/x'):
    with pytest.raises(ValueError, match=(
        f'^model.hf={path}: there is no folder or GGUF file '
        f'{tmp_path}/models/x: correct')):
      hf.fetch(path)
  hf._download.cache_clear()
