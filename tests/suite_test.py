"""Tests of what runs the tests: memory, and how many processes there are."""

import gc
import types
import weakref

import jax
import numpy as np
import psutil
import pytest

from tests.helpers import memory

GB = 10**9


@pytest.mark.parametrize('cores, size, count', [
    (2, 24 * GB, 2),  # the cores decide
    (8, 6 * GB, 2), (16, 3 * GB, 1), (4, 11.9 * GB, 3),  # the memory decides
    (8, 24 * GB, 8), (64, 500 * GB, 8),
    (1, GB, 1), (4, 0, 1)])
def test_workers_have_a_core_and_memory(cores, size, count):
  assert memory.workers(cores, int(size)) == count


@pytest.mark.parametrize('limit, size', [
    ('max\n', 9 * GB), (None, 9 * GB), (f'{5 * GB}\n', 5 * GB),
    (f'{2**63 - 4096}\n', 9 * GB)])
def test_a_container_may_have_less_memory(monkeypatch, tmp_path, limit, size):
  monkeypatch.setattr(
      psutil, 'virtual_memory',
      lambda: types.SimpleNamespace(available=9 * GB))
  file = tmp_path / 'memory.max'
  if limit:
    file.write_text(limit)
  monkeypatch.setattr(memory, '_LIMITS', (str(tmp_path / 'none'), str(file)))
  assert memory.free() == size


def test_each_file_ends_with_its_programs_freed(request):
  assert 'programs' in request.fixturenames
  twice = jax.jit(lambda x: x * 2)
  twice(np.float32(1))
  assert twice._cache_size() == 1
  circle = [jax.numpy.ones(3)]
  circle.append(circle)
  array = weakref.ref(circle[0])
  gc.disable()  # it would find the circle at any time
  try:
    del circle
    assert array() is not None
    memory.clear()
  finally:
    gc.enable()
  assert twice._cache_size() == 0 and array() is None
