"""GGUF files of the tiny models, by the `gguf` package's writer and names."""

import pathlib
from typing import Any, Callable, Mapping

import gguf
import numpy as np

from tests.helpers import families

# Families whose files are read.
NAMES = tuple(name for name in families.NAMES if name != 'qwen3_moe')
_ARCHITECTURES = {'llama3': 'llama'}  # where it is not the family's name
TOKENS = ['<|begin|>', '<|end|>', '<|stop|>', *map(chr, range(97, 123)), 'ab',
          'abc', *map(chr, range(48, 52)), '[PAD35]', '[PAD36]']
# Of a byte-level BPE: the last two are rows of the model without a token.
WORDS = {
    'model': 'gpt2', 'pre': 'qwen2', 'tokens': TOKENS,
    'token_type': [3, 3, 3, *[1] * 32, 5, 5], 'merges': ['a b', 'ab c'],
    'bos_token_id': 0, 'eos_token_id': 1, 'eot_token_id': 2}


def write(
    path: pathlib.Path, arch: str, fields: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kind: Callable[[str, np.ndarray], Any] | None = None,
    **options: Any) -> pathlib.Path:
  """Writes a file.

  Args:
    path: of the file.
    arch: its architecture.
    fields: metadata; int, float, bool, text, or list of these.
    tensors: llama.cpp's names to float32 arrays.
    kind: (name, array) -> `gguf.GGMLQuantizationType`; float32 by default.
    **options: of `gguf.GGUFWriter`.

  Returns:
    The path.
  """
  writer = gguf.GGUFWriter(path, arch, **options)
  for name, value in fields.items():
    {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
     str: writer.add_string, list: writer.add_array}[type(value)](name, value)
  for name, array in tensors.items():
    of = kind(name, array) if kind else gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, gguf.quantize(array, of), raw_dtype=of)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def fields_of(name: str) -> tuple[str, dict[str, Any]]:
  """Returns a tiny model's architecture and metadata."""
  hf = families.family(name)[2]
  arch = _ARCHITECTURES.get(name, name)
  own = {
      'block_count': hf.num_hidden_layers, 'context_length': 512,
      'embedding_length': hf.hidden_size,
      'feed_forward_length': hf.intermediate_size,
      'attention.head_count': hf.num_attention_heads,
      'attention.head_count_kv': hf.num_key_value_heads,
      'attention.layer_norm_rms_epsilon': hf.rms_norm_eps}
  rope = hf.rope_parameters
  if name != 'qwen2':  # whose files do not have the width of a head
    own |= {'attention.key_length': 10, 'attention.value_length': 10}
  if name == 'llama3':
    own['rope.dimension_count'] = 10
  if name == 'gemma2':
    own |= {'attn_logit_softcapping': 2.0, 'final_logit_softcapping': 3.0}
  if name == 'gemma3':
    own |= {
        'rope.freq_base_swa': 100.0, 'rope.scaling.type': 'linear',
        'rope.scaling.factor': 8.0, 'attention.sliding_window_pattern': 3}
    rope = rope['full_attention']
  if name.startswith('gemma'):
    own['attention.sliding_window'] = 13
  own['rope.freq_base'] = float(rope['rope_theta'])
  return arch, {
      **{f'{arch}.{key}': value for key, value in own.items()},
      **{f'tokenizer.ggml.{key}': value for key, value in WORDS.items()}}


def tensors_of(name: str, dtype: Any) -> dict[str, np.ndarray]:
  """Returns a tiny model's weights as llama.cpp's converter stores them."""
  arch, _ = fields_of(name)
  layers = families.family(name)[2].num_hidden_layers
  names = gguf.get_tensor_name_map(
      {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
  model, out = families.torch_model(name, dtype), {}
  for key, weight in model.state_dict().items():
    if key == 'lm_head.weight' and model.config.tie_word_embeddings:
      continue
    array = weight.float().numpy()
    if arch.startswith('gemma') and key.endswith('norm.weight'):
      array = array + 1
    for part, heads in ('q_proj', 6), ('k_proj', 2):
      if arch == 'llama' and part in key:
        array = array.reshape(heads, 2, 5, -1).swapaxes(1, 2).reshape(
            array.shape)
    stem, _, suffix = key.rpartition('.')
    out[f'{names.get_name(stem)}.{suffix}'] = np.ascontiguousarray(array)
  if name == 'llama3':
    out['rope_freqs.weight'] = FACTORS
  return out


def llama3_factors() -> np.ndarray:
  """Returns the factors of frequencies, as in transformers."""
  from transformers import modeling_rope_utils
  hf = families.family('llama3')[2]
  scaled, _ = modeling_rope_utils.ROPE_INIT_FUNCTIONS['llama3'](hf, 'cpu')
  plain = 1e4 ** -(np.arange(0, 10, 2) / 10)
  return (plain / scaled.numpy()).astype(np.float32)


FACTORS = llama3_factors()


def model(
    path: pathlib.Path, name: str, dtype: Any, kind: Any = None,
    **changes: Any) -> pathlib.Path:
  """Writes a tiny model; `changes` replace metadata, None leaves it out."""
  arch, fields = fields_of(name)
  fields |= {key.replace('__', '.'): x for key, x in changes.items()}
  fields = {key: x for key, x in fields.items() if x is not None}
  return write(path, arch, fields, tensors_of(name, dtype), kind)
