"""Weights of a GGUF file, under the names that Hugging Face gives them.

A tensor is dequantised to float32 by the `gguf` package, block by block as it
is read. Those of float32, bfloat16 and float16 are kept as they are.
"""

import functools
import pathlib
import re

import ml_dtypes
import numpy as np

from jaxrl_llm.models.gguf import header as header_lib
from jaxrl_llm.models.tensor_files import Tensor

FILE = 'model.gguf'
# llama.cpp's names, without .weight and .bias; those of layers without blk.N.
TOP = {'token_embd': 'model.embed_tokens', 'output_norm': 'model.norm',
       'output': 'lm_head'}
_LAYER = {
    'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm',
    'attn_q': 'self_attn.q_proj', 'attn_k': 'self_attn.k_proj',
    'attn_v': 'self_attn.v_proj', 'attn_output': 'self_attn.o_proj',
    'attn_q_norm': 'self_attn.q_norm', 'attn_k_norm': 'self_attn.k_norm',
    'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj',
    'ffn_down': 'mlp.down_proj'}
_GEMMA = {
    'post_attention_norm': 'post_attention_layernorm',
    'ffn_norm': 'pre_feedforward_layernorm',
    'post_ffw_norm': 'post_feedforward_layernorm'}
_NAME = re.compile(r'(?:blk\.(\d+)\.)?(\w+)(\.weight|\.bias)')
ROPE = 'rope_freqs.weight'  # factors of frequencies: part of the config
_KEPT = {'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16}


def layer_names(architecture: str) -> dict[str, str]:
  """Maps llama.cpp's names of a layer's tensors to Hugging Face's."""
  return {**_LAYER, **(_GEMMA if architecture.startswith('gemma') else {})}


def find(folder: pathlib.Path) -> dict[str, Tensor]:
  """Finds all tensors of a folder's GGUF file; reads only its header.

  Returns:
    Name to Tensor. What has no name in Hugging Face's models keeps its own.

  Raises:
    ValueError: as of `header.read`.
  """
  found = header_lib.read(folder / FILE)
  architecture = found.fields['general.architecture']
  layer, out = layer_names(architecture), {}
  for name, info in found.tensors.items():
    if name == ROPE:
      continue
    heads = None
    if match := _NAME.fullmatch(name):
      block, part, suffix = match.groups()
      theirs = (TOP if block is None else layer).get(part)
      if theirs:
        name = f'model.layers.{block}.{theirs}' if block else theirs
        name += suffix
      if architecture == 'llama' and part in ('attn_q', 'attn_k'):
        heads = found.fields['llama.attention.head_count']
        if part == 'attn_k':
          heads = found.fields.get('llama.attention.head_count_kv', heads)
    plus_one = is_norm_plus_one(architecture, name)
    kept = info.kind.name in _KEPT and not plus_one
    out[name] = Tensor(
        found.path, name, info.shape, info.kind.name if kept else 'F32',
        functools.partial(rows_of, info, heads=heads, plus_one=plus_one))
  return out


def is_norm_plus_one(architecture: str, name: str) -> bool:
  """Returns whether a file has 1 + w, which Gemma multiplies by, for w."""
  return architecture.startswith('gemma') and name.endswith('norm.weight')


def rotated(rows: int, heads: int) -> np.ndarray:
  """Returns the row of llama.cpp's file at which each row of ours is.

  llama.cpp rotates pairs of neighbours in the architecture `llama`, Hugging
  Face's models rotate the first half of a head with the second.

  Args:
    rows: of the matrix of queries or keys.
    heads: number of heads; divides `rows`.

  Returns:
    Indices [rows].
  """
  return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def rows_of(
    info: header_lib.Info, path: pathlib.Path, rows: slice,
    rest: tuple[slice, ...] = (), *, heads: int | None = None,
    plus_one: bool = False) -> np.ndarray:
  """Reads and dequantises rows of a tensor; see `tensor_files.Tensor`.

  Args:
    info: the tensor's place.
    path: of the file.
    rows: slice of the first axis.
    rest: slices of the next ones.
    heads: number of heads whose rows are `rotated`, or None.
    plus_one: whether the file has 1 + the weights.

  Returns:
    The rows.
  """
  if heads:
    rows = rotated(info.shape[0], heads)[rows]
  shape = (*info.shape[:-1], info.row_bytes)
  data = np.memmap(path, np.uint8, 'r', info.start, shape)
  index = (rows, *rest)
  if len(info.shape) > 1:  # A vector is one row: all of it is dequantised.
    data, index = data[rows], (slice(None), *rest)
  data = np.ascontiguousarray(data)
  kind = info.kind.name
  if kind in _KEPT:
    block = data.view(_KEPT[kind])
  else:
    block = header_lib.package().dequantize(data, info.kind)
  block = block[index]
  return block.astype(np.float32) - 1 if plus_one else block
