"""Tests of the settings of a CPU that make programs on it faster."""

import os
import platform
import subprocess
import sys
import textwrap
import types

import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding, train
from jaxrl_llm.sharding import cpu
from tests.helpers import tiny

KEPT = [(-1, -1), (-4, 0), (-8, 1)]  # malloc.h: M_TRIM_THRESHOLD and so on


class _Library:
  """A C library whose `mallopt` writes down its calls."""

  def __init__(self, name):
    self.mallopt = lambda *call: self.calls.append(call)

  calls = []


@pytest.fixture(name='calls')
def _calls(monkeypatch):
  monkeypatch.setattr(_Library, 'calls', [])
  monkeypatch.setattr(cpu.ctypes, 'CDLL', _Library)
  monkeypatch.setattr(cpu, '_kept', {})
  return lambda: _Library.calls


@pytest.mark.parametrize('choice, platforms, device, large, kept', [
    (None, 'cpu', True, True, True),
    (None, 'cpu', True, False, False),
    (None, None, False, True, True),
    (None, None, True, True, False),
    (None, 'cuda,cpu', False, True, False),
    (True, 'tpu', True, False, True),
    (False, 'cpu', False, True, False),
])
def test_memory_is_kept_for_large_models_where_jax_can_only_use_a_cpu(
    calls, monkeypatch, tmp_path, choice, platforms, device, large, kept):
  monkeypatch.setattr(cpu, '_ACCELERATORS', (
      f'{tmp_path}/accel*', f'{tmp_path}/nvidia[0-9]*'))
  if device:
    (tmp_path / 'nvidia0').touch()
  monkeypatch.setattr(cpu, 'jax', types.SimpleNamespace(
      config=types.SimpleNamespace(jax_platforms=platforms)))
  sharding.keep_memory(choice, large=large)
  assert calls() == (KEPT if kept else [])


def test_a_run_that_is_called_leaves_the_process_as_it_is(
    parts, reuse, monkeypatch, tmp_path):
  """Only the program, whose process ends with it, keeps memory."""
  choices, config = [], tiny.load(tmp_path, steps=0, mesh__keep_memory=False)
  monkeypatch.setattr(
      sharding, 'keep_memory', lambda *args, **more: choices.append(
          (*args, more)))
  reuse(parts)
  train.train(config)
  assert not choices
  monkeypatch.setattr(
      train.config_lib, 'parse', lambda *_, **__: (config, 'name'))
  monkeypatch.setattr(sys, 'argv', ['train'])
  train.main()
  assert choices == [(False, dict(large=False))]


@pytest.mark.parametrize('fields, large', [
    ({}, False), (dict(model__preset='qwen3-1.7b'), True),
    (dict(model__hf='some/model'), True),
    (dict(actor__model__preset='tiny'), False),
    (dict(actor__model__hf='some/model'), True)])
def test_which_models_are_large(fields, large):
  flat = config_lib.flatten(tiny.load())
  flat.update({k.replace('__', '.'): v for k, v in fields.items()})
  if 'model__preset' in fields:  # not of the sizes of the small one
    flat.update({name: None for name in flat if name.startswith('model.')
                 and name != 'model.preset'})
  config = config_lib.complete(flat, {}, 'name')
  assert config_lib.is_large(config) == large


def test_another_c_library_is_left_as_it_is(monkeypatch):
  monkeypatch.setattr(cpu.ctypes, 'CDLL', lambda name: object())
  sharding.keep_memory(True)  # no error


def test_memory_is_returned_once_for_each_growth(monkeypatch):
  trimmed = []
  monkeypatch.setattr(cpu.ctypes, 'CDLL', lambda name: types.SimpleNamespace(
      mallopt=lambda *call: 1, malloc_trim=trimmed.append))
  monkeypatch.setattr(cpu, '_kept', {})
  pages = iter([100, 119, 121, 200, 239, 241, 150, 179, 181, 500, 100])
  monkeypatch.setattr(cpu, '_resident', lambda: next(pages))
  cpu.return_memory()  # nothing is kept: it reads no size
  sharding.keep_memory(True)
  counts = []
  for _ in range(10):
    cpu.return_memory()
    counts.append(len(trimmed))
  # The calls with 100, 200, 150 and 500 pages set limits of 1.2 times as many.
  assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
  sharding.keep_memory(True)  # of the next run
  cpu.return_memory()
  assert len(trimmed) == 3 and cpu._kept == {'most': 120}


@pytest.mark.skipif(
    platform.libc_ver()[0] != 'glibc', reason='only glibc has these settings')
@pytest.mark.parametrize('keep', [True, False])
def test_a_process_keeps_the_memory_of_its_programs(keep):
  # 128 MB is more than an arena of glibc holds (64 MB), and more than its
  # largest threshold for returning memory at once (32 MB).
  program = textwrap.dedent(f'''
      import pathlib
      from jaxrl_llm import sharding
      from jaxrl_llm.sharding import cpu
      sharding.keep_memory({keep})
      import jax, jax.numpy as jnp

      def resident():
        return int(pathlib.Path('/proc/self/statm').read_text().split()[1])

      make = jax.jit(jnp.full, static_argnums=0).lower(2**25, 0.).compile()
      print(resident())
      for x in range(20):
        jax.block_until_ready(make(float(x))).delete()
        cpu.return_memory()
        print(resident())
      ''')
  before, first, *later = map(int, subprocess.run(
      [sys.executable, '-c', program], check=True, capture_output=True,
      text=True, env={**os.environ, 'JAX_PLATFORMS': 'cpu'}).stdout.split())
  array = 2**27 / os.sysconf('SC_PAGE_SIZE')
  if keep:
    assert first > before + .9 * array
    # Gaps that do not fit are given back. One more array is 1.3 times and more.
    assert max(later) < 1.25 * first
  else:
    assert max(first, *later) < before + .1 * array
