"""Tests of GGUF files: weights, config and tokeniser, read and written."""

import builtins
import dataclasses
import pathlib
import struct

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
import transformers

from jaxrl_llm import sharding
from jaxrl_llm.base.tokenizer import ModelTokenizer
from jaxrl_llm.models import hf, hf_config, transformer
from jaxrl_llm.models.gguf import folder as folder_lib
from jaxrl_llm.models.gguf import header as header_lib
from jaxrl_llm.models.gguf import metadata, tensors, tokens, write
from tests.helpers import families, ggufs

F32, F16, BF16, Q8_0, Q6_K = (
    gguf.GGMLQuantizationType[name]
    for name in ('F32', 'F16', 'BF16', 'Q8_0', 'Q6_K'))
ALL = (slice(None),)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """The folder for caches, of this test alone."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache' / 'jaxrl_llm' / 'gguf'


def load(checkpoint):
  """Returns float32 parameters."""
  shapes = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), checkpoint.config))
  places = sharding.shardings(
      shapes, sharding.TRAIN_RULES, sharding.make_mesh(1, 1, 1))
  return hf.load(checkpoint, jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(
          x.shape, jnp.float32, sharding=place), shapes, places))


def same(a, b):
  return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def config_of(name):
  """Returns our config; a file does not have another scale of queries."""
  cfg = families.family(name)[0]
  return dataclasses.replace(cfg, query_scale=10 ** -0.5) if (
      cfg.query_scale) else cfg


def matrices(kind):
  """As llama.cpp's converter: vectors stay in float32."""
  return lambda name, array: kind if array.ndim > 1 else F32


@pytest.mark.parametrize('name', ggufs.NAMES)
@pytest.mark.parametrize('kind, dtype', [
    (F32, 'float32'), (BF16, 'bfloat16'), (F16, 'float16')])
def test_a_file_becomes_the_model_it_was_made_of(
    name, kind, dtype, tmp_path):
  """Undoes llama.cpp's order of rows and norms to the bit.

  bfloat16's 8 bits and the 1 that is added to Gemma's norms fit into float32.
  Files of float16 have what that rounds.
  """
  folder = hf.fetch(ggufs.model(
      tmp_path / 'm.gguf', name, torch.bfloat16, matrices(kind)))
  checkpoint = hf.open_checkpoint(folder)
  wanted = config_of(name)
  assert hf_config.read_config(folder) == dataclasses.replace(
      wanted, dtype=dtype)
  model = families.torch_model(name, torch.bfloat16)
  want = families.transformers_params.params(model, wanted)
  if kind == F16:
    want = jax.tree_util.tree_map_with_path(
        lambda keys, x: x if any(
            vector in str(keys) for vector in ('norm', 'bias'))
        else x.astype(np.float16).astype(np.float32), want)
  assert same(load(checkpoint), want)
  tok = ModelTokenizer(folder)
  # 37 rows, 35 tokens; the end of a turn stops too.
  assert (tok.vocab_size, tok.stop_ids, tok.start) == (35, (1, 2), '')
  assert tok.encode('abc<|end|>') == [30, 1]


