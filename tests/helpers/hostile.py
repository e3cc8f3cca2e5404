"""Hostile programs, and a world outside of the sandbox that they attack."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Iterator

from jaxrl_llm.rewards import sandbox
from jaxrl_llm.rewards.sandbox import process

FOLDER = pathlib.Path(__file__).parents[1] / 'rewards/sandbox/hostile'
TESTS = sandbox.Suite((
    'assert add(1, 2) == 3', 'assert add(-5, 5) == 0',
    "assert add('a', 'b') == 'ab'", 'assert add(10**20, 1) == 10**20 + 1',
    'assert add(0.5, 0.25) == 0.75'), entries=('add',))
GOOD = 'def add(a, b):\n  return a + b\n'
LIMITS = sandbox.ProgramLimits(seconds=1, wall=6)


@dataclasses.dataclass(frozen=True)
class Case:
  """A hostile program.

  Attributes:
    name: of its file.
    source: with placeholders; see `World.program`.
    want: 'fail' (no full reward), 'pass' (a full one), or 'some' (any; only no
      harm must be done).
    kind: of the verdict; '' for any.
    twice: whether it must run twice.
    danger: whether it must never run without a pid namespace.
  """
  name: str
  source: str
  want: str
  kind: str
  twice: bool
  danger: bool


def case(name: str) -> Case:
  """Reads a case."""
  source = (FOLDER / f'{name}.py').read_bytes().decode('utf-8')
  said = dict(re.findall(r'^# (\w+): (.*?)\r?$', source, re.MULTILINE))
  return Case(name, source, said['want'], said.get('kind', ''),
              said.get('twice') == 'yes', said.get('danger') == 'yes')


def names() -> list[str]:
  """Returns the names of all cases."""
  return sorted(path.stem for path in FOLDER.glob('*.py'))


class World:
  """Targets of hostile programs, which read, change or kill."""

  def __init__(self, folder: pathlib.Path, executor: sandbox.Executor):
    self.secret = secrets.token_hex(16)
    self.canary, self.drop = folder / 'canary', folder / 'drop'
    self.canary.write_text(self.secret)
    self.drop.mkdir()
    # Other tests, in other processes, leave theirs elsewhere.
    self.temporary, tempfile.tempdir = tempfile.tempdir, str(folder / 'tmp')
    pathlib.Path(tempfile.tempdir).mkdir()
    self.drop.chmod(0o777)
    os.environ['JAXRL_SECRET'] = self.secret
    self.victim = subprocess.Popen(
        [sys.executable, '-c', 'import time; time.sleep(3600)'])
    self.listener = socket.create_server(('127.0.0.1', 0))
    self.callers = 0
    threading.Thread(target=self._listen, daemon=True).start()
    executor.check(GOOD, TESTS, limits=LIMITS)  # which starts what it keeps
    self.before = self._seen()

  def _listen(self) -> None:
    while True:
      try:
        caller, _ = self.listener.accept()
      except OSError:
        return
      self.callers += 1
      with caller, contextlib.suppress(OSError):
        caller.sendall(b'hello')

  def close(self) -> None:
    """Ends the victim and the listener."""
    self.victim.kill()
    self.victim.wait()
    self.listener.close()
    tempfile.tempdir = self.temporary
    del os.environ['JAXRL_SECRET']

  def program(self, source: str) -> str:
    """Fills in the placeholders."""
    values = {
        'CANARY': self.canary, 'DROP': self.drop, 'VICTIM': self.victim.pid,
        'PORT': self.listener.getsockname()[1], 'HOME': pathlib.Path.home(),
        'SECRET_HASH': hashlib.sha256(self.secret.encode()).hexdigest()}
    for name, value in values.items():
      source = source.replace(f'{{{{{name}}}}}', str(value))
    return source

  def harm(self) -> list[str]:
    """Returns what has changed since the world was made."""
    found = []
    if not self.canary.exists() or self.canary.read_text() != self.secret:
      found.append('the canary has changed')
    if any(self.drop.iterdir()):
      found.append('there is a file in the drop folder')
    if self.victim.poll() is not None:
      found.append('the victim is dead')
    if self.callers:
      found.append('the network was reached')
    end = time.monotonic() + 2  # until what has just been killed is gone
    while (more := self._more()) and time.monotonic() < end:
      time.sleep(0.01)
    return found + more

  def _more(self) -> list[str]:
    """Returns what has become more."""
    found = []
    for name, now in self._seen().items():
      before = self.before[name]
      if len(now) > len(before) or name == 'priority' and now != before:
        found.append(f'{name}: {sorted(now - before)}')
    return found

  def _seen(self) -> dict[str, set]:
    """Returns what must not become more."""
    return {
        'processes': {*process.tree(os.getpid())},
        'descriptors': _descriptors(),
        'temporary files': {*os.listdir(tempfile.gettempdir())},
        'priority': {os.getpriority(os.PRIO_PROCESS, 0)}}


def _descriptors() -> set[str]:
  """Returns the open descriptors of this process, and what they are."""
  found = set()
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError):  # that of the listing itself is closed
      found.add(f'{name} {os.readlink(f"/proc/self/fd/{name}")}')
  return found


@contextlib.contextmanager
def world(
    folder: pathlib.Path, executor: sandbox.Executor) -> Iterator[World]:
  """Makes a world in a folder."""
  made = World(folder, executor)
  try:
    yield made
  finally:
    made.close()
