"""Conversion between Hugging Face's config.json and ModelConfig.

In both directions, a feature that the other side lacks is an error; no feature
is ignored.
"""

import copy
import json
import pathlib
from typing import Any, Iterator, Mapping

import numpy as np

from jaxrl_llm.models.config import MAX_LAYERS, ModelConfig, RopeScaling

FAMILIES = {
    'qwen2': 'Qwen2ForCausalLM', 'qwen3': 'Qwen3ForCausalLM',
    'llama': 'LlamaForCausalLM', 'gemma2': 'Gemma2ForCausalLM'}
STORED = ('float32', 'bfloat16')  # supported types of stored weights

_ACTIVATIONS = {'silu': 'silu', 'gelu_pytorch_tanh': 'gelu_tanh'}


def read_config(folder: pathlib.Path) -> ModelConfig:
  """Reads the model config from a folder's config.json.

  Raises:
    ValueError: the file is missing or damaged, or it has a feature that our
      decoder lacks.
  """
  path = folder / 'config.json'
  try:
    raw = json.loads(path.read_text())
    kind = raw.get('model_type')
  except FileNotFoundError:
    raise ValueError(
        f'{folder} has no config.json: it is not the folder of a Hugging Face '
        'model.') from None
  except (OSError, AttributeError, ValueError) as error:
    raise ValueError(
        f'{path} cannot be read ({error}): fetch it again.') from None
  if kind not in [*FAMILIES]:
    raise ValueError(
        f'{path}: model_type={kind} is not supported; choose a model of type '
        f'{", ".join(FAMILIES)}.')
  return from_hf(raw, str(path))


def from_hf(raw: Mapping[str, Any], where: str = 'config.json') -> ModelConfig:
  """Converts the contents of a config.json to a ModelConfig.

  Args:
    raw: fields of the file, as written by any version of transformers.
    where: name of the file in error messages.

  Returns:
    The model; its `dtype` is the type of the stored weights.

  Raises:
    ValueError: a field is not valid, or our decoder lacks a feature; the
      message names the first one.
  """
  import transformers

  def invalid(error):
    reason = ' '.join(str(error).split()).rstrip('.')
    return ValueError(f'{where} is not valid ({reason}): fetch it again.')

  try:
    layers = raw.get('num_hidden_layers', 1)
    if isinstance(layers, int) and layers > MAX_LAYERS:
      # transformers would make a list of the types of all layers.
      raise ValueError(f'num_hidden_layers={layers} is above {MAX_LAYERS}')
    # A copy, because transformers modifies the nested dictionaries.
    hf = transformers.AutoConfig.for_model(**copy.deepcopy(
        {k: v for k, v in raw.items() if k != 'quantization_config'}))
  except Exception as error:  # transformers raises errors of many types
    raise invalid(error) from None
  for supported, feature in _features(raw, hf):
    if not supported:
      raise ValueError(
          f'{where}: {feature} is not supported; choose a model without it.')
  stored = str(raw.get('dtype') or raw.get('torch_dtype') or 'float32')
  if stored not in STORED:
    raise ValueError(
        f'{where}: weights stored in {stored} are not supported; save them in '
        'bfloat16 or float32.')
  try:
    return _converted(hf, raw['model_type'], stored)
  except (ArithmeticError, TypeError, ValueError) as error:
    raise invalid(error) from None


def _activation(hf: Any, kind: str) -> str:
  # A field that transformers does not read in a family says nothing.
  return hf.hidden_activation if kind == 'gemma2' else hf.hidden_act


def _windowed_layers(hf: Any) -> list[int]:
  """Returns the numbers of the layers with a sliding window."""
  pattern = getattr(hf, 'layer_types', None) or []
  return [i for i, t in enumerate(pattern) if t != 'full_attention']


def _features(
    raw: Mapping[str, Any], hf: Any) -> Iterator[tuple[bool, str]]:
  """Yields (whether a feature is as our decoder has it, its name)."""
  kind, rope = raw['model_type'], hf.rope_parameters
  gemma = kind == 'gemma2'
  yield (raw.get('architectures') in (None, [], [FAMILIES[kind]]),
         f'architectures={raw.get("architectures")} (not {FAMILIES[kind]})')
  yield not raw.get('quantization_config'), 'quantization_config'
  yield 'rope_theta' in rope, 'rope_parameters for each type of layer'
  rope_type = rope.get('rope_type', 'default')
  yield rope_type in ('default', 'llama3'), f'rope_type={rope_type}'
  factor = rope.get('partial_rotary_factor', 1.0)
  yield factor == 1.0, f'partial_rotary_factor={factor}'
  activation = _activation(hf, kind)
  yield activation in _ACTIVATIONS, f'hidden activation {activation}'
  yield kind == 'qwen2' or not hf.attention_bias, 'attention_bias=true'
  yield kind != 'llama' or not hf.mlp_bias, 'mlp_bias=true'
  yield (not gemma or not hf.use_bidirectional_attention,
         'use_bidirectional_attention=true')
  pattern = getattr(hf, 'layer_types', None) or []
  yield ({*pattern} <= {'full_attention', 'sliding_attention'},
         f'layer_types={sorted({*pattern})}')
  sliding = _windowed_layers(hf)
  yield (not sliding or gemma and sliding == [*range(0, len(pattern), 2)],
         f'sliding windows in layers {sliding}')


