"""Tests of presets against published sizes, and of wrong model configs."""

import jax
import pytest

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS, RopeScaling

# Parameters of the published checkpoints, tied unembedding counted once, as
# their model cards give them.
_PUBLISHED = {
    'qwen2.5-0.5b': 494_032_768,
    'qwen2.5-1.5b': 1_543_714_304,
    'qwen2.5-3b': 3_085_938_688,
    'qwen2.5-math-1.5b': 1_543_714_304,
    'qwen2.5-math-7b': 7_615_616_512,
    'qwen3-1.7b': 1_720_574_976,
    'qwen3-4b': 4_022_468_096,
    'qwen3-8b': 8_190_735_360,
    'qwen3-30b-a3b': 30_532_122_624,
    'llama3.1-8b': 8_030_261_248,
    'gemma2-2b': 2_614_341_888,
    'gemma2-9b': 9_241_705_984,
    'gemma3-270m': 268_098_176,
    'gemma3-1b': 999_885_952,
    'gemma3-4b': 3_880_263_168,  # without the part for images
}


@pytest.mark.parametrize('name', sorted(PRESETS))
def test_parameter_count(name):
  cfg = PRESETS[name]
  tree = jax.eval_shape(lambda k: transformer.init(k, cfg), jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(tree)) == cfg.parameter_count()
  if name != 'tiny':
    assert cfg.parameter_count() == _PUBLISHED[name]


def test_layer_windows_alternate_from_the_first():
  windows = PRESETS['gemma2-2b'].layer_windows()
  assert len(windows) == 26
  assert set(windows[::2]) == {4096} and min(windows[1::2]) > 10**6
  assert min(PRESETS['qwen3-4b'].layer_windows()) > 10**6


def test_gemma3_has_five_windows_for_each_full_layer():
  windows = PRESETS['gemma3-4b'].layer_windows()
  assert len(windows) == 34
  assert [i for i, window in enumerate(windows) if window != 1024] == [
      5, 11, 17, 23, 29]
  assert min(windows[5::6]) > 10**6


@pytest.mark.parametrize('change, message', [
    (dict(kv_heads=3), 'kv_heads=3 does not divide heads=4'),
    (dict(head_dim=7), 'head_dim=7 is odd'),
    (dict(activation='relu'), "activation='relu' is not known"),
    (dict(kv_heads=0), 'kv_heads=0 is not usable: give a whole number from 1'),
    (dict(width=-8), 'width=-8 is not usable'),
    (dict(mlp_width=8.0), 'mlp_width=8.0 is not usable'),
    (dict(vocab_size=2 ** 31), 'vocab_size=2147483648 is not usable'),
    (dict(layers=10_001), 'layers=10001 are too many: use at most 10000'),
    (dict(heads=True), 'heads=True is not usable'),
    (dict(window=0), 'window=0 is not usable'),
    (dict(window=4, full_every=1), 'full_every=1 leaves no layer with a win'),
    (dict(window_rope_theta=1e4), 'window_rope_theta=10000.0 is of layers wit'),
    (dict(rope_divisor=0.0), 'rope_divisor=0.0 is not usable'),
    (dict(logit_softcap=0.0), 'logit_softcap=0.0 is not usable: give a pos'),
    (dict(attention_softcap=-1.0), 'attention_softcap=-1.0 is not usable'),
    (dict(norm_eps=1e-300), 'norm_eps=1e-300 is not usable'),
    (dict(query_scale=float('inf')), 'query_scale=inf is not usable'),
    (dict(rope_theta=float('nan')), 'rope_theta=nan is not usable'),
    (dict(rope_theta='7'), "rope_theta='7' is not usable"),
    (dict(expert_width=8), 'expert_width=8 is of layers with experts, and th'),
    (dict(dense_layers=(0,)), r'dense_layers=\(0,\) is of layers with exper'),
    (dict(experts=4, expert_width=8), 'experts=4 needs experts_per_token'),
    (dict(experts=4, experts_per_token=2), 'experts=4 needs expert_width'),
    (dict(experts=4, experts_per_token=5, expert_width=8),
     'experts_per_token=5 is above experts=4'),
    (dict(experts=4, experts_per_token=2, expert_width=8, dense_layers=(1,)),
     r'dense_layers=\(1,\) names 1, which is no layer: give numbers from 0'),
    (dict(experts=4, experts_per_token=2, expert_width=8, sparse_step=2),
     'sparse_step=2 leave no layer with experts'),
])
def test_bad_config(change, message):
  sizes = dict(vocab_size=8, width=8, layers=1, heads=4, kv_heads=2,
               head_dim=8, mlp_width=8)
  with pytest.raises(ValueError, match=message):
    ModelConfig(**{**sizes, **change})


@pytest.mark.parametrize('numbers, message', [
    ((8.0, 4.0, 1.0, 8192), 'high_freq_factor=1.0 is not above low_freq_fac'),
    ((8.0, 4.0, 4.0, 8192), 'high_freq_factor=4.0 is not above low_freq_fac'),
    ((0.0, 1.0, 4.0, 8192), 'factor=0.0 is not usable'),
    ((8.0, 0.0, 4.0, 8192), 'low_freq_factor=0.0 is not usable'),
    ((8.0, 1.0, 4.0, 0.5), 'original_length=0.5 is not usable'),
])
def test_bad_scaling(numbers, message):
  with pytest.raises(ValueError, match=message):
    RopeScaling(*numbers)
