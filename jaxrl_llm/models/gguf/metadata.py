"""A model's config: metadata of a GGUF file to and from config.json.

llama.cpp leaves out what it has in its own code, such as Gemma's windows. Those
values are here too. A field that is not known is an error.
"""

import math
from typing import Any, Callable, Mapping

import numpy as np

from jaxrl_llm.models.gguf import header as header_lib
from jaxrl_llm.models.gguf import tensors as tensors_lib

MODEL_TYPES = {
    'llama': 'llama', 'qwen2': 'qwen2', 'qwen3': 'qwen3', 'gemma2': 'gemma2',
    'gemma3': 'gemma3_text'}
# Further fields of an architecture that say nothing about the computation.
_IGNORED = {'vocab_size', 'tensor_data_layout', 'rope.scaling.finetuned'}
# llama.cpp's own values where a file has none: layers from one with full
# attention to the next, and the number of layers of the size whose queries are
# scaled by width / heads, not by a head's width.
_PATTERN, _LARGE = {'gemma2': 2, 'gemma3': 6}, {'gemma2': 46, 'gemma3': 62}
_LOCAL_BASE = 10_000.0  # of the layers with a window, Gemma 3
_LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0)
_MOST_BLOCKS = 10_000  # more are a damaged file's
_LENGTHS = (8192, *(2 ** i for i in range(4, 21)))


def config(
    header: header_lib.Header, factors: np.ndarray | None = None,
) -> dict[str, Any]:
  """Returns the fields of the config.json of a file's model.

  Args:
    header: of the file.
    factors: those of the frequencies, from `read_factors`; None for none.

  Raises:
    ValueError: the architecture is not supported, a field is missing, not a
      number or not known, or the frequencies are scaled in another way than
      Llama 3's.
  """
  where, fields = header.path, header.fields
  architecture = fields.get('general.architecture')
  if architecture not in [*MODEL_TYPES]:
    raise ValueError(
        f'{where}: general.architecture={architecture} is not supported; '
        f'choose a model of {", ".join(MODEL_TYPES)}.')
  rest = {
      name.removeprefix(f'{architecture}.'): value
      for name, value in fields.items() if name.startswith(f'{architecture}.')}

  def take(name: str, *default: Any) -> Any:
    value = rest.pop(name, *default)
    if not isinstance(value, (int, float, type(None))):
      raise ValueError(
          f'{where}: {architecture}.{name} is not one number, which is not '
          'supported; choose another model.')
    if name == 'block_count' and value not in range(1, _MOST_BLOCKS + 1):
      raise ValueError(
          f'{where}: {architecture}.{name}={value} is not from 1 to '
          f'{_MOST_BLOCKS}: fetch the file again.')
    return value

  try:
    out = _common(take, header)
    out['rope_parameters'] = _rope(
        take, rest.pop, header, factors, out['head_dim'])
    if architecture.startswith('gemma'):
      out |= _gemma(take, rest.pop, header, out)
  except KeyError as error:
    raise ValueError(
        f'{where}: {architecture}.{error.args[0]} is missing: fetch the file '
        'again.') from None
  unknown = [name for name, value in rest.items()
             if value and name not in _IGNORED]
  if unknown:
    raise ValueError(
        f'{where}: {architecture}.{unknown[0]}={rest[unknown[0]]!r:.40} is not '
        'supported; choose a model without it.')
  embed = header.tensors.get('token_embd.weight')
  if embed is None:
    raise ValueError(
        f'{where} lacks the tensor token_embd.weight: fetch it again.')
  kinds = {t.kind.name for t in header.tensors.values() if len(t.shape) > 1}
  return out | {
      'vocab_size': embed.shape[0],
      'tie_word_embeddings': 'output.weight' not in header.tensors,
      'dtype': {'BF16': 'bfloat16', 'F16': 'float16'}.get(
          kinds.pop() if len(kinds) == 1 else '', 'float32'),
      **{f'{name}_token_id': fields.get(f'tokenizer.ggml.{theirs}_token_id')
         for name, theirs in (
             ('bos', 'bos'), ('eos', 'eos'), ('pad', 'padding'))}}


def _common(take: Callable, header: header_lib.Header) -> dict[str, Any]:
  """Returns the fields that all families have."""
  architecture = header.fields['general.architecture']
  heads, width = take('attention.head_count'), take('embedding_length')
  head_dim = take('attention.key_length', None) or width // max(heads, 1)
  for name in 'attention.value_length', 'rope.dimension_count':
    if (other := take(name, head_dim)) != head_dim:
      raise ValueError(
          f'{header.path}: {architecture}.{name}={other} beside heads of '
          f'{head_dim} is not supported; choose a model without it.')
  return {
      'model_type': MODEL_TYPES[architecture],
      'hidden_size': width, 'num_attention_heads': heads, 'head_dim': head_dim,
      'num_key_value_heads': take('attention.head_count_kv', heads),
      'num_hidden_layers': take('block_count'),
      'intermediate_size': take('feed_forward_length'),
      'rms_norm_eps': take('attention.layer_norm_rms_epsilon'),
      'max_position_embeddings': take('context_length')}


def read_factors(header: header_lib.Header) -> np.ndarray | None:
  """Returns by what a file divides the rotary frequencies, if it has that."""
  found = header.tensors.get(tensors_lib.ROPE)
  return None if found is None else tensors_lib.rows_of(
      found, header.path, slice(None)).astype(np.float32)


