"""Tests of config.json in the formats of transformers 4 and 5, both ways."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import transformers

from jaxrl_llm.models import hf_config, transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS, RopeScaling
from tests.helpers import families
from tests.helpers.tolerance import decoder, typical


def _raw(kind, name, sizes, **fields):
  """Returns the fields as transformers 4 writes them."""
  layers, width, mlp_width, heads, kv_heads = sizes
  return dict(
      architectures=[f'{name}ForCausalLM'], attention_dropout=0.0,
      initializer_range=0.02, model_type=kind, num_hidden_layers=layers,
      hidden_size=width, intermediate_size=mlp_width,
      num_attention_heads=heads, num_key_value_heads=kv_heads,
      transformers_version='4.40.1', use_cache=True, **fields)


def _qwen(kind, name, sizes, tied=True, vocab_size=151936, **fields):
  return _raw(
      kind, name, sizes, bos_token_id=151643, eos_token_id=151643,
      hidden_act='silu', max_position_embeddings=32768,
      max_window_layers=sizes[0], rms_norm_eps=1e-6, tie_word_embeddings=tied,
      torch_dtype='bfloat16', use_sliding_window=False, vocab_size=vocab_size,
      **fields)


def _qwen2(*sizes, rope_theta=1000000.0, **fields):
  return _qwen('qwen2', 'Qwen2', sizes, rope_theta=rope_theta,
               sliding_window=32768, use_mrope=False, **fields)


def _qwen3(*sizes, **fields):
  return _qwen('qwen3', 'Qwen3', sizes, attention_bias=False, head_dim=128,
               rope_theta=1000000, rope_scaling=None, sliding_window=None,
               **fields)


def _qwen3_moe(*sizes):
  return _qwen(
      'qwen3_moe', 'Qwen3Moe', sizes, tied=False, attention_bias=False,
      head_dim=128, rope_theta=1000000.0, rope_scaling=None,
      sliding_window=None, decoder_sparse_step=1, mlp_only_layers=[],
      moe_intermediate_size=768, norm_topk_prob=True, num_experts=128,
      num_experts_per_tok=8,
      output_router_logits=False, router_aux_loss_coef=0.001)


def _llama(*sizes, factor, **fields):
  return _raw(
      'llama', 'Llama', sizes, attention_bias=False, bos_token_id=128000,
      eos_token_id=128001, hidden_act='silu', max_position_embeddings=131072,
      mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-5, rope_scaling=dict(
          factor=factor, high_freq_factor=4.0, low_freq_factor=1.0,
          original_max_position_embeddings=8192, rope_type='llama3'),
      rope_theta=500000.0, torch_dtype='bfloat16', vocab_size=128256, **fields)


def _gemma2(*sizes, **fields):
  return _raw(
      'gemma2', 'Gemma2', sizes, attention_bias=False,
      attn_logit_softcapping=50.0, bos_token_id=2, cache_implementation=
      'hybrid', eos_token_id=1, final_logit_softcapping=30.0, head_dim=256,
      hidden_act='gelu_pytorch_tanh', hidden_activation='gelu_pytorch_tanh',
      max_position_embeddings=8192, pad_token_id=0, query_pre_attn_scalar=256,
      rms_norm_eps=1e-6, rope_theta=10000.0, sliding_window=4096,
      torch_dtype='float32', vocab_size=256000, **fields)


def _gemma3(*sizes, **fields):
  return _raw(
      'gemma3_text', 'Gemma3', sizes, attention_bias=False,
      attn_logit_softcapping=None, bos_token_id=2, cache_implementation=
      'hybrid', eos_token_id=[1, 106], final_logit_softcapping=None,
      head_dim=256, hidden_activation='gelu_pytorch_tanh',
      max_position_embeddings=32768, pad_token_id=0, query_pre_attn_scalar=256,
      rms_norm_eps=1e-6, rope_local_base_freq=10000, rope_scaling=None,
      rope_theta=1000000, sliding_window=512, sliding_window_pattern=6,
      torch_dtype='bfloat16', vocab_size=262144, **fields)


# The model of texts and images, as published: other fields of the text's part
# are transformers' defaults.
_GEMMA3_4B = dict(
    architectures=['Gemma3ForConditionalGeneration'], boi_token_index=255999,
    eoi_token_index=256000, eos_token_id=[1, 106], image_token_index=262144,
    initializer_range=0.02, mm_tokens_per_image=256, model_type='gemma3',
    text_config=dict(
        hidden_size=2560, intermediate_size=10240, model_type='gemma3_text',
        num_hidden_layers=34, rope_scaling=dict(
            factor=8.0, rope_type='linear'), sliding_window=1024),
    torch_dtype='bfloat16', transformers_version='4.50.0.dev0',
    vision_config=dict(
        hidden_size=1152, image_size=896, intermediate_size=4304,
        model_type='siglip_vision_model', num_attention_heads=16,
        num_hidden_layers=27, patch_size=14, vision_use_head=False))

_PUBLISHED = {
    'qwen2.5-0.5b': _qwen2(24, 896, 4864, 14, 2),
    'qwen2.5-1.5b': _qwen2(28, 1536, 8960, 12, 2),
    'qwen2.5-3b': _qwen2(36, 2048, 11008, 16, 2),
    'qwen2.5-math-1.5b': _qwen2(28, 1536, 8960, 12, 2, rope_theta=10000),
    'qwen2.5-math-7b': _qwen2(
        28, 3584, 18944, 28, 4, rope_theta=10000, tied=False,
        vocab_size=152064),
    'qwen3-1.7b': _qwen3(28, 2048, 6144, 16, 8),
    'qwen3-4b': _qwen3(36, 2560, 9728, 32, 8),
    'qwen3-8b': _qwen3(36, 4096, 12288, 32, 8, tied=False),
    'qwen3-30b-a3b': _qwen3_moe(48, 2048, 6144, 32, 4),
    'llama3.1-8b': _llama(
        32, 4096, 14336, 32, 8, factor=8.0, tie_word_embeddings=False),
    'llama3.2-1b': _llama(
        16, 2048, 8192, 32, 8, factor=32.0, head_dim=64,
        tie_word_embeddings=True),
    'gemma2-2b': _gemma2(26, 2304, 9216, 8, 4),
    'gemma2-9b': _gemma2(42, 3584, 14336, 16, 8, sliding_window_size=4096),
    'gemma3-270m': _gemma3(18, 640, 2048, 4, 1),
    'gemma3-1b': _gemma3(26, 1152, 6912, 4, 1),
}
_OURS = {
    **PRESETS,
    'llama3.2-1b': ModelConfig(
        vocab_size=128_256, width=2048, layers=16, heads=32, kv_heads=8,
        head_dim=64, mlp_width=8192, rope_theta=500_000.0, norm_eps=1e-5,
        rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192))}


def _version_5(raw):
  """Converts the fields to the format of transformers 5."""
  raw = dict(raw, dtype=raw['torch_dtype'], transformers_version='5.0.0')
  scaling = raw.pop('rope_scaling', None) or {'rope_type': 'default'}
  raw['rope_parameters'] = {**scaling, 'rope_theta': raw.pop('rope_theta')}
  del raw['torch_dtype']
  if 'num_experts' in raw:
    raw['num_local_experts'] = raw.pop('num_experts')
  if raw['model_type'] == 'gemma3_text':
    raw['rope_parameters'] = dict(
        full_attention=raw['rope_parameters'], sliding_attention=dict(
            rope_type='default', rope_theta=raw.pop('rope_local_base_freq')))
    raw['layer_types'] = [
        'sliding_attention' if (i + 1) % raw['sliding_window_pattern'] else
        'full_attention' for i in range(raw['num_hidden_layers'])]
  elif raw['model_type'] != 'llama':
    kinds = ['full_attention'] * 2
    if raw['model_type'] == 'gemma2':
      kinds[0] = 'sliding_attention'
    raw['layer_types'] = kinds * (raw['num_hidden_layers'] // 2)
  return raw


@pytest.mark.parametrize('version', (lambda raw: raw, _version_5))
@pytest.mark.parametrize('name', _PUBLISHED)
def test_published_configs_are_our_presets_and_go_back(name, version):
  raw = version(_PUBLISHED[name])
  given = copy.deepcopy(raw)
  cfg = hf_config.from_hf(raw)
  assert cfg == dataclasses.replace(
      _OURS[name], dtype=_PUBLISHED[name]['torch_dtype'])
  for source in (raw, None):
    back = hf_config.to_hf(cfg, source)
    # What version 4 reads, and what version 5 does.
    assert back['rope_theta'] == cfg.rope_theta
    assert back['rope_scaling'] == _PUBLISHED[name].get('rope_scaling')
    assert back['rope_parameters'] == _version_5(
        _PUBLISHED[name])['rope_parameters']
    assert back['torch_dtype'] == back['dtype'] == cfg.dtype
    assert hf_config.from_hf(json.loads(json.dumps(back))) == cfg
    assert not source or {k: back[k] for k in raw} == raw
  assert raw == given  # nothing was completed in place


@pytest.mark.parametrize('name', families.NAMES)
def test_transformers_reads_what_we_write(name, tmp_path):
  """Every field that its models look at, as in its own config."""
  cfg, _, want = families.family(name)
  (tmp_path / 'config.json').write_text(json.dumps(hf_config.to_hf(cfg)))
  got = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
  want = want.to_dict()
  for field in ('max_position_embeddings', 'dtype', 'architectures',
                'pad_token_id', 'transformers_version', '_name_or_path'):
    got.pop(field, None), want.pop(field, None)
  assert {k: got.get(k) for k in want} == want


@pytest.mark.parametrize('changes, message', [
    (dict(model_type='mistral'), 'model_type=mistral is not supported; choose'),
    (dict(model_type=None), 'model_type=None is not supported'),
    (dict(model_type=['llama']), r"model_type=\['llama'\] is not supported"),
    (dict(architectures=['Qwen3ForTokenClassification']),
     r"architectures=\['Qwen3ForTokenClassification'\] \(not Qwen3ForCau"),
    (dict(quantization_config=dict(quant_method='gptq', bits=4)),
     'quantization_config is not supported'),
    (dict(rope_scaling=dict(rope_type='yarn', factor=4.0,
                            original_max_position_embeddings=32768)),
     'rope_type=yarn is not supported'),
    (dict(rope_parameters=dict(rope_type='dynamic', factor=2.0)),
     'rope_type=dynamic'),
    (dict(rope_parameters=dict(full_attention=dict(
        rope_type='default', rope_theta=1e6))), 'rope_parameters for each '),
    (dict(rope_scaling=dict(rope_type='llama3', factor=8.0)), 'is not valid'),
    (dict(partial_rotary_factor=0.5), 'partial_rotary_factor=0.5'),
    (dict(hidden_act='relu'), 'hidden activation relu'),
    (dict(attention_bias=True), 'attention_bias=true'),
    (dict(model_type='llama', architectures=None, mlp_bias=True), 'mlp_bias'),
    (dict(use_sliding_window=True, sliding_window=128, max_window_layers=26),
     r'sliding windows in layers \[26, 27\]'),
    (dict(torch_dtype='float64'), 'weights stored in float64 .* bfloat16, fl'),
    (dict(num_key_value_heads=5), r'is not valid \(kv_heads=5 does not divide'),
    (dict(head_dim=7), 'is not valid .*head_dim'),
    (dict(num_hidden_layers=0), 'is not valid .*positive.*fetch it again'),
    (dict(num_attention_heads=0), 'is not valid'),
    (dict(hidden_size='wide'), 'is not valid .*hidden_size'),
    (dict(rope_theta=None), 'is not valid'),
    (dict(rope_theta='7'), "is not valid .*rope_theta='7'"),
    (dict(rope_theta=-1.0), r'is not valid .*rope_theta=-1\.0'),
    (dict(rms_norm_eps=float('nan')), 'is not valid .*norm_eps=nan'),
    (dict(head_dim=0), 'is not valid .*head_dim=0'),
    (dict(num_key_value_heads=0), 'is not valid .*positive'),
    (dict(num_hidden_layers=2 ** 40), 'is not valid .*num_hidden_layers=1'),
    (dict(rope_scaling=dict(
        rope_type='llama3', factor=8.0, low_freq_factor=4.0,
        high_freq_factor=1.0, original_max_position_embeddings=8192)),
     r'is not valid .*high_freq_factor=1\.0 is not above low_freq_factor=4'),
], ids=str)
def test_features_that_we_lack_are_named(changes, message, tmp_path):
  raw = {**_PUBLISHED['qwen3-1.7b'], **changes}
  (tmp_path / 'config.json').write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=message) as error:
    hf_config.read_config(tmp_path)
  assert str(error.value).startswith(str(tmp_path / 'config.json'))
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('changes, message', [
    (dict(use_bidirectional_attention=True), 'use_bidirectional_attention'),
    (dict(layer_types=['full_attention', 'sliding_attention'] * 13),
     'sliding windows in layers'),
    (dict(layer_types=['chunked_attention', 'full_attention'] * 13),
     'layer_types=.*chunked_attention'),
    (dict(query_pre_attn_scalar=0), 'query_pre_attn_scalar=0 must be pos'),
    (dict(query_pre_attn_scalar=-4), 'query_pre_attn_scalar=-4 must be pos'),
    (dict(attn_logit_softcapping=0.0), 'attn_logit_softcapping=0.0 must be'),
    (dict(final_logit_softcapping=-1.0), 'final_logit_softcapping=-1.0 must'),
    (dict(sliding_window=0), 'sliding_window=0 must be positive'),
    (dict(sliding_window=None), 'sliding_window=null, but layers have'),
])
def test_features_of_gemma_that_we_lack(changes, message):
  with pytest.raises(ValueError, match=message):
    hf_config.from_hf({**_PUBLISHED['gemma2-2b'], **changes})


@pytest.mark.parametrize('changes, message', [
    (dict(use_sliding_window=True), 'use_sliding_window=true'),
    (dict(num_experts=0), 'is not valid .*experts=0 is not usable'),
    (dict(num_experts_per_tok=129), 'is not valid .*=129 is above experts=128'),
    (dict(mlp_only_layers=[48]), 'is not valid .* names 48'),
    (dict(decoder_sparse_step=49), 'is not valid .* leave no layer with exp'),
])
def test_features_of_experts_that_we_lack(changes, message):
  with pytest.raises(ValueError, match=message):
    hf_config.from_hf({**_PUBLISHED['qwen3-30b-a3b'], **changes})


@pytest.mark.parametrize('name', ('gemma2-2b', 'gemma3-1b'))
def test_gemma_without_windows(name):
  raw = {**_PUBLISHED[name], 'layer_types': ['full_attention'] * 26}
  cfg = hf_config.from_hf(raw)
  assert cfg.window is cfg.window_rope_theta is None
  assert hf_config.from_hf(hf_config.to_hf(cfg)) == cfg


@pytest.mark.parametrize('every, layers', [(2, 7), (4, 9), (5, 3), (26, 26)])
def test_gemma3_with_other_patterns(every, layers):
  raw = {**_PUBLISHED['gemma3-1b'], 'num_hidden_layers': layers,
         'sliding_window_pattern': every}
  cfg = hf_config.from_hf(raw)
  assert [window == 512 for window in cfg.layer_windows()] == [
      i % every != every - 1 for i in range(layers)]
  assert hf_config.from_hf(hf_config.to_hf(cfg)) == cfg


def test_the_text_part_of_a_model_of_texts_and_images(tmp_path):
  path = tmp_path / 'config.json'
  for raw in _GEMMA3_4B, transformers.AutoConfig.for_model(
      **copy.deepcopy(_GEMMA3_4B)).to_dict():
    path.write_text(json.dumps(raw))
    assert hf_config.read_config(tmp_path) == dataclasses.replace(
        PRESETS['gemma3-4b'], dtype='bfloat16')
  back = hf_config.to_hf(PRESETS['gemma3-4b'], hf_config.read(tmp_path))
  assert back['model_type'] == 'gemma3_text'
  assert back['architectures'] == ['Gemma3ForCausalLM']
  assert back['rope_scaling'] == dict(rope_type='linear', factor=8.0)
  assert hf_config.from_hf(back) == PRESETS['gemma3-4b']


@pytest.mark.parametrize('changes, message', [
    (dict(text_config=3), 'cannot be read'),
    (dict(architectures=['Gemma3ForSequenceClassification']),
     r"architectures=\['Gemma3ForSequenceClassification'\] \(not Gemma3ForCau"),
    (dict(quantization_config=dict(quant_method='awq')), 'quantization_con'),
    (dict(text_config=dict(rope_parameters=dict(sliding_attention=dict(
        rope_type='linear', factor=2.0, rope_theta=1e4)))),
     'rope_type=linear is not supported'),
    (dict(text_config=dict(hidden_activation='relu')), 'activation relu'),
])
def test_features_of_gemma3_that_we_lack(changes, message, tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps({**_GEMMA3_4B, **changes}))
  with pytest.raises(ValueError, match=message) as error:
    hf_config.read_config(tmp_path)
  assert str(error.value).startswith(str(tmp_path / 'config.json'))


def test_linear_scaling_is_read_and_written():
  raw = {**_PUBLISHED['qwen3-1.7b'],
         'rope_scaling': dict(type='linear', factor=2)}
  cfg = hf_config.from_hf(raw)
  assert cfg.rope_divisor == 2 and cfg.rope_scaling is None
  assert hf_config.from_hf(hf_config.to_hf(cfg)) == cfg


@pytest.mark.parametrize('name, strays', [
    ('qwen2', dict(hidden_activation='gelu_pytorch_tanh', attention_bias=True,
                   mlp_bias=True, query_pre_attn_scalar=0)),
    ('qwen3', dict(hidden_activation='gelu_pytorch_tanh', mlp_bias=True,
                   final_logit_softcapping=0.0)),
    ('llama3', dict(hidden_activation='gelu_pytorch_tanh', qk_norm=True)),
    ('gemma2', dict(hidden_act='silu', attn_logit_softcapping=None,
                    mlp_bias=True)),
    # A cap of the logits it reads, one of the attention it does not.
    ('gemma3', dict(hidden_act='silu', mlp_bias=True, final_logit_softcapping=
                    3.0, attn_logit_softcapping=2.0)),
])
def test_fields_of_other_families_change_nothing(name, strays):
  """Logits of transformers' model with the same config and weights."""
  _, params, model = families.pair(name)
  raw = {**model.config.to_dict(), **strays}
  cfg = hf_config.from_hf(raw)
  theirs = type(model)(type(model.config)(**raw, attn_implementation='eager'))
  theirs.load_state_dict(model.state_dict())
  rows = families.tokens()
  hidden, _ = transformer.forward(params, rows, cfg=cfg)
  got = transformer.logits(params, hidden, cfg)
  want = families.torch_logits(theirs.eval(), rows)
  # Logits can be sums of terms of their size; other activations differ by 35%.
  np.testing.assert_allclose(got, want, atol=typical(
      decoder(cfg, rows.shape[1]), magnitude=np.abs(want).max()))


