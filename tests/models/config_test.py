"""Tests of presets against published sizes, and of wrong model configs."""

import jax
import pytest

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS

# Parameters of the published checkpoints, tied unembedding counted once, as
# their model cards give them.
_PUBLISHED = {
    'qwen2.5-1.5b': 1_543_714_304,
    'qwen2.5-3b': 3_085_938_688,
    'qwen3-1.7b': 1_720_574_976,
    'qwen3-4b': 4_022_468_096,
    'qwen3-8b': 8_190_735_360,
    'llama3.1-8b': 8_030_261_248,
    'gemma2-2b': 2_614_341_888,
    'gemma2-9b': 9_241_705_984,
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


@pytest.mark.parametrize('change, message', [
    (dict(kv_heads=3), 'kv_heads=3 does not divide heads=4'),
    (dict(head_dim=7), 'head_dim=7 is odd'),
    (dict(activation='relu'), "activation='relu' is not known"),
])
def test_bad_config(change, message):
  sizes = dict(vocab_size=8, width=8, layers=1, heads=4, kv_heads=2,
               head_dim=8, mlp_width=8)
  with pytest.raises(ValueError, match=message):
    ModelConfig(**{**sizes, **change})
