"""Programs in namespaces of Linux, by bubblewrap.

A program has its own user, process ids, network, hostname and System V IPC. It
sees Python's standard library and the system's shared libraries, read-only, and
empty folders in memory. There is no /proc, no /sys, no shell, no network but
an empty one, and no capability; new user namespaces cannot be made. The system
calls that programs do not need are refused if the package pyseccomp is there.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import ContextManager, Iterator, Sequence

from jaxrl_llm.rewards.sandbox import local, process
from jaxrl_llm.rewards.sandbox.protocol import ProgramLimits, SandboxError

_FOLDER, _CODE = '/work', '/guest'
# Where shared libraries are. /lib is a link to usr/lib on most systems.
_LIBRARIES = '/lib', '/lib64', '/usr/lib', '/usr/lib64', '/usr/local/lib'
_DEVICES = '/dev/null', '/dev/zero', '/dev/urandom', '/dev/random'
_INSTALL = ('install it (Debian, Ubuntu: apt install bubblewrap), or choose a '
            'sandbox that docs/sandbox.md names, such as task.sandbox=remote')
_REFUSED = (
    'bubblewrap cannot make a sandbox here ({}): allow unprivileged user '
    'namespaces (in Docker: --security-opt seccomp=unconfined), or choose a '
    'sandbox that docs/sandbox.md names, such as task.sandbox=remote')
# System calls of no use to a program, some with a history of faults in kernels.
_CALLS = (
    'ptrace', 'process_vm_readv', 'process_vm_writev', 'kcmp', 'pidfd_getfd',
    'mount', 'umount2', 'pivot_root', 'chroot', 'move_mount', 'open_tree',
    'fsopen', 'fsconfig', 'fsmount', 'fspick', 'mount_setattr', 'setns',
    'unshare', 'bpf', 'perf_event_open', 'userfaultfd', 'io_uring_setup',
    'io_uring_enter', 'io_uring_register', 'add_key', 'request_key', 'keyctl',
    'kexec_load', 'init_module', 'finit_module', 'delete_module', 'reboot',
    'swapon', 'swapoff', 'acct', 'quotactl', 'personality', 'modify_ldt',
    'open_by_handle_at', 'name_to_handle_at', 'fanotify_init', 'mlock',
    'mlock2', 'mlockall', 'memfd_create', 'memfd_secret', 'vmsplice', 'syslog')


class BubblewrapExecutor(local.LocalExecutor):
  """Runs programs by bubblewrap; see the top of this file."""

  namespace = True

  def __init__(self):
    """Tries it with a program.

    Raises:
      ValueError: bubblewrap does not work here; the message has the remedy.
    """
    super().__init__()
    self._bwrap = shutil.which('bwrap')
    if not self._bwrap:
      raise ValueError(f'There is no bubblewrap here: {_INSTALL}.')
    self._fixed = _fixed_arguments(self._bwrap)
    self._filter = _filter()
    try:
      tried = self.run('print(7)')
    except SandboxError as error:
      raise ValueError(_REFUSED.format(error)) from None
    if tried.stdout != b'7\n':
      raise ValueError(_REFUSED.format(
          tried.stderr.decode(errors='replace').strip()[-200:]))

  def started(
      self, guest: local.Guest, stdin: bytes, limits: ProgramLimits,
  ) -> ContextManager[process.Process]:
    """Starts a process; see `local.LocalExecutor`."""
    return _started(
        [self._bwrap, *self._fixed], self._filter, guest, stdin, limits)

  def verify(self, ended: process.Process) -> None:
    """Raises SandboxError if bwrap could not make the sandbox."""
    if ended.popen.poll() is None:
      return
    ended.status.seek(0)
    if not ended.end and b'exit-code' not in ended.status.read():
      raise SandboxError(
          'bwrap failed: '
          + bytes(ended.output[2][-300:]).decode(errors='replace').strip())


@contextlib.contextmanager
def _started(
    bwrap: Sequence[str], seccomp: bytes, guest: local.Guest, stdin: bytes,
    limits: ProgramLimits) -> Iterator[process.Process]:
  """Starts a process by a command of bwrap, with a filter of system calls."""
  with contextlib.ExitStack() as stack:
    arguments, inherited = [], [*guest.descriptors]

    def given(data):
      inherited.append(_in_memory(stack, data))
      return str(inherited[-1])

    status = stack.enter_context(tempfile.TemporaryFile())
    inherited.append(status.fileno())
    arguments += ['--json-status-fd', str(status.fileno())]
    if seccomp:
      arguments += ['--seccomp', given(seccomp)]
    for path in _FOLDER, '/tmp':
      arguments += ['--size', str(int(limits.disk)), '--tmpfs', path]
    for name, data in guest.files.items():
      arguments += ['--file', given(data), os.path.join(_FOLDER, name)]
    # Before 5.14, Linux counts all processes of the user for RLIMIT_NPROC, not
    # those of the namespace, and a limit would hit the others.
    is_own = _version(os.uname().release) >= (5, 14)
    command = [
        *bwrap, *arguments, '--chdir', _FOLDER, '--remount-ro', '/', '--',
        *local.command(guest, _FOLDER, _CODE, limits,
                       limits.processes if is_own else -1)]
    try:
      one = guest.kind(
          command, stdin=stdin, limits=limits, descriptors=inherited,
          status=status)
    except OSError as error:
      raise SandboxError(f'bwrap cannot be started ({error})') from None
    stack.callback(one.close)
    yield one


def _in_memory(stack: contextlib.ExitStack, data: bytes) -> int:
  """Returns a descriptor of a file in memory, which the stack closes."""
  file = stack.enter_context(os.fdopen(os.memfd_create('guest'), 'wb'))
  file.write(data)
  file.flush()
  file.seek(0)
  return file.fileno()


def _fixed_arguments(bwrap: str) -> list[str]:
  """Returns the arguments of bwrap that all programs share."""
  arguments = [
      '--unshare-user', '--unshare-ipc', '--unshare-pid', '--unshare-net',
      '--unshare-uts', '--unshare-cgroup-try', '--die-with-parent',
      '--new-session', '--cap-drop', 'ALL', '--uid', '65534', '--gid', '65534',
      '--hostname', 'sandbox', '--clearenv', '--setenv', 'PYTHONHASHSEED', '0']
  said = subprocess.run([bwrap, '--version'], capture_output=True, text=True)
  if _version(said.stdout) >= (0, 8):
    arguments.append('--disable-userns')
  libraries = sysconfig.get_path('stdlib')
  seen = []
  for path in _LIBRARIES:
    if os.path.islink(path):
      arguments += ['--symlink', os.readlink(path), path]
    elif os.path.isdir(path):
      arguments += ['--ro-bind', path, path]
      seen.append(path)
  for path in (local.PYTHON, libraries, _shared(), '/etc/ld.so.cache'):
    if path and os.path.exists(path) and not any(
        os.path.commonpath([path, s]) == s for s in seen):
      arguments += ['--ro-bind', path, path]
  for path in _DEVICES:
    arguments += ['--dev-bind', path, path]
  return [*arguments, '--ro-bind', str(process.GUEST), _CODE]


def _shared() -> str:
  """Returns the path of Python's own shared library; '' if it has none."""
  folder, name = (sysconfig.get_config_var(name) or ''
                  for name in ('LIBDIR', 'INSTSONAME'))
  path = os.path.join(sys.base_prefix, 'lib', name)
  return path if os.path.isfile(path) else os.path.join(folder, name)


def _version(text: str) -> tuple[int, ...]:
  """Returns the first two numbers of a version; () if there are none."""
  found = re.search(r'(\d+)\.(\d+)', text)
  return tuple(map(int, found.groups())) if found else ()


def _filter() -> bytes:
  """Returns the filter of system calls; b'' without pyseccomp."""
  try:
    import pyseccomp
  except (ImportError, OSError, RuntimeError):
    return b''
  import errno
  made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
  for name in _CALLS:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
      made.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
  with tempfile.TemporaryFile() as file:
    made.export_bpf(file)
    file.seek(0)
    return file.read()
