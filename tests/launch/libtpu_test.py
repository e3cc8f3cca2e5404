"""Tests that programs find no libtpu, a compiler here, where there is no TPU.
"""

import contextlib
import fcntl
import glob
import os
import pathlib
import subprocess
import sys

import pytest

from jaxrl_llm import cli
from tests.helpers import devices

pytestmark = devices.needs_libtpu
LOCK = pathlib.Path('/tmp/libtpu_lockfile')


@pytest.fixture(name='env')
def _env(monkeypatch):
  """Environment of a user who chose nothing."""
  for name in [n for n in os.environ if n.startswith(('JAX_', 'TPU_'))]:
    monkeypatch.delenv(name)
  monkeypatch.setenv('TPU_LIBRARY_PATH', '')  # what is set goes
  return monkeypatch


@pytest.mark.parametrize('variable, value, hidden', [
    ('JAX_PLATFORMS', '', True), ('JAX_PLATFORMS', 'tpu,cpu', False),
    ('JAX_PLATFORMS', 'cpu', False), ('JAX_FORCE_TPU_INIT', '1', False),
    ('TPU_LIBRARY_PATH', '', True),
    ('TPU_LIBRARY_PATH', '/mine/libtpu.so', False)])
def test_hidden_unless_the_user_chose(env, tmp_path, variable, value, hidden):
  env.setenv(variable, value)
  before = dict(os.environ)
  node = tmp_path / 'accel0'
  node.touch()
  patterns = [f'{tmp_path}/vfio*', f'{tmp_path}/accel*']
  with cli.starting(patterns):
    assert os.environ == before
  node.unlink()
  with cli.starting(patterns):
    assert os.environ == before | (
        {'TPU_LIBRARY_PATH': cli.__file__} if hidden else {})


def python(code):
  return subprocess.run(
      [sys.executable, '-c', code], cwd=devices.ROOT, capture_output=True,
      text=True, check=False)


@pytest.mark.skipif(any(map(glob.glob, cli._TPUS)), reason='there is a TPU')
def test_a_program_says_nothing_and_loads_no_libtpu(env):
  out = python('from jaxrl_llm import cli\nwith cli.starting():\n  import jax\n'
               'print(jax.devices(), *open("/proc/self/maps"))')
  assert (out.returncode, out.stderr) == (0, '')
  assert 'libjax' in out.stdout and 'libtpu' not in out.stdout
  assert 'CpuDevice' in out.stdout or 'Cuda' in out.stdout


def test_the_compiler_works_beside_a_program_that_has_its_lock(env):
  env.delenv('TPU_LIBRARY_PATH')
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
