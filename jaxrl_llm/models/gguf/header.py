"""Header of a GGUF file: its metadata, and the place of each tensor.

Strings and arrays are read in one pass; the `gguf` package's own reader makes
an object for each token of the vocabulary, which takes many seconds.
"""

import math
import os
import pathlib
from typing import Any, BinaryIO, Mapping, NamedTuple

import numpy as np

_MAGIC = b'GGUF'
_VERSIONS = 2, 3  # 1 has other lengths, and no such files are left
_ALIGNMENT = 32
# Types of values, by their numbers in a file.
_NUMBERS = {
    0: 'u1', 1: 'i1', 2: '<u2', 3: '<i2', 4: '<u4', 5: '<i4', 6: '<f4', 7: '?',
    10: '<u8', 11: '<i8', 12: '<f8'}
_STRING, _ARRAY = 8, 9


class Info(NamedTuple):
  """Place of a tensor.

  Attributes:
    name: llama.cpp's.
    shape: sizes of the axes, in NumPy's order.
    kind: `gguf.GGMLQuantizationType`.
    start: position of its first byte in the file.
    row_bytes: bytes of one index of all axes but the last.
  """
  name: str
  shape: tuple[int, ...]
  kind: Any
  start: int
  row_bytes: int


class Header(NamedTuple):
  """Header of a file: all before its weights.

  Attributes:
    path: the file.
    fields: metadata, name to number, text, or list of these.
    tensors: name to Info.
  """
  path: pathlib.Path
  fields: Mapping[str, Any]
  tensors: Mapping[str, Info]


def package() -> Any:
  """Returns the module `gguf`.

  Raises:
    ValueError: it is not installed.
  """
  try:
    import gguf
  except ImportError:
    raise ValueError(
        'GGUF files need the package gguf, which is not installed: run '
        "pip install 'jaxrl_llm[gguf]'.") from None
  return gguf


def read(path: pathlib.Path) -> Header:
  """Reads the header of a file, and checks that all weights are there.

  Raises:
    ValueError: the file is missing, damaged, cut off, one part of several, or
      of a type of weights that is not known; or `gguf` is not installed.
  """
  gguf = package()
  try:
    with path.open('rb') as file:
      fields, tensors = _read(file, path.stat().st_size, gguf)
  except OSError as error:
    raise ValueError(
        f'{path} cannot be read ({error.strerror}): name a GGUF file.'
        ) from None
  except EOFError:
    raise ValueError(
        f'{path} is cut off or damaged: fetch it again.') from None
  except (KeyError, OverflowError, ValueError) as error:
    reason = str(error).rstrip('.')
    raise ValueError(
        f'{path} cannot be used as a GGUF file ({reason}): fetch it again, or '
        'choose another one.') from None
  if fields.get('split.count', 1) != 1:
    raise ValueError(
        f'{path} is one of {fields["split.count"]} parts of a model: join them '
        'with llama-gguf-split --merge, and name the whole file.')
  return Header(path, fields, tensors)


def _read(file: BinaryIO, size: int, gguf: Any) -> tuple[dict, dict]:
  """Returns fields and tensors of an open file of `size` bytes."""
  if file.read(4) != _MAGIC:
    raise ValueError('it does not begin with the letters GGUF')
  version = _number(file, size, '<u4')
  if version & 0xffff == 0:
    raise ValueError('it is for big-endian machines')
  if version not in _VERSIONS:
    raise ValueError(f'version {version} of the format is not known')
  tensors, count = _number(file, size, '<u8'), _number(file, size, '<u8')
  fields = {}
  for _ in range(count):
    name = _text(file, size)
    if name in fields:
      raise ValueError(f'{name} is there twice')
    fields[name] = _value(file, size, _number(file, size, '<u4'))
  raw = [_tensor(file, size) for _ in range(tensors)]
  step = fields.get('general.alignment', _ALIGNMENT)
  if type(step) is not int or step < 1:
    raise ValueError(f'general.alignment={step!r}')
  start = -(-file.tell() // step) * step
  out = {}
  for name, shape, kind, offset in raw:
    info = _info(name, shape, kind, start + offset, gguf)
    if info.start + math.prod(shape[:-1]) * info.row_bytes > size:
      raise EOFError
    if name in out:
      raise ValueError(f'tensor {name} is there twice')
    out[name] = info
  return fields, out


def _info(
    name: str, shape: tuple[int, ...], number: int, start: int,
    gguf: Any) -> Info:
  """Checks a tensor's type."""
  try:
    kind = gguf.GGMLQuantizationType(number)
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
  except (KeyError, NotImplementedError, ValueError):
    raise ValueError(
        f'tensor {name} has quantisation {number}, which the installed gguf '
        'cannot read') from None
  if not shape or min(shape) < 1 or shape[-1] % per_block:
    raise ValueError(f'tensor {name} has shape {shape}')
  return Info(name, shape, kind, start, shape[-1] // per_block * block_bytes)


def _tensor(file: BinaryIO, size: int) -> tuple[str, tuple[int, ...], int, int]:
  """Returns a tensor's name, shape, number of its type, and offset."""
  name, axes = _text(file, size), _number(file, size, '<u4')
  shape = tuple(_array(file, size, '<u8', axes).tolist())[::-1]
  return name, shape, _number(file, size, '<u4'), _number(file, size, '<u8')


def _value(file: BinaryIO, size: int, kind: int) -> Any:
  """Returns a value of the type with that number."""
  if kind == _STRING:
    return _text(file, size)
  if kind == _ARRAY:
    kind, count = _number(file, size, '<u4'), _number(file, size, '<u8')
    if kind == _STRING:
      return [_text(file, size) for _ in range(count)]
    return _array(file, size, _numeric(kind), count).tolist()
  value = _array(file, size, _numeric(kind), 1)[0]
  # The shortest text of a float32: 1e-6, not 9.999999974752427e-07.
  return float(str(value)) if kind == 6 else value.item()


def _numeric(kind: int) -> str:
  if kind not in _NUMBERS:
    raise ValueError(f'a value has the unknown type {kind}')
  return _NUMBERS[kind]


def _text(file: BinaryIO, size: int) -> str:
  count = int.from_bytes(_bytes(file, size, 8), 'little')
  return _bytes(file, size, count).decode()


def _number(file: BinaryIO, size: int, kind: str) -> int:
  return _array(file, size, kind, 1)[0].item()


def _array(file: BinaryIO, size: int, kind: str, count: int) -> np.ndarray:
  return np.frombuffer(
      _bytes(file, size, np.dtype(kind).itemsize * count), kind)


def _bytes(file: BinaryIO, size: int, count: int) -> bytes:
  """Reads bytes; a damaged file may ask for more than it has (EOFError)."""
  data = file.read(count) if count <= size else b''
  if len(data) < count:
    raise EOFError
  return data


def is_file(name: str | os.PathLike[str]) -> bool:
  """Returns whether a name is one of a file; Ollama's do not end with .gguf."""
  return os.fspath(name).endswith('.gguf') or (
      pathlib.Path(name).expanduser().is_file())
