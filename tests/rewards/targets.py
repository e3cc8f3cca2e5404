"""Functions for a pool's workers in tests."""

import os
import pathlib
import signal
import sys
import time

hoard = []


def wait(path):
  """Waits until another process makes the file."""
  while not pathlib.Path(path).exists():
    time.sleep(0.01)
  return {'kind': 'found'}


def fail(text):
  """Raises an error with a message of many lines."""
  raise RuntimeError(text)


def keep(megabytes):
  """Allocates memory and never frees it."""
  hoard.append(b'x' * (megabytes << 20))
  return {'kind': 'kept', 'items': len(hoard)}


def deaf(path):
  """Ignores what can be ignored, notes its process, and sleeps."""
  for name in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
  pathlib.Path(path).write_text(f'{os.getpid()} {os.getppid()}')
  time.sleep(1000)


def fork(how):
  """Forks; the new process returns, or ends as a program does."""
  if os.fork() == 0 and how == 'exit':
    sys.exit(0)
  return {'kind': how}


ACTIONS = {
    'say': lambda text: {'kind': text},
    'spin': lambda _: 9 ** 9 ** 9,  # in C: no signal handler would run
    'wait': wait,
    'fork': fork,
    'deaf': deaf,
    'touch': lambda path: pathlib.Path(path).touch() or {'kind': 'touched'},
    # The session is its parent's own; an orphan's parent would be another.
    'pids': lambda _: {'kind': 'pids', 'own': os.getpid(),
                       'parent': os.getsid(0)},
    'die': lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    'die whole': lambda _: os.killpg(0, signal.SIGKILL),
    'exit': lambda code: sys.exit(code),
    'raise': lambda text: int(text),
    'fail': fail,
    'recurse': lambda x: ACTIONS['recurse'](x),
    'memory': lambda size: {'kind': str(len(b'x' * size))},
    'keep': keep,
    'print': lambda text: print(text, flush=True) or {'kind': 'printed'},
    'read': lambda _: {'kind': repr(sys.stdin.read())},
    'object': lambda _: {'kind': object()},
    'nothing': lambda _: None,
}


def act(item):
  """Performs the action that the item names."""
  name, argument = item
  return ACTIONS[name](argument)
