"""Runs a piece of Python in a fresh process with emulated CPU devices.

The number of CPU devices is fixed when JAX starts, so a test that needs eight
runs its body in a child process and compares what that printed.
"""

import inspect
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Without LLVM's optimisations programs of these sizes compile in half the time;
# XLA's own stay.
QUICK = '--xla_backend_optimization_level=0'

# Where it can be had, the extra `test` brings it: nothing is skipped on Linux.
needs_libtpu = pytest.mark.skipif(
    sys.platform != 'linux', reason='libtpu, of the extra aot, is for Linux')


def run(what: str | Callable[..., Any], *args: Any, devices: int | None = 8,
        timeout: float = 300) -> Any:
  """Runs `what` where JAX sees `devices` CPU devices.

  Args:
    what: a function at the top level of a module or test file, whose result
      can be written as JSON; or a snippet that prints JSON on its last line.
    *args: JSON-able arguments of the function.
    devices: how many devices to emulate; None leaves it to `what`.
    timeout: seconds.

  Returns:
    The function's result, or the snippet's last line, decoded.

  Raises:
    RuntimeError: the child failed; the message ends with what it wrote.
  """
  if callable(what):
    what = (
        'import json, runpy\n'
        f'f = runpy.run_path({inspect.getfile(what)!r})[{what.__name__!r}]\n'
        f'print(json.dumps(f(*json.loads({json.dumps(args)!r}))))')
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
  env['XLA_FLAGS'] = QUICK
  if devices is not None:
    env['XLA_FLAGS'] += f' --xla_force_host_platform_device_count={devices}'
  child = subprocess.run(
      [sys.executable, '-c', what], env=env, cwd=ROOT, timeout=timeout,
      capture_output=True, text=True, check=False)
  if child.returncode:
    raise RuntimeError(
        f'A child with {devices} devices ended with {child.returncode}:\n'
        f'{child.stdout[-2000:]}\n{child.stderr[-4000:]}')
  return json.loads(child.stdout.splitlines()[-1])
