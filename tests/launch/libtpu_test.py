"""Tests that libtpu, a compiler here, is hidden where there is no TPU."""

import contextlib
import fcntl
import glob
import os
import pathlib
import subprocess
import sys

import pytest

import jaxrl_llm
from tests.helpers import devices

pytestmark = devices.needs_libtpu
LOCK = pathlib.Path('/tmp/libtpu_lockfile')


@pytest.fixture(name='env')
def _env(monkeypatch):
  """Environment of a user who chose nothing, with libtpu as it is installed."""
  import libtpu
  for name in [n for n in os.environ if n.startswith(('JAX_', 'TPU_'))]:
    monkeypatch.delenv(name)
  monkeypatch.setattr(libtpu, 'get_library_path', lambda: OWN)
  return monkeypatch


OWN = '/of/libtpu.so'


@pytest.mark.parametrize('variable, value, hidden', [
    ('JAX_PLATFORMS', '', True), ('JAX_PLATFORMS', 'tpu,cpu', False),
    ('JAX_PLATFORMS', 'cpu', False), ('JAX_FORCE_TPU_INIT', '1', False),
    ('TPU_LIBRARY_PATH', '', True), ('TPU_LIBRARY_PATH', OWN, True),
    ('TPU_LIBRARY_PATH', '/mine/libtpu.so', False)])
def test_hidden_unless_the_user_chose(env, tmp_path, variable, value, hidden):
  """And the environment has nothing that was not there."""
  env.setenv(variable, value)
  import libtpu
  before = dict(os.environ)
  node = tmp_path / 'accel0'
  node.touch()
  patterns = [f'{tmp_path}/vfio*', f'{tmp_path}/accel*']
  jaxrl_llm._hide_libtpu(patterns)
  assert os.environ == before and libtpu.get_library_path() == OWN
  node.unlink()
  jaxrl_llm._hide_libtpu(patterns)
  assert libtpu.get_library_path() == (jaxrl_llm.__file__ if hidden else OWN)
  if hidden:  # What is left of libtpu's own import would be found again.
    before.pop('TPU_LIBRARY_PATH', None)
  assert os.environ == before


def test_a_path_that_was_there_before_libtpu_is_the_users(env):
  import libtpu
  path = str(pathlib.Path(libtpu.__file__).with_name('libtpu.so'))
  env.setenv('TPU_LIBRARY_PATH', path)
  env.delitem(sys.modules, 'libtpu')
  jaxrl_llm._hide_libtpu([])
  assert os.environ['TPU_LIBRARY_PATH'] == path
  assert sys.modules['libtpu'].get_library_path() == path


def test_without_libtpu_nothing_is_set(env):
  env.setitem(sys.modules, 'libtpu', None)
  jaxrl_llm._hide_libtpu([])
  assert 'TPU_LIBRARY_PATH' not in os.environ


def python(code):
  return subprocess.run(
      [sys.executable, '-c', code], cwd=devices.ROOT, capture_output=True,
      text=True, check=False)


@pytest.mark.skipif(
    any(map(glob.glob, jaxrl_llm._TPUS)), reason='there is a TPU')
@pytest.mark.parametrize('modules', ['jaxrl_llm, jax', 'jax, jaxrl_llm'])
def test_a_program_says_nothing_and_loads_no_libtpu(env, modules):
  """Also if JAX is imported first; and nothing is left to its children."""
  out = python(f'import {modules}, os; jax.devices()\n'
               'print(*open("/proc/self/maps"))\n'
               'print(os.environ.get("TPU_LIBRARY_PATH"))')
  assert (out.returncode, out.stderr) == (0, '')
  assert 'libjax' in out.stdout and 'libtpu' not in out.stdout
  assert out.stdout.endswith('\nNone\n')


def test_the_compiler_works_beside_a_program_that_has_its_lock(env):
  env.setenv('ALLOW_MULTIPLE_LIBTPU_LOAD', '0')
  with contextlib.ExitStack() as stack:
    if not LOCK.exists():
      stack.callback(LOCK.unlink, missing_ok=True)
    with contextlib.suppress(OSError):  # another program has it: as good
      lock = stack.enter_context(LOCK.open('a'))
      fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    out = python('from jaxrl_llm.launch.aot import chips\n'
                 'print(len(chips.topology("v5e:2x2").devices))')
  assert (out.returncode, out.stdout, out.stderr) == (0, '4\n', '')