def test_the_type_may_be_unsaid():
  raw = dict(_PUBLISHED['gemma2-2b'])
  del raw['torch_dtype']
  assert hf_config.from_hf(raw).dtype == 'float32'


@pytest.mark.parametrize('text, message', [
    (None, 'has no config.json: it is not the folder of a Hugging Face model'),
    (b'{"model_type": "qwen3",', 'cannot be read .*: fetch it again'),
    (b'["qwen3"]', 'cannot be read'), (b'', 'cannot be read'),
    (b'\xff\xfe', 'cannot be read')])
def test_broken_files_are_named(text, message, tmp_path):
  if text is not None:
    (tmp_path / 'config.json').write_bytes(text)
  with pytest.raises(ValueError, match=message) as error:
    hf_config.read_config(tmp_path)
  assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize('name, changes, lost', [
    ('qwen2', dict(qk_norm=True), 'qwen2 .* qk_norm=True'),
    ('qwen3', dict(window=13), 'qwen3 .* window=13'),
    ('qwen3_moe', dict(qkv_bias=True), 'qwen3_moe .* qkv_bias=True'),
    ('qwen3', dict(query_scale=0.3), r'qwen3 .* query_scale=0\.3'),
    ('qwen3', dict(logit_softcap=30.0), 'logit_softcap=30.0'),
    ('llama3', dict(scale_embeddings=True), 'llama .* scale_embeddings=True'),
    ('llama3', dict(post_norms=True), 'llama .* post_norms=True'),
    ('gemma2', dict(post_norms=False), 'gemma2 .* post_norms=False'),
    ('gemma2', dict(query_scale=7.5 ** -0.5), 'gemma2 .* query_scale'),
    ('gemma2', dict(qkv_bias=True), 'gemma2 .* qkv_bias=True'),
    ('qwen3', dict(window=13, window_rope_theta=7.0), 'window_rope_theta=7'),
    ('gemma3', dict(qk_norm=False), 'gemma2 .* rope_divisor|window_rope'),
    ('gemma3', dict(attention_softcap=2.0), 'attention_softcap=2.0'),
    ('gemma3', dict(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32)),
     'gemma3_text .* rope_divisor=8.0'),
])
def test_mixtures_that_no_family_has(name, changes, lost):
  cfg = dataclasses.replace(families.family(name)[0], **changes)
  with pytest.raises(ValueError, match=lost):
    hf_config.to_hf(cfg)
