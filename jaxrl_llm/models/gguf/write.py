"""Writes a GGUF file that llama.cpp opens.

Matrices are of the model's type, vectors of float32, which llama.cpp computes
with. Nothing is quantised.
"""

import math
import pathlib
import re
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxrl_llm.models.gguf import header as header_lib
from jaxrl_llm.models.gguf import metadata, tensors, tokens

_FILE_TYPES = {'float32': 0, 'float16': 1, 'bfloat16': 32}  # llama.cpp's
_KINDS = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
_LAYER = re.compile(r'model\.layers\.(\d+)\.(.+)')


def fields(
    raw: Mapping[str, Any], tokenizer: Any, stops: Sequence[int],
    read: Callable[[Mapping[str, Any]], Any],
) -> dict[str, Any]:
  """Returns the metadata of a model.

  Args:
    raw: fields of its config.json, from `hf_config.to_hf`.
    tokenizer: transformers' tokeniser.
    stops: ids that end a response, the tokeniser's own first.
    read: fields of a config.json to the config of the model that is computed,
      to compare what is written with what comes back.

  Raises:
    ValueError: a GGUF file cannot have such a model or tokeniser, or `gguf` is
      not installed.
  """
  gguf = header_lib.package()
  out = metadata.fields(raw) | {'general.file_type': _FILE_TYPES[raw['dtype']]}
  kind = gguf.GGMLQuantizationType[_KINDS[raw['dtype']]]
  matrices = ['token_embd.weight'] + (
      ['output.weight'] * (not raw['tie_word_embeddings']))
  back = metadata.config(header_lib.Header(pathlib.Path('model.gguf'), out, {
      name: header_lib.Info(
          name, (raw['vocab_size'], raw['hidden_size']), kind, 0, 0)
      for name in matrices}), _factors(raw))
  written, found = read(raw), read(back)
  lost = [f'{name}={value}' for name, value in vars(written).items()
          if getattr(found, name) != value]
  if lost:
    raise ValueError(
        f'A GGUF file cannot say {", ".join(lost)} of a model: export with '
        '--format=safetensors.')
  return out | tokens.fields(tokenizer, raw['vocab_size'], stops)


def _factors(raw: Mapping[str, Any]) -> np.ndarray | None:
  """Returns by what the rotary frequencies are divided."""
  rope = raw['rope_parameters']
  return metadata.rope_factors(rope, raw['head_dim']) if (
      rope.get('rope_type') == 'llama3') else None


def save(
    path: pathlib.Path, raw: Mapping[str, Any], found: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    weights: Iterable[tuple[str, np.ndarray]]) -> None:
  """Writes a file.

  Args:
    path: of the file.
    raw: as of `fields`.
    found: metadata, from `fields`.
    shapes: Hugging Face's names of all tensors to their shapes, in the order of
      `weights`.
    weights: (Hugging Face's name, array) pairs. One array is in memory at a
      time.

  Raises:
    OSError: the file cannot be written.
  """
  gguf = header_lib.package()
  architecture = found['general.architecture']
  writer = gguf.GGUFWriter(path, architecture)
  for name, value in found.items():
    if name != 'general.architecture':  # the writer has added it
      _add(writer, name, value)
  factors = _factors(raw)
  if factors is not None:
    writer.add_tensor_info(
        tensors.ROPE, factors.shape, factors.dtype, factors.nbytes)
  for name, shape in shapes.items():
    kind = np.dtype('float32' if len(shape) == 1 else raw['dtype'])
    writer.add_tensor_info(
        _name(name, architecture), shape, kind,
        math.prod(shape) * kind.itemsize,
        gguf.GGMLQuantizationType[_KINDS[kind.name]])
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_ti_data_to_file()
  if factors is not None:
    writer.write_tensor_data(factors)
  for name, array in weights:
    writer.write_tensor_data(np.ascontiguousarray(
        _stored(name, array, found)).view(np.uint8))
  writer.close()


def _add(writer: Any, name: str, value: Any) -> None:
  """Adds a field, in the type that llama.cpp expects."""
  for kind, add in ((bool, writer.add_bool), (int, writer.add_uint32),
                    (float, writer.add_float32), (str, writer.add_string),
                    (list, writer.add_array)):
    if isinstance(value, kind):
      add(name, value)
      return


def _name(name: str, architecture: str) -> str:
  """Returns llama.cpp's name of a tensor."""
  stem, _, suffix = name.rpartition('.')
  block = _LAYER.fullmatch(stem)
  table = tensors.layer_names(architecture) if block else tensors.TOP
  theirs = {ours: name for name, ours in table.items()}
  if block:
    return f'blk.{block[1]}.{theirs[block[2]]}.{suffix}'
  return f'{theirs[stem]}.{suffix}'


def _stored(
    name: str, array: np.ndarray, found: Mapping[str, Any]) -> np.ndarray:
  """Returns a tensor as llama.cpp has it."""
  architecture = found['general.architecture']
  if array.ndim == 1:
    array = array.astype(np.float32)
  if tensors.is_norm_plus_one(architecture, name):
    array = array + np.float32(1)
  for part, of in ('q_proj', 'head_count'), ('k_proj', 'head_count_kv'):
    if architecture == 'llama' and f'.{part}.' in name:
      heads = found[f'llama.attention.{of}']
      array = array[np.argsort(tensors.rotated(len(array), heads))]
  return array
