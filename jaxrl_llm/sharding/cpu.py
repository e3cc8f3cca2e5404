"""A CPU as devices: their number, and the memory of their programs."""

import ctypes
import glob
import os
import pathlib

from absl import logging
import jax

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8

_GROWTH = 1.2  # of memory since the first step, before it is returned

# The most pages to keep; None before the next call sets it; empty without
# `keep_memory`.
_kept: dict[str, float | None] = {}

# Device files of TPUs, and of NVIDIA's and AMD's GPUs.
_ACCELERATORS = ('/dev/accel*', '/dev/vfio/[0-9]*', '/dev/nvidia[0-9]*',
                 '/dev/kfd')


def split_cpu(count: int) -> None:
  """Splits a CPU into several devices, if JAX has not started yet.

  XLA runs the small products of a decode step and elementwise operations on one
  core; several devices run in parallel. A number of devices set in the JAX
  config or in XLA_FLAGS takes precedence.

  Args:
    count: number of devices.
  """
  if (jax.config.jax_num_cpu_devices != -1 or
      'xla_force_host_platform_device_count' in os.environ.get(
          'XLA_FLAGS', '')):
    return
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    if jax.default_backend() == 'cpu' and jax.device_count() != count:
      logging.warning(
          'mesh.cpu_devices=%d has no effect: JAX has already started with %d '
          'devices. Results are the same; steps may take longer.', count,
          jax.device_count())


def keep_memory(choice: bool | None, *, large: bool = True) -> None:
  """Lets this process keep the memory that it frees, for its next use.

  By default glibc returns large arrays to the system, which then clears the
  same memory again, page by page, for the next program: 10 GB in each step of a
  model of 0.6 B parameters. Other C libraries are left as they are.

  A program calls it early, before JAX starts. Threads that exist have parts of
  the heap of their own, in which it has no effect on large arrays. glibc has no
  way back, so a function that others may call does not.

  All threads then share one arena, and wait for each other in it. They wait
  longer if this process has compiled its programs. Measured on two cores: an
  update of the main job, with 0.3 million parameters, takes 1.15 times as long
  as without, and 2.2 times after compiling. A step of SmolLM2-135M takes .85 of
  the time; it takes .92 if each thread keeps an arena of its own.

  Args:
    choice: the user's; None for True if JAX can only use a CPU and the model is
      large.
    large: whether it is.
  """
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if choice is None:
    choice = large and _only_cpu()
  if mallopt is None or not choice:
    return
  mallopt(_TRIM_THRESHOLD, -1)  # never
  mallopt(_MMAP_MAX, 0)
  # Other arenas than the first cannot hold more than 64 MB.
  mallopt(_ARENA_MAX, 1)
  _kept['most'] = None


def trim_memory() -> None:
  """Returns kept memory to the system; does nothing without `keep_memory`.

  Call it once before the first use of much memory in one piece, such as that of
  a program: it does not fit into the gaps between many smaller arrays.
  """
  if 'most' in _kept:
    ctypes.CDLL(None).malloc_trim(0)


def return_memory() -> None:
  """Returns kept memory to the system if there is more and more of it.

  An array may not fit into the gap that one of the same size has left, by a few
  bytes: a program with one result of 128 MB, called 60 times, grows from 335 to
  847 MB, and with this function it stays at 332. Call it after each step. The
  first call sets the limit. The call after memory was returned sets a new one,
  because steps may need more than the first did. It does nothing without
  `keep_memory`.
  """
  if 'most' not in _kept:
    return
  resident = _resident()
  if _kept['most'] is None:
    _kept['most'] = _GROWTH * resident
  elif resident > _kept['most']:
    trim_memory()
    _kept['most'] = None


def _resident() -> int:
  """Returns the pages that this process has in memory."""
  return int(pathlib.Path('/proc/self/statm').read_text().split()[1])


def _only_cpu() -> bool:
  """Returns whether JAX can only use a CPU, without starting it."""
  platforms = jax.config.jax_platforms
  if platforms:
    return platforms == 'cpu'
  return not any(map(glob.glob, _ACCELERATORS))