def _converted(hf: Any, kind: str, stored: str) -> ModelConfig:
  """Converts a config of which all features are supported.

  Raises:
    ArithmeticError, TypeError, ValueError: a field is not valid.
  """
  rope, sliding = dict(hf.rope_parameters), _windowed_layers(hf)
  heads, theta, gemma = (
      hf.num_attention_heads, rope['rope_theta'], kind == 'gemma2')
  sizes = dict(
      vocab_size=hf.vocab_size, width=hf.hidden_size,
      layers=hf.num_hidden_layers, heads=heads,
      kv_heads=hf.num_key_value_heads, mlp_width=hf.intermediate_size)
  if min(sizes.values()) < 1:
    raise ValueError(f'sizes must be positive: {sizes}')
  for name in ('query_pre_attn_scalar', 'attn_logit_softcapping',
               'final_logit_softcapping', 'sliding_window'):
    value = getattr(hf, name) if gemma else None
    if value is not None and value <= 0:
      raise ValueError(f'{name}={value} must be positive')
  if sliding and hf.sliding_window is None:
    raise ValueError('sliding_window=null, but layers have a window')
  scaling = None
  if rope.get('rope_type') == 'llama3':
    scaling = RopeScaling(*(rope[name] for name in (
        'factor', 'low_freq_factor', 'high_freq_factor',
        'original_max_position_embeddings')))
  head_dim = getattr(hf, 'head_dim', None)
  return ModelConfig(
      **sizes,
      head_dim=hf.hidden_size // heads if head_dim is None else head_dim,
      activation=_ACTIVATIONS[_activation(hf, kind)],
      rope_theta=float(theta) if type(theta) is int else theta,
      rope_scaling=scaling,
      norm_eps=hf.rms_norm_eps, norm_plus_one=gemma,
      qkv_bias=kind == 'qwen2', qk_norm=kind == 'qwen3', post_norms=gemma,
      tie_embeddings=bool(hf.tie_word_embeddings), scale_embeddings=gemma,
      query_scale=hf.query_pre_attn_scalar ** -0.5 if gemma else None,
      attention_softcap=hf.attn_logit_softcapping if gemma else None,
      logit_softcap=hf.final_logit_softcapping if gemma else None,
      window=hf.sliding_window if sliding else None, dtype=stored)


def to_hf(
    cfg: ModelConfig, source: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """Converts a ModelConfig to the contents of a config.json.

  Args:
    cfg: the model; its `dtype` becomes the type of the stored weights.
    source: the model's original config.json; its other fields are kept.

  Returns:
    The fields, readable by transformers 4 and 5 and by vLLM.

  Raises:
    ValueError: no supported family has the model's combination of features.
  """
  kind = ('gemma2' if cfg.norm_plus_one else 'qwen2' if cfg.qkv_bias else
          'qwen3' if cfg.qk_norm else 'llama')
  activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[
      cfg.activation]
  rope, scaling = dict(rope_type='default'), None
  if cfg.rope_scaling is not None:
    s = cfg.rope_scaling
    rope = scaling = dict(
        rope_type='llama3', factor=s.factor,
        low_freq_factor=s.low_freq_factor,
        high_freq_factor=s.high_freq_factor,
        original_max_position_embeddings=s.original_length)
  longest = max(32_768, 8 * scaling['original_max_position_embeddings']
                if scaling else 0)
  out = {
      'max_position_embeddings': longest,
      'bos_token_id': None, 'eos_token_id': None, 'pad_token_id': None,
      **(source or {}),
      'model_type': kind, 'architectures': [FAMILIES[kind]],
      'vocab_size': cfg.vocab_size, 'hidden_size': cfg.width,
      'num_hidden_layers': cfg.layers, 'num_attention_heads': cfg.heads,
      'num_key_value_heads': cfg.kv_heads, 'head_dim': cfg.head_dim,
      'intermediate_size': cfg.mlp_width, 'hidden_act': activation,
      'rms_norm_eps': cfg.norm_eps, 'tie_word_embeddings': cfg.tie_embeddings,
      # transformers before version 5 reads the first two, later ones the third.
      'rope_theta': cfg.rope_theta, 'rope_scaling': scaling,
      'rope_parameters': {**rope, 'rope_theta': cfg.rope_theta},
      'dtype': cfg.dtype, 'torch_dtype': cfg.dtype}
  if kind == 'gemma2':
    out.update(
        hidden_activation=activation,
        query_pre_attn_scalar=round(cfg.scale ** -2),
        attn_logit_softcapping=cfg.attention_softcap,
        final_logit_softcapping=cfg.logit_softcap,
        sliding_window=cfg.window or longest,
        layer_types=[
            'full_attention' if i % 2 or not cfg.window else 'sliding_attention'
            for i in range(cfg.layers)])
  back = from_hf(out)
  lost = [name for name, value in vars(cfg).items()
          if name != 'query_scale' and getattr(back, name) != value]
  if lost or not np.isclose(back.scale, cfg.scale):
    raise ValueError(
        f'A Hugging Face {kind} model cannot have '
        + ', '.join(f'{n}={getattr(cfg, n)}' for n in lost or ['query_scale'])
        + ': this model cannot be exported, because no supported family '
        'combines these features.')
  return out