@pytest.fixture
def wide(tmp_path):
  """Makes a file of wide matrices; returns it, its arrays and tensors.

  Rows of 256 numbers have whole blocks of each type. There are 2 heads of 4
  for queries, 1 for keys.
  """
  def make(kind):
    _, block = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    shapes = {'blk.0.attn_q.weight': (8, 256), 'blk.0.attn_k.weight': (4, 256),
              'blk.0.ffn_up.weight': (8, 512), 'token_embd.weight': (9, 256)}
    arrays = {}
    for name, shape in shapes.items():
      if kind == Q6_K:  # cannot be written: random bits, scales of float16 last
        data = random.integers(0, 256, (
            shape[0], shape[1] // 256, block), np.uint8)
        data[..., -2:] = np.float16([0.01]).view(np.uint8)
        arrays[name] = data.reshape(shape[0], -1)
      else:
        arrays[name] = gguf.quantize(
            random.normal(size=shape).astype(np.float32), kind)
    path = tmp_path / 'wide.gguf'
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    for name, data in arrays.items():
      writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.rename(tmp_path / tensors.FILE)
    return {name: gguf.dequantize(x, kind) for name, x in arrays.items()}, (
        tensors.find(tmp_path))

  return make


@pytest.mark.parametrize('kind', (
    'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q6_K', 'MXFP4', 'BF16'))
def test_quantised_weights_are_the_package_s_to_the_bit(
    kind, wide, monkeypatch):
  kind = gguf.GGMLQuantizationType[kind]
  want, found = wide(kind)
  # Rows of the first and second half of a head lie in turns.
  q = want['blk.0.attn_q.weight'][[0, 2, 1, 3, 4, 6, 5, 7]]
  k = want['blk.0.attn_k.weight'][[0, 2, 1, 3]]
  monkeypatch.setattr('jaxrl_llm.models.tensor_files._BLOCK', 600)
  for name, array in (
      ('model.layers.0.self_attn.q_proj.weight', q),
      ('model.layers.0.self_attn.k_proj.weight', k),
      ('model.layers.0.mlp.up_proj.weight', want['blk.0.ffn_up.weight']),
      ('model.embed_tokens.weight', want['token_embd.weight'])):
    tensor = found[name]
    assert tensor.shape == array.shape
    assert tensor.dtype == ('BF16' if kind == BF16 else 'F32')
    np.testing.assert_array_equal(
        tensor.read(ALL).astype(np.float32), array)
    part = slice(1, 4), slice(100, 230)
    np.testing.assert_array_equal(
        tensor.read(part).astype(np.float32), array[part])


def test_values_that_are_not_finite(wide):
  _, found = wide(F32)
  tensor = found['model.embed_tokens.weight']
  data = np.memmap(tensor.path, np.uint8, 'r+')
  data[-4:] = np.float32([np.nan]).view(np.uint8)
  data.flush()
  with pytest.raises(ValueError, match='not finite'):
    tensor.read(ALL)


def header(arch, **fields):
  """Returns the header of a model of 7 layers without weights."""
  own = {'attention.head_count': 4, 'embedding_length': 24, 'block_count': 7,
         'feed_forward_length': 8, 'context_length': 64,
         'attention.layer_norm_rms_epsilon': 1e-6, **{
             name.replace('__', '.'): x for name, x in fields.items()}}
  infos = {'token_embd.weight': header_lib.Info(
      'token_embd.weight', (9, 24), F32, 0, 96)}
  return header_lib.Header(
      pathlib.Path('x.gguf'), {'general.architecture': arch, **{
          f'{arch}.{name}': x for name, x in own.items() if x is not None}},
      infos)


def read(arch, factors=None, **fields):
  return hf_config.from_hf(metadata.config(header(arch, **fields), factors))


def test_what_gemma_s_files_leave_out():
  """llama.cpp's code has it; the models of 27B scale queries by width / heads.
  """
  cfg = read('gemma3', attention__sliding_window=5, rope__freq_base=1e6)
  assert (cfg.full_every, cfg.window_rope_theta) == (6, 1e4)
  assert cfg.rope_theta == 1e6
  assert (cfg.window, cfg.query_scale, cfg.qk_norm) == (5, 6 ** -0.5, True)
  assert cfg.attention_softcap is None and cfg.logit_softcap is None
  cfg = read('gemma2', attention__key_length=8)
  assert (cfg.full_every, cfg.window, cfg.query_scale) == (2, 4096, 8 ** -0.5)
  assert (cfg.attention_softcap, cfg.logit_softcap) == (50, 30)
  for arch, layers in ('gemma2', 46), ('gemma3', 62):
    cfg = read(arch, attention__key_length=8, block_count=layers,
               attention__sliding_window=5)
    assert (cfg.head_dim, cfg.query_scale) == (8, 6 ** -0.5)
  pattern = [True, True, False] * 2 + [True]
  assert read('gemma3', attention__sliding_window=5,
              attention__sliding_window_pattern=pattern).full_every == 3


@pytest.mark.parametrize('arch, fields, said', [
    ('phi3', {}, 'general.architecture=phi3 is not supported'),
    ('llama', dict(expert_count=8), 'llama.expert_count=8 is not supported'),
    ('llama', dict(block_count=None), 'llama.block_count is missing'),
    ('llama', dict(attention__head_count=[4, 2]),
     'llama.attention.head_count is not one number'),
    ('llama', dict(rope__dimension_count=2),
     'rope.dimension_count=2 beside heads of 6'),
    ('qwen2', dict(rope__scaling__type='yarn', rope__scaling__factor=4.0),
     'rope_type=yarn is not supported'),
    ('gemma3', {}, 'gemma3.attention.sliding_window is missing'),
    ('llama', dict(attention__head_count=0), 'is not valid'),
    ('gemma2', dict(block_count=2 ** 32 - 1), 'block_count=4294967295 is not'),
    ('gemma2', dict(attention__sliding_window_pattern=[True]),
     'sliding_window_pattern=.* does not fit 7 layers'),
])
def test_models_that_are_not_supported(arch, fields, said):
  with pytest.raises(ValueError, match=said):
    read(arch, **fields)


@pytest.mark.parametrize('factor, length, theta', [
    (8.0, 8192, 5e5), (32.0, 8192, 5e5), (8.0, 32, 1e4)])
def test_llama_3_s_scaling_is_found_in_the_factors(factor, length, theta):
  """The factors are transformers', and a file has nothing else of it."""
  from transformers import modeling_rope_utils
  raw = transformers.LlamaConfig(
      hidden_size=512, num_attention_heads=4, head_dim=128,
      rope_parameters=dict(
          rope_type='llama3', factor=factor, low_freq_factor=1.0,
          high_freq_factor=4.0, original_max_position_embeddings=length,
          rope_theta=theta))
  scaled, _ = modeling_rope_utils.ROPE_INIT_FUNCTIONS['llama3'](raw, 'cpu')
  factors = (theta ** -(np.arange(0, 128, 2) / 128) / scaled.numpy()).astype(
      np.float32)
  cfg = read('llama', factors, attention__key_length=128,
             rope__freq_base=theta)
  got = cfg.rope_scaling
  assert (got.factor, got.original_length) == (factor, length)
  assert (got.low_freq_factor, got.high_freq_factor) == (1, 4)
  factors[20] *= 1.01
  with pytest.raises(ValueError, match="not of Llama 3's kind"):
    read('llama', factors, attention__key_length=128, rope__freq_base=theta)


def tokenizer(tmp_path, tokens, **fields):
  """Returns the tokeniser of a file with these tokens."""
  own = {'tokens': tokens, **fields}
  own.setdefault('token_type', [1] * len(tokens))
  array = np.ones((len(tokens), 60), np.float32)
  arch, other = ggufs.fields_of('qwen2')
  other = {key: x for key, x in other.items() if 'tokenizer.ggml' not in key}
  template = own.pop('chat_template', '')
  path = ggufs.write(
      tmp_path / 'tokens.gguf', arch,
      other | {f'tokenizer.ggml.{key}': x for key, x in own.items()} | {
          'tokenizer.chat_template': template}, {'token_embd.weight': array})
  return ModelTokenizer(hf.fetch(path))


# Ids:       0    1    2    3    4    5     6      7       8    9
PIECES = ['</s>', '1', '2', '3', '4', '12', '123', '1234', 'Ġ', 'ĠĠ',
          # 10 11  12    13     14   15   16   17    18   19    20
          'x', 'L', "'", "'L", "'LL", 'Ã', '©', 'Ã©', 'e', 'Ì', 'ģ', 'LLx',
          '<s>']
TYPES = [3, *[1] * 21, 3]
MERGES = ['1 2', '12 3', '123 4', 'Ġ Ġ', "' L", "'L L", 'Ã ©']
TEXTS = ['1234', '  1', "x'LLx", 'e\u0301', 'LLx']


@pytest.mark.parametrize('pre, ids', [
    # Words and numbers with one space in front; no 'LL.
    ('gpt-2', [[7], [8, 8, 1], [10, 12, 11, 11, 10], [18, 19, 20],
               [11, 11, 10]]),
    # As gpt-2, but first digits alone: the spaces in front are one word.
    ('smollm', [[1, 2, 3, 4], [9, 1], [10, 12, 11, 11, 10], [18, 19, 20],
                [11, 11, 10]]),
    # Digits alone without the space, 'LL, and e with an accent is one letter.
    ('qwen2', [[1, 2, 3, 4], [8, 8, 1], [10, 14, 10], [17], [11, 11, 10]]),
    # Up to three digits, 'LL; and a word that is a token needs no merges.
    ('llama-bpe', [[6, 4], [8, 8, 1], [10, 14, 10], [18, 19, 20], [21]]),
])
def test_how_texts_are_split(pre, ids, tmp_path):
  tok = tokenizer(
      tmp_path, PIECES, model='gpt2', pre=pre, merges=MERGES, eos_token_id=0,
      token_type=TYPES, bos_token_id=22, add_bos_token=False)
  assert [tok.encode(text) for text in TEXTS] == ids
  for text in TEXTS:
    assert tok.decode(tok.encode(text)) == (
        'é' if pre == 'qwen2' and text == TEXTS[3] else text)


def test_llama_3_begins_texts_unless_the_file_says_no(tmp_path):
  for given, start in ({}, '<s>'), ({'add_bos_token': False}, ''):
    assert tokenizer(
        tmp_path, PIECES, model='gpt2', pre='llama-bpe', merges=MERGES,
        eos_token_id=0, bos_token_id=22, **given,
        token_type=TYPES).start == start


def test_special_tokens_stops_and_template(tmp_path):
  types = [3, 4, 3, 3, *[1] * 5]
  tok = tokenizer(
      tmp_path, ['<|pad|>', '<tool call>', '<|im_end|>', '<|eom|>',
                 'a', 'b', 'c', 'ab', 'abc'],
      model='gpt2', pre='qwen2', merges=['a b', 'ab c'], token_type=types,
      eos_token_id=2, padding_token_id=0, eom_token_id=3,
      chat_template='{{ messages[0].content }}!<|im_end|>')
  assert tok.encode('a<tool call><|im_end|>b') == [4, 1, 2, 5]
  assert (tok.stop_ids, tok.pad_id) == ((2, 3), 0)
  assert tok.chat('ab') == 'ab!<|im_end|>'
  assert '<|eom|>' in tok.special and '<tool call>' not in tok.special


@pytest.fixture(scope='module')
def spm(tmp_path_factory):
  """A BPE of SentencePiece, trained on this file."""
  path = tmp_path_factory.mktemp('spm') / 'own'
  sentencepiece.SentencePieceTrainer.train(
      input=__file__, model_prefix=str(path), vocab_size=600, model_type='bpe',
      byte_fallback=True, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2,
      unk_id=3, normalization_rule_name='identity', minloglevel=2,
      remove_extra_whitespaces=False, split_digits=True,
      user_defined_symbols=['\n', '\n\n', *(
          '\u2581' * i for i in (2, 3, 4))])
  return sentencepiece.SentencePieceProcessor(model_file=f'{path}.model')


def spm_fields(spm):
  """Returns metadata as llama.cpp's converter makes it of Gemma's models."""
  count, types, scores, tokens = spm.get_piece_size(), [], [], []
  for i in range(count):
    piece, added = spm.id_to_piece(i), 4 <= i < 9
    types.append(3 if i < 4 else 4 if added else 6 if spm.is_byte(i) else 1)
    scores.append(-1000.0 if i < 9 else spm.get_score(i))
    tokens.append(piece.replace('\u2581', ' ') if added else piece)
  return dict(
      model='llama', tokens=tokens, scores=scores, token_type=types,
      bos_token_id=2, eos_token_id=1, padding_token_id=0, unknown_token_id=3)


SPELL = ['def read(arch, factors=None):', 'é 🙂 x\u4e2d',
         '  two   three    four',
         'a\n\nb\n\n\nc', '1234 + 5', ' x', '', 'tab\there', '\x00']


def test_sentencepiece_as_its_own_library(spm, tmp_path):
  """Gemma's kind: spaces as they are, bytes for what has no token."""
  tok = tokenizer(tmp_path, add_space_prefix=False, **spm_fields(spm))
  assert tok.start == '<s>'
  # SentencePiece matches its longest token of spaces, of 4 here, first.
  lines = [line for line in pathlib.Path(__file__).read_text().splitlines()[::7]
           if ' ' * 5 not in line and '<' not in line]
  assert len(lines) > 30
  for text in SPELL + lines:
    assert tok.encode(text) == spm.encode(text), text
    assert tok.decode(tok.encode(text)) == text
  assert tok.encode('a<s>') == [*spm.encode('a'), 2]


def test_sentencepiece_with_a_space_in_front(spm, tmp_path):
  """Llama 2's kind, which is what a file without the field is."""
  tok = tokenizer(tmp_path, **spm_fields(spm), add_bos_token=False)
  assert tok.start == ''
  for text in SPELL[:2] + SPELL[4:5]:
    assert tok.encode(text) == spm.encode(' ' + text)
    assert tok.decode(tok.encode(text)) == text


@pytest.mark.parametrize('changes, said', [
    (dict(pre='tekken'), 'ggml.pre=tekken is not known, .* gpt-2, llama-bpe'),
    (dict(pre=None), 'ggml.pre=None is not known'),
    (dict(model='t5'), 'ggml.model=t5 is not supported'),
    (dict(merges=['a b', 'ab z']), 'do not fit together .* out of vocabulary'),
    (dict(merges=None), 'ggml.merges is missing'),
    (dict(eos_token_id=99), 'do not fit together'),
    (dict(eot_token_id=99), 'do not fit together .token 99 of 37'),
    (dict(token_type=[1, 1]), '37 tokens, 2 types'),
    (dict(model='llama', scores=[float(i) for i in range(37)],
          unknown_token_id=0), 'scores do not descend'),
])
def test_tokenisers_that_are_not_supported(changes, said, tmp_path):
  path = ggufs.model(tmp_path / 'm.gguf', 'qwen2', torch.float32, **{
      f'tokenizer__ggml__{name}': x for name, x in changes.items()})
  with pytest.raises(ValueError, match=said):
    hf.fetch(path)
  assert not [*(tmp_path / 'cache').rglob('*.json')]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  return ggufs.model(
      tmp_path_factory.mktemp('whole') / 'm.gguf', 'qwen2',
      torch.float32).read_bytes()


def split(data):
  """Returns a file with one more field, that it is one of three parts."""
  field = b'split.count'
  return (data[:16] + struct.pack('<Q', struct.unpack('<Q', data[16:24])[0] + 1)
          + struct.pack('<Q', len(field)) + field + struct.pack('<IH', 2, 3)
          + data[24:])


def unknown_kind(data):
  """Returns a file whose first tensor has type 77."""
  name = b'token_embd.weight'
  at = data.index(name) + len(name) + 4 + 16
  return data[:at] + struct.pack('<I', 77) + data[at + 4:]


@pytest.mark.parametrize('damage, said', [
    (lambda x: x[:-40], 'is cut off or damaged'),
    (lambda x: x[:700], 'is cut off or damaged'),
    (lambda x: x[:10], 'is cut off or damaged'),
    (lambda x: b'', 'does not begin with the letters GGUF'),
    (lambda x: b'GGML' + x[4:], 'does not begin with the letters GGUF'),
    (lambda x: x[:4] + x[7:3:-1] + x[8:], 'is for big-endian machines'),
    (lambda x: x[:4] + b'\x01' + x[5:], 'version 1 of the format'),
    (lambda x: x[:8] + b'\xff' * 8 + x[16:], 'is cut off or damaged'),
    (lambda x: x[:16] + b'\xff' * 8 + x[24:], 'is'),
    (split, 'one of 3 parts .* llama-gguf-split --merge'),
    (unknown_kind, 'tensor token_embd.weight has quantisation 77'),
    (lambda x: x.replace(b'output_norm.weight', b'output_morn.weight'),
     'lacks the tensor model.norm.weight'),
    (lambda x: x.replace(b'attn_q.bias', b'attn_q.xxxx'), 'lacks the tensor'),
    (lambda x: x.replace(b'token_embd', b'taken_embd'),
     'lacks the tensor token_embd.weight'),
])
def test_damaged_files_are_one_sentence(damage, said, whole, tmp_path):
  path = tmp_path / 'm.gguf'
  path.write_bytes(damage(whole))
  with pytest.raises(ValueError, match=said) as failed:
    hf.open_checkpoint(hf.fetch(path))
  assert '\n' not in str(failed.value)


def test_random_damage_is_one_sentence_or_none(whole, tmp_path):
  """Neither another error nor a loop over a wrong count."""
  random, path, refused = np.random.default_rng(0), tmp_path / 'm.gguf', 0
  for _ in range(300):
    data = bytearray(whole)
    for at in random.integers(0, 2600, 3):
      data[at] = random.integers(256)
    path.write_bytes(data)
    try:
      found = header_lib.read(path)
      metadata.config(found)
      tokens.files(found)
    except ValueError:
      refused += 1
  assert refused > 100


def test_files_that_are_not_there(tmp_path):
  with pytest.raises(ValueError, match='no.gguf: there is no'):
    hf.fetch(tmp_path / 'no.gguf')
  (tmp_path / 'folder.gguf').mkdir()
  with pytest.raises(ValueError, match='cannot be read .Is a directory'):
    hf.fetch(tmp_path / 'folder.gguf')


def test_the_package_is_an_extra(whole, tmp_path, monkeypatch):
  (tmp_path / 'm.gguf').write_bytes(whole)
  own = builtins.__import__

  def without(name, *args, **options):
    if name == 'gguf':
      raise ImportError(name)
    return own(name, *args, **options)

  monkeypatch.setattr(builtins, '__import__', without)
  with pytest.raises(
      ValueError, match=r"pip install 'jaxrl_llm\[gguf\]'"):
    hf.fetch(tmp_path / 'm.gguf')


def test_a_file_is_unpacked_once(whole, tmp_path, monkeypatch, cache):
  path = tmp_path / 'm.gguf'
  path.write_bytes(whole)
  first, own = hf.fetch(str(path)), header_lib.read
  begun = hf.digest(first)
  with monkeypatch.context() as patch:
    patch.setattr(header_lib, 'read', None)
    assert hf.fetch(path) == first
  # Another place, the same model; another content, another one.
  (tmp_path / 'sha256-0').write_bytes(whole)  # as Ollama's
  other = hf.fetch(tmp_path / 'sha256-0')
  assert other != first and hf.digest(other) == begun
  path.write_bytes(whole[:-200] + b'\1' + whole[-199:])
  changed = hf.fetch(path)
  assert changed != first and hf.digest(changed) != begun
  assert {x.name for x in first.iterdir()} == {
      'config.json', 'tokenizer.json', 'tokenizer_config.json',
      'generation_config.json', 'model.gguf'}
  assert {x.name for x in hf.companions(first)} == {
      'tokenizer.json', 'tokenizer_config.json', 'generation_config.json'}
  assert sorted(cache.iterdir()) == sorted({first, other, changed})
  assert header_lib.read is own


def test_a_folder_for_caches_that_cannot_be_written(
    whole, tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'm.gguf').write_bytes(whole)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  folder = hf.fetch(tmp_path / 'm.gguf')
  assert hf.fetch(tmp_path / 'm.gguf') == folder
  assert hf.open_checkpoint(folder).config.layers == 3
  assert folder.parent == folder_lib._temporary()


def own_tokens(tmp_path):
  """Returns a tokeniser of 35 tokens."""
  return ModelTokenizer(hf.fetch(ggufs.model(
      tmp_path / 'tokens.gguf', 'qwen2', torch.float32)))


@pytest.mark.parametrize('name', ggufs.NAMES)
@pytest.mark.parametrize('dtype', ('float32', 'bfloat16', 'float16'))
def test_written_and_read(name, dtype, tmp_path):
  """Weights to the bit, config and tokeniser; in the names of the package."""
  cfg = dataclasses.replace(config_of(name), dtype=dtype)
  params = jax.tree.map(
      lambda x: jnp.asarray(x.astype(jnp.bfloat16).astype(dtype), jnp.float32),
      families.pair(name)[1])
  raw = hf_config.to_hf(cfg, {'max_position_embeddings': 512})
  theirs = own_tokens(tmp_path)
  fields = write.fields(
      raw, theirs.own, theirs.stop_ids, hf_config.from_hf)
  path = tmp_path / 'out.gguf'
  write.save(path, raw, fields, hf.stored_shapes(cfg), hf.tensors(params, cfg))
  back = hf.fetch(path)
  assert hf_config.read_config(back) == cfg
  assert same(load(hf.open_checkpoint(back)), params)
  ours = ModelTokenizer(back)
  assert ours.own.get_vocab() == theirs.own.get_vocab()
  assert (ours.stop_ids, ours.start) == ((1, 2), '')
  # As llama.cpp's converter would write it.
  wanted = ggufs.fields_of(name)[1]
  assert {key: fields[key] for key in wanted if key in fields} == {
      key: [True, True, False] if key.endswith('window_pattern') else value
      for key, value in wanted.items()}
  assert wanted.keys() <= fields.keys()
  if dtype == 'bfloat16':
    reader = gguf.GGUFReader(path)
    want = ggufs.tensors_of(name, torch.bfloat16)
    assert {t.name for t in reader.tensors} == want.keys()
    for t in reader.tensors:
      assert t.tensor_type == (BF16 if want[t.name].ndim > 1 else F32)
      np.testing.assert_allclose(
          gguf.dequantize(t.data, t.tensor_type), want[t.name],
          rtol=1e-6 if t.name == tensors.ROPE else 0)


def test_what_a_file_cannot_say():
  cfg = families.family('gemma2')[0]
  with pytest.raises(ValueError, match='cannot say query_scale=0.37'):
    write.fields(hf_config.to_hf(cfg), None, (1,), hf_config.from_hf)


def test_tokenisers_are_written_and_read(spm, tmp_path):
  """Those of each kind come back with the same ids."""
  cases = {'spm': dict(add_space_prefix=False, **spm_fields(spm)),
           'prefix': spm_fields(spm)}
  for pre in 'gpt-2', 'smollm', 'qwen2', 'llama-bpe':
    cases[pre] = dict(
        tokens=PIECES, model='gpt2', pre=pre, merges=MERGES, eos_token_id=0,
        bos_token_id=22, token_type=TYPES)
  for name, fields in cases.items():
    first = tokenizer(tmp_path, **fields)
    size = len(fields['tokens'])
    again = tokens.fields(first.own, size + 3, first.stop_ids)
    assert again['tokenizer.ggml.tokens'][size:] == [
        f'[PAD{i}]' for i in range(size, size + 3)]
    second = tokenizer(tmp_path, **{
        key.removeprefix('tokenizer.ggml.'): x for key, x in again.items()})
    assert first.folder != second.folder and first.start == second.start
    assert first.vocab_size == second.vocab_size
    for text in TEXTS + SPELL:
      assert first.encode(text) == second.encode(text), (name, text)


@pytest.mark.parametrize('made', [
    tokenizers.models.WordLevel({'a': 0, '</s>': 1}),
    tokenizers.models.BPE({'a': 0, '</s>': 1, 'aa': 2}, [('a', 'a')])])
def test_a_tokeniser_without_a_name_is_not_written(made):
  made = tokenizers.Tokenizer(made)
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  own = transformers.PreTrainedTokenizerFast(
      tokenizer_object=made, eos_token='</s>')
  with pytest.raises(ValueError, match='no name for: export with --format=saf'):
    tokens.fields(own, 3, (1,))


def test_a_template_and_three_stops_are_written(tmp_path, caplog):
  own = own_tokens(tmp_path).own
  own.chat_template = '{{ messages }}'
  found = tokens.fields(own, 37, (1, 2, 3, 4))
  assert found['tokenizer.chat_template'] == '{{ messages }}'
  assert [found[f'tokenizer.ggml.{name}_token_id']
          for name in ('eos', 'eot', 'eom')] == [1, 2, 3]
  assert "['b'] are left out" in caplog.text
