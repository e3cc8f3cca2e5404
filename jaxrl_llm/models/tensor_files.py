"""Tensors in safetensors files: one file, or shards with an index.

Files are looked through before anything is read: names, shapes, types and
lengths are known from their headers. Tensors are then read one at a time, a
slice of each if need be, and no file stays open in between: pages of an open
file would count as memory of the process.
"""

import json
import pathlib
from typing import Iterable, NamedTuple

import numpy as np
from safetensors import safe_open, SafetensorError
from safetensors.numpy import save_file

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


class Tensor(NamedTuple):
  """Where a tensor is, and what it is.

  Attributes:
    path: the file.
    name: in the file.
    shape: sizes of its axes.
    dtype: as safetensors spells it: 'F32', 'BF16', ...
  """
  path: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """A slice of the tensor, in its own type."""
    with safe_open(self.path, 'numpy') as file:
      if not self.shape:
        return file.get_tensor(self.name)
      return file.get_slice(self.name)[index]


def find(folder: pathlib.Path) -> dict[str, Tensor]:
  """All tensors of a checkpoint, by name; only headers are read.

  Args:
    folder: with `model.safetensors`, or with shards and their index.

  Returns:
    Name to Tensor.

  Raises:
    ValueError: there is no such file, one is missing, cut off or damaged, or
      the index and the shards contradict each other.
  """
  if (folder / INDEX).exists():
    try:
      index = json.loads((folder / INDEX).read_text())
      places = dict(index['weight_map'])
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(
          f'{folder / INDEX} is damaged ({type(error).__name__}: {error}): '
          'fetch it again.') from None
    files = sorted(set(places.values()))
  elif (folder / SINGLE).exists():
    places, files = None, [SINGLE]
  else:
    raise ValueError(
        f'{folder} has no {SINGLE} and no {INDEX}: save the model with '
        'safe_serialization, or name another folder.')
  found = {}
  for name in files:
    found.update((t.name, t) for t in _header(folder / name))
  for name, file in (places or {}).items():
    if name not in found or found[name].path.name != file:
      raise ValueError(
          f'{folder / INDEX} says that {file} holds {name}, but it does not: '
          'fetch both again.')
  return found


def _header(path: pathlib.Path) -> Iterable[Tensor]:
  """The tensors of one file."""
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
  """Writes tensors into as few files as their size allows.

  Args:
    folder: there is such a folder, without other tensors.
    tensors: (name, array) pairs; no more than one file's are held at a time.
    shard_bytes: size that no file is to exceed (one tensor always fits).
  """
  shards, waiting, size, places = 0, {}, 0, {}

  def flush():
    nonlocal shards, waiting, size
    shards += 1
    save_file(waiting, folder / _part(shards), metadata={'format': 'pt'})
    places.update(dict.fromkeys(waiting, shards))
    waiting, size = {}, 0

  total = 0
  for name, array in tensors:
    if waiting and size + array.nbytes > shard_bytes:
      flush()
    waiting[name] = array
    size += array.nbytes
    total += array.nbytes
  flush()
  if shards == 1:
    (folder / _part(1)).rename(folder / SINGLE)
    return
  names = {
      i: f'model-{i:05d}-of-{shards:05d}.safetensors'
      for i in range(1, shards + 1)}
  for i, name in names.items():
    (folder / _part(i)).rename(folder / name)
  (folder / INDEX).write_text(json.dumps({
      'metadata': {'total_size': total},
      'weight_map': {name: names[i] for name, i in places.items()}}, indent=1))


def _part(shard: int) -> str:
  """Name of a shard while nobody knows yet how many there will be."""
  return f'part-{shard}.safetensors'
