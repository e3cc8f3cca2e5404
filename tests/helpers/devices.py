"""Runs a function in a fresh process with emulated CPU devices.

The number of CPU devices is fixed when JAX starts. So a test that needs eight
devices runs its body in a child process and compares the result. Children are
forked from a server that has imported JAX and the package, but has not started
JAX.
"""

import inspect
import json
import multiprocessing
import os
import pathlib
import platform
import runpy
import sys
import tempfile
from typing import Any, Callable
import warnings

import jax
import pytest

from jaxrl_llm.storage import compiled

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Programs of these sizes compile in a third of the time without LLVM's
# optimisations and the newer of XLA's two ways to emit fusions; what XLA itself
# makes of a program stays. XLA refuses flags it does not know, so the second is
# for versions that are known to have it.
_EMITTERS = jax.__version__.startswith('0.10.')
QUICK = '--xla_backend_optimization_level=0' + (
    ' --xla_cpu_use_fusion_emitters=false' if _EMITTERS else '')

# For `jax.jit`: compile as users do, where the order of a sum matters.
AS_USERS = {'xla_backend_optimization_level': 3, **(
    {'xla_cpu_use_fusion_emitters': True} if _EMITTERS else {})}

_OPTION, _PROGRAMS = 'JAX_COMPILATION_CACHE_DIR', 'JAXRL_LLM_TEST_PROGRAMS'

# Where there is one, the extra `test` brings it: nothing is skipped there, and
# tests fail if it is missing.
needs_libtpu = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ('linux', 'x86_64'),
    reason='there is no libtpu (extra aot) but for Linux on x86-64')

_SERVER = multiprocessing.get_context('forkserver')
_SERVER.set_forkserver_preload(
    ['tests.helpers.devices', 'jaxrl_llm.jobs.train',
     'jaxrl_llm.launch.aot.check'])
# JAX warns of every fork; the server forks before JAX has threads.
warnings.filterwarnings('ignore', r'os\.fork\(\) was called')


def keep_programs() -> None:
  """Keeps compiled programs for the next run of the tests, and takes them.

  They are in a folder beside that of users' programs. Another one is named by
  the variable JAXRL_LLM_TEST_PROGRAMS. Nothing is kept if that is empty, or if
  the caller has set JAX's own option. What the tests themselves start keeps
  nothing, unless it is told to.
  """
  given = os.environ.get(_OPTION)
  folder = os.environ.setdefault(
      _PROGRAMS, '~/.cache/jaxrl_llm/tests' if given is None else '')
  if folder:
    os.environ.pop(_OPTION, None)
    # Those of a few milliseconds would only be many files.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.02)
    compiled.start(os.path.expanduser(folder))
  os.environ[_OPTION] = given or ''


def kept(folder: pathlib.Path) -> pathlib.Path:
  """Returns where users' programs that tests start keep theirs.

  Args:
    folder: the place if the tests keep none for their next run.
  """
  known = os.environ[_PROGRAMS]
  return pathlib.Path(known).expanduser() / 'started' if known else folder


def share_programs(patch: pytest.MonkeyPatch) -> None:
  """Lets users' programs that a test starts keep theirs there too."""
  if os.environ[_PROGRAMS]:
    patch.delenv(_OPTION)
    patch.setenv(
        'XDG_CACHE_HOME', os.path.expanduser(os.environ[_PROGRAMS]))


def run(what: Callable[..., Any], *args: Any, devices: int | None = 8,
        timeout: float = 300) -> Any:
  """Runs a function in a process with `devices` CPU devices.

  Args:
    what: top-level function of a module or test file; its result must be a JSON
      value.
    *args: arguments of the function.
    devices: number of devices to emulate; if None, `what` sets it.
    timeout: limit in seconds.

  Returns:
    The function's result, decoded from JSON.

  Raises:
    RuntimeError: the child failed; the message ends with its output.
  """
  with tempfile.TemporaryDirectory() as folder:
    child = _SERVER.Process(target=_child, args=(
        inspect.getfile(what), what.__name__, args, devices, folder))
    child.start()
    child.join(timeout)
    if child.exitcode is None:
      child.kill()
      child.join()
    if child.exitcode:
      log = pathlib.Path(folder, 'log')
      raise RuntimeError(
          f'A child with {devices} devices ended with {child.exitcode}:\n'
          f'{log.read_text()[-6000:] if log.exists() else ""}')
    return json.loads(pathlib.Path(folder, 'result').read_text())


def _child(path, name, args, devices, folder):
  """Calls a function of a file; writes its result and output to files."""
  log = os.open(pathlib.Path(folder, 'log'), os.O_WRONLY | os.O_CREAT)
  os.dup2(log, 1)
  os.dup2(log, 2)
  if devices is not None:  # conftest.py has set the others
    os.environ['XLA_FLAGS'] += (
        f' --xla_force_host_platform_device_count={devices}')
  os.chdir(ROOT)
  jax.config.update('jax_platforms', 'cpu')
  if devices == 1:
    keep_programs()
  # With jax 0.10.2, programs of several devices that were loaded from a file
  # wait for each other's collectives for ever, in most runs of reshard_test.
  result = runpy.run_path(path)[name](*args)
  pathlib.Path(folder, 'result').write_text(json.dumps(result))
