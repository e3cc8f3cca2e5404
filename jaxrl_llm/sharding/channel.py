"""Exchange of small values between the processes of a run."""

import collections
import functools
import json
import pickle
import threading
from typing import Any, Mapping

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from jaxrl_llm.types import Stopped

# Bytes that a process sends at once; few, since each compiles a program. A
# message begins with at most `_BEGIN`, so that short ones stay fast after a
# long one.
_SIZES = tuple(1 << bits for bits in (12, 16, 20, 22))
_BEGIN = 1 << 16
_HEAD = 8  # bytes that hold the length of a message


def _fitting(length: int) -> int:
  """Returns the least size that holds a message; the largest if none does."""
  return next((size for size in _SIZES if size >= length), _SIZES[-1])


class Channel:
  """Exchange of small values between all processes, over the devices.

  All processes must make the same calls in the same order. Each call also
  spreads requests to stop, so that all processes learn of them in one call.

  Attributes:
    index: number of this process.
    count: number of processes.
    stopping: whether a process had been asked to stop at the latest call.
  """

  def __init__(self):
    self.index, self.count = jax.process_index(), jax.process_count()
    self.stopping = False
    self._asked = threading.Event()
    self._size = _SIZES[0]

  @property
  def first(self) -> bool:
    """True in the process that writes files, logs and the display."""
    return self.index == 0

  def listen_to(self, asked: threading.Event) -> None:
    """Takes the event that asks all processes to stop, once it is set."""
    self._asked = asked

  def check(self) -> None:
    """Raises Stopped if a process had been asked to stop at the latest call."""
    if self.stopping:
      self.stopping = False
      self._asked.clear()
      raise Stopped('Stopped; the same command goes on where it stopped.')

  def gather(self, value: Any = None) -> list[Any]:
    """Returns the value of each process: numbers, texts, arrays, lists of them.
    """
    if self.count == 1:
      self.stopping |= self._asked.is_set()
      return [value]
    sent = pickle.dumps((self._asked.is_set(), value))  # a tenth of JSON's time
    asked, values = zip(*map(pickle.loads, self.gather_bytes(sent)))
    self.stopping |= any(asked)
    return [*values]

  def gather_bytes(self, sent: bytes) -> list[bytes]:
    """Returns the message of each of several processes."""
    message, size = len(sent).to_bytes(_HEAD, 'little') + sent, self._size
    beginnings = self._exchange(message[:size], size)
    lengths = [
        int.from_bytes(row[:_HEAD].tobytes(), 'little') for row in beginnings]
    # All processes see all lengths, so that all make the same further calls.
    parts, done, total = [beginnings], size, max(lengths) + _HEAD
    while done < total:
      size = _fitting(total - done)
      parts.append(self._exchange(message[done:done + size], size))
      done += size
    self._size = max(self._size, min(_fitting(total), _BEGIN))
    return [
        row[_HEAD:_HEAD + length].tobytes()
        for row, length in zip(np.concatenate(parts, 1), lengths)]

  def _exchange(self, part: bytes, size: int) -> np.ndarray:
    """Returns [processes, size] uint8, a row of each process."""
    row = np.zeros((1, size), np.uint8)
    row[0, :len(part)] = np.frombuffer(part, np.uint8)
    mesh, replicate = _between_processes()
    with jax.transfer_guard('allow'):
      mine = [jax.device_put(row, device) for device in mesh.local_devices]
      rows = replicate(jax.make_array_from_single_device_arrays(
          (self.count, size), NamedSharding(mesh, P('process')), mine))
      return np.asarray(rows.addressable_data(0))

  def agree(self, named: Mapping[str, Any], when: str) -> None:
    """Compares values between processes, and spreads requests to stop.

    Args:
      named: name to a JSON value.
      when: for the error, such as 'after step 7'.

    Raises:
      ValueError: a process has another value than the first one.
    """
    ours, *others = self.gather(dict(named))
    for number, theirs in enumerate(others, 1):
      for name in {**ours, **theirs}:
        first, other = ours.get(name), theirs.get(name)
        if first != other:
          raise ValueError(
              f'{name} differs {when}: it is {_short(first)} in process 0 and '
              f'{_short(other)} in process {number}. Start all processes with '
              'the same config, files and versions.')


@functools.cache
def mover(layout: NamedSharding) -> Any:
  """Returns a program that gives an array, or a tree of them, a layout."""
  return jax.jit(lambda x: x, out_shardings=layout)


@functools.cache
def _between_processes() -> tuple[Mesh, Any]:
  """Returns the mesh of all devices by process, and a program on it.

  A CPU orders the collectives of programs on all devices. One on some of them
  would run beside the others and take their messages.
  """
  held = collections.Counter(device.process_index for device in jax.devices())
  for index, count in held.items():
    if count != held[0]:
      raise ValueError(
          f'Process {index} has {count} devices, and process 0 has {held[0]}: '
          'start all processes with the same config, on hosts of one kind.')
  mesh = Mesh(
      np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
               ).reshape(jax.process_count(), -1), ('process', 'local'))
  return mesh, mover(NamedSharding(mesh, P()))


def _short(value: Any) -> str:
  text = json.dumps(value)
  return text if len(text) <= 100 else f'{text[:97]}...'
