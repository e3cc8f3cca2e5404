"""Memory of the tests: what a process gives back, and how many have room."""

import contextlib
import ctypes
import gc
import pathlib

import jax
import psutil

# Bytes for a process that runs tests, with those that its tests start.
WORKER = 3_000_000_000

# More would wait for the longest file.
MOST = 8

# The limits of a container, in versions 2 and 1 of Linux's control groups.
_LIMITS = ('/sys/fs/cgroup/memory.max',
           '/sys/fs/cgroup/memory/memory.limit_in_bytes')


def clear() -> None:
  """Frees the compiled programs of this process, and returns their memory.

  The programs of all files together would take 7 GB.
  """
  jax.clear_caches()
  gc.collect()
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # glibc has it
  if trim:
    trim(0)


def free() -> int:
  """Returns the bytes that new processes can have here."""
  sizes = [psutil.virtual_memory().available]
  for limit in _LIMITS:
    with contextlib.suppress(OSError, ValueError):  # no limit says 'max'
      sizes.append(int(pathlib.Path(limit).read_text()))
  return min(sizes)


def workers(cores: int, size: int) -> int:
  """Returns how many processes run tests at a time.

  Args:
    cores: of the processor.
    size: bytes that are free.
  """
  return max(1, min(cores, MOST, size // WORKER))
