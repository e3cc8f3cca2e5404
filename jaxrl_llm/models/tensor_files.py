"""Tensors in safetensors files: one file, or shards with an index.

Files are checked before any tensor is read: their headers have the names,
shapes, types and lengths. Tensors are then read one at a time, whole or a
slice, in blocks of rows. Each block opens the file anew: the pages of an open
file count as memory of the process, so a slice would take its memory twice.
"""

import json
import math
import pathlib
from typing import Callable, Iterable, Iterator, NamedTuple

import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
import numpy as np
from safetensors import safe_open, SafetensorError
from safetensors.numpy import save_file

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_BLOCK = 2 ** 22  # numbers to read at a time


class Tensor(NamedTuple):
  """Place, shape and type of a stored tensor.

  Attributes:
    path: the file.
    name: name in the file.
    shape: sizes of the axes.
    dtype: safetensors' name of the type: 'F32', 'BF16', ...
    rows: `rows(path, rows, rest)` reads slices of the first axis and of the
      next ones; None for a safetensors file.
  """
  path: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str
  rows: Callable[..., np.ndarray] | None = None

  def blocks(
      self, index: tuple[slice, ...] = (slice(None),)) -> Iterator[np.ndarray]:
    """Reads a slice of the tensor, in its own type, in blocks of rows.

    Args:
      index: slices of the first axis and, optionally, of the next ones.

    Yields:
      Consecutive rows of the slice.

    Raises:
      ValueError: a value is not finite, so the file is damaged.
    """
    first, last, _ = index[0].indices(self.shape[0])
    step = max(1, _BLOCK // math.prod(self.shape[1:]))
    for start in range(first, last, step):
      rows = slice(start, min(start + step, last))
      if self.rows:
        block = self.rows(self.path, rows, index[1:])
      else:
        with safe_open(self.path, 'numpy') as file:
          block = file.get_slice(self.name)[(rows, *index[1:])]
      # NaN and infinity have all bits of the exponent set. np.isfinite would
      # take several times as long as reading.
      bits = block.view(f'u{block.itemsize}')
      high = np.asarray(np.inf, block.dtype).view(bits.dtype)
      if (bits & high == high).any():
        raise ValueError(
            f'{self.path}: tensor {self.name} has values that are not finite: '
            'the file is damaged, fetch it again.')
      yield block

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """Reads a slice as one array; arguments and errors as in `blocks`."""
    whole, at = None, 0
    for block in self.blocks(index):
      if whole is None:
        rows = len(range(*index[0].indices(self.shape[0])))
        whole = np.empty((rows, *block.shape[1:]), block.dtype)
      whole[at:at + len(block)] = block
      at += len(block)
    return whole


class Stack(NamedTuple):
  """Tensors of one shape as one, with a leading axis.

  Attributes:
    tensors: of the stack.
  """
  tensors: list[Tensor]

  @property
  def shape(self) -> tuple[int, ...]:
    """Sizes of the axes."""
    return len(self.tensors), *self.tensors[0].shape

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """Reads a slice as one array; arguments and errors as of `Tensor`."""
    whole, tensors = None, self.tensors[index[0]]
    for i, tensor in enumerate(tensors):
      part = tensor.read(index[1:])
      if whole is None:
        whole = np.empty((len(tensors), *part.shape), part.dtype)
      whole[i] = part
    return whole


def find(folder: pathlib.Path) -> dict[str, Tensor]:
  """Finds all tensors of a checkpoint; reads only headers.

  Args:
    folder: folder with `model.safetensors`, or with shards and their index.

  Returns:
    Name to Tensor.

  Raises:
    ValueError: there are no such files; or one is missing, cut off or damaged;
      or the index and the shards contradict each other.
  """
  places = None
  if (folder / SINGLE).exists():  # preferred, as in transformers
    paths = [folder / SINGLE]
  elif (folder / INDEX).exists():
    try:
      index = json.loads((folder / INDEX).read_text())
      places = {n: folder / file for n, file in index['weight_map'].items()}
      paths = sorted(set(places.values()))
    except (OSError, AttributeError, KeyError, TypeError,
            ValueError) as error:
      raise ValueError(
          f'{folder / INDEX} is damaged ({type(error).__name__}: {error}): '
          'fetch it again.') from None
  else:
    raise ValueError(
        f'{folder} has neither {SINGLE} nor {INDEX}: fetch it again, or, if '
        'its weights are in another format, save them with transformers.')
  tensors = {(path, t.name): t for path in paths for t in _header(path)}
  if places is not None:
    for path, name in tensors.keys() ^ {(p, n) for n, p in places.items()}:
      raise ValueError(
          f'{folder / INDEX} and {path} contradict each other about the tensor '
          f'{name}: fetch both again.')
  return {name: tensor for (_, name), tensor in tensors.items()}


def _header(path: pathlib.Path) -> Iterable[Tensor]:
  """Yields the tensors of one file."""
  try:
    with safe_open(path, 'numpy') as file:
      for name in file.keys():
        part = file.get_slice(name)
        yield Tensor(path, name, tuple(part.get_shape()), part.get_dtype())
  except FileNotFoundError:
    raise ValueError(f'{path} is missing: fetch it.') from None
  except (OSError, SafetensorError) as error:
    raise ValueError(
        f'{path} is cut off or damaged ({error}): fetch it again.') from None


def write(
    folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int) -> None:
  """Writes tensors into one file, or into shards with an index.

  Args:
    folder: an existing folder without other tensors.
    tensors: (name, array) pairs. The tensors of one file and the next tensor
      are in memory at a time.
    shard_bytes: maximum size of a file; a larger tensor has a file of its own.

  Raises:
    OSError: the files cannot be written.
  """
  shards, waiting, size, total = [], {}, 0, 0

  def flush():
    nonlocal waiting, size
    shards.append([*waiting])
    try:
      save_file(
          waiting, folder / _part(len(shards)), metadata={'format': 'pt'})
    except SafetensorError as error:
      raise OSError(
          f'The weights cannot be written to {folder} ({error}): make room, or '
          'choose another folder.') from None
    waiting, size = {}, 0

  for name, array in tensors:
    if waiting and size + array.nbytes > shard_bytes:
      flush()
    waiting[name] = array
    size += array.nbytes
    total += array.nbytes
  flush()
  if len(shards) == 1:
    (folder / _part(1)).rename(folder / SINGLE)
    return
  places = {}
  for i, names in enumerate(shards, 1):
    file = f'model-{i:05d}-of-{len(shards):05d}.safetensors'
    (folder / _part(i)).rename(folder / file)
    places |= dict.fromkeys(names, file)
  (folder / INDEX).write_text(json.dumps(
      {'metadata': {'total_size': total}, 'weight_map': places}, indent=1))


def _part(shard: int) -> str:
  """Returns a shard's temporary name, until the number of shards is known."""
  return f'part-{shard}.safetensors'
