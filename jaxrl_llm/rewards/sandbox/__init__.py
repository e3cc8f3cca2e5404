"""Runs programs that a model wrote where they can do no harm.

An executor runs a program in a sandbox:

  bubblewrap.BubblewrapExecutor  namespaces of Linux; the one to use
  unsafe.SubprocessExecutor      a process with limits; stops accidents only
  remote.RemoteExecutor          asks a machine that runs `serve`

`check` judges a program by tests. The verdict never comes from the interpreter
that runs the program: tests run in a second sandbox, see `guest/checker.py`.
docs/sandbox.md says where each works, and which attacks it stops.
"""

from jaxrl_llm.rewards.sandbox.protocol import (
  DEFAULTS,
  Executor,
  Outcome,
  ProgramLimits,
  Result,
  SandboxError,
  Suite,
)

__all__ = (
    'DEFAULTS', 'Executor', 'Outcome', 'ProgramLimits', 'Result',
    'SandboxError', 'Suite', 'make')


def make(
    name: str = 'bubblewrap', *, allow_unsafe: bool = False, address: str = '',
    token: str = '') -> Executor:
  """Makes an executor.

  Args:
    name: 'bubblewrap', 'subprocess' or 'remote'.
    allow_unsafe: must be True for 'subprocess'.
    address: of the service, for 'remote', such as http://10.0.0.5:8037.
    token: file with the token of the service, for 'remote'.

  Raises:
    ValueError: the executor is not known, or does not work here. The message
      has the remedy.
  """
  if name == 'bubblewrap':
    from jaxrl_llm.rewards.sandbox.bubblewrap import BubblewrapExecutor
    return BubblewrapExecutor()
  if name == 'subprocess':
    from jaxrl_llm.rewards.sandbox.unsafe import SubprocessExecutor
    return SubprocessExecutor(allow_unsafe=allow_unsafe)
  if name == 'remote':
    from jaxrl_llm.rewards.sandbox.remote import RemoteExecutor
    return RemoteExecutor(address=address, token_file=token)
  raise ValueError(
      f'The sandbox {name!r} is not known: use bubblewrap, subprocess or '
      'remote.')