def _rope(
    take: Callable, pop: Callable, header: header_lib.Header,
    factors: np.ndarray | None, head_dim: int) -> dict[str, Any]:
  """Returns the rotary frequencies; `pop` takes a field of any type."""
  base = float(take('rope.freq_base', 10_000.0))
  kind = pop('rope.scaling.type', 'none')
  if kind != 'none':
    return {
        'rope_type': kind, 'rope_theta': base,
        'factor': take('rope.scaling.factor', 1.0)}
  if factors is None:
    return {'rope_type': 'default', 'rope_theta': base}
  largest = round(float(factors.max()), 4)  # computed in float32
  for length in _LENGTHS:
    scaling = dict(
        rope_type='llama3', rope_theta=base, factor=largest,
        original_max_position_embeddings=length, **_LLAMA3)
    made = rope_factors(scaling, head_dim)
    if made.shape == factors.shape and np.allclose(
        made, factors, rtol=1e-5, atol=0):
      return scaling
  raise ValueError(
      f'{header.path}: the factors in {tensors_lib.ROPE} are not of Llama 3\'s '
      'kind, which is the only one that is supported; choose another model.')


def rope_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray:
  """Returns by what Llama 3's scaling divides each frequency.

  Args:
    rope: `rope_parameters` of config.json.
    head_dim: width of a head.

  Returns:
    Factors [head_dim / 2], float32.
  """
  turns = rope['original_max_position_embeddings'] / (2 * math.pi) * (
      rope['rope_theta'] ** -(np.arange(0, head_dim, 2) / head_dim))
  low, high = rope['low_freq_factor'], rope['high_freq_factor']
  smooth = np.clip((turns - low) / (high - low), 0, 1)
  return (1 / ((1 - smooth) / rope['factor'] + smooth)).astype(np.float32)


def _gemma(
    take: Callable, pop: Callable, header: header_lib.Header,
    common: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of Gemma 2 and 3; `pop` takes a field of any type."""
  where, architecture = header.path, header.fields['general.architecture']
  layers, old = common['num_hidden_layers'], architecture == 'gemma2'
  pattern = pop('attention.sliding_window_pattern', _PATTERN[architecture])
  if type(pattern) is int:
    pattern = _windows(pattern, layers)
  if not isinstance(pattern, list) or len(pattern) != layers:
    raise ValueError(
        f'{where}: {architecture}.attention.sliding_window_pattern='
        f'{pattern!r:.40} does not fit {layers} layers: fetch the file again.')
  width, heads, rope = (
      common['hidden_size'], common['num_attention_heads'],
      common['rope_parameters'])
  local = float(take('rope.freq_base_swa', _LOCAL_BASE))
  return {
      'hidden_activation': 'gelu_pytorch_tanh',
      'sliding_window': take(
          'attention.sliding_window', *[4096] * old),
      'layer_types': [
          'sliding_attention' if windowed else 'full_attention'
          for windowed in pattern],
      'attn_logit_softcapping': take(
          'attn_logit_softcapping', 50.0 if old else None),
      'final_logit_softcapping': take(
          'final_logit_softcapping', 30.0 if old else None),
      'query_pre_attn_scalar': (
          width // heads if layers == _LARGE[architecture]
          else common['head_dim']),
      'rope_parameters': rope if old else {
          'full_attention': rope, 'sliding_attention': {
              'rope_type': 'default', 'rope_theta': local}}}


def _windows(every: int, layers: int) -> list[bool]:
  """Returns which layers have a window: all but one of `every`."""
  return [(i + 1) % max(every, 1) > 0 for i in range(layers)]


def fields(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the metadata of a model, without its tokeniser's.

  Args:
    raw: fields of its config.json, from `hf_config.to_hf`.

  Raises:
    ValueError: of a family that is not supported.
  """
  architecture = {b: a for a, b in MODEL_TYPES.items()}.get(raw['model_type'])
  if architecture is None:
    raise ValueError(
        f'A GGUF file of a {raw["model_type"]} model is not supported: export '
        'with --format=safetensors.')
  rope = raw['rope_parameters']
  out = {
      'vocab_size': raw['vocab_size'],
      'context_length': raw['max_position_embeddings'],
      'embedding_length': raw['hidden_size'],
      'block_count': raw['num_hidden_layers'],
      'feed_forward_length': raw['intermediate_size'],
      'attention.head_count': raw['num_attention_heads'],
      'attention.head_count_kv': raw['num_key_value_heads'],
      'attention.layer_norm_rms_epsilon': float(raw['rms_norm_eps']),
      **dict.fromkeys(('attention.key_length', 'attention.value_length',
                       'rope.dimension_count'), raw['head_dim'])}
  if architecture == 'gemma3':
    out['rope.freq_base_swa'] = float(rope['sliding_attention']['rope_theta'])
    rope = rope['full_attention']
  out['rope.freq_base'] = float(rope['rope_theta'])
  if rope['rope_type'] == 'linear':
    out['rope.scaling.type'] = 'linear'
    out['rope.scaling.factor'] = float(rope['factor'])
  if architecture in _PATTERN:
    out['attention.sliding_window'] = raw['sliding_window']
    windows = [kind != 'full_attention' for kind in raw['layer_types']]
    if windows != _windows(_PATTERN[architecture], len(windows)):
      out['attention.sliding_window_pattern'] = windows
    for name in 'attn_logit_softcapping', 'final_logit_softcapping':
      if raw[name] is not None:
        out[name] = float(raw[name])
  return {'general.architecture': architecture, **{
      f'{architecture}.{name}': value for name, value in out.items()}}
