"""Frames over pipes, and the calls of two processes to one another.

A frame is the number of a test, a letter for its kind, and bytes. Kinds:

  l  the program is loaded: a literal of None, or of (kind, detail) if it fails
  t  begin of a test: the program's process forks a child for it
  o  end of a test: that child may go
  e  the child has ended: a literal of the reason, (kind, detail)
  q  a question to the other side: (operation, arguments ...)
  a  its answer: ('value', value, changed arguments), or ('error', names of the
     types, arguments, text, error if its type is no built-in one); of a
     function of the test's (True, value), or (False, (name of the type, text))
  v  verdict of the child that runs a test: (kind, detail)
"""

import _signal as signal  # signal itself imports enum: 10 ms a program
import builtins
import os
import select
import sys
import time

# Bytes of a frame. Larger results count as an error of the program.
LONGEST = 16_000_000
_HEAD = 9
# Both sides run the same Python.
BUILTINS = sorted(dir(builtins))


class Closed(Exception):
  """Raised if the other side has ended."""


class PipeEnd:
  """One end of two pipes, one for each direction."""

  def __init__(self, reads, writes, data=b''):
    self.reads, self.writes, self._data = reads, writes, bytearray(data)

  def send(self, number, kind, data=b''):
    """Sends a frame.

    Raises:
      Closed: the other side has ended.
      ValueError: the frame is too long.
    """
    if len(data) > LONGEST:
      raise ValueError('a value is too large')
    view = memoryview(
        number.to_bytes(4, 'big') + kind + len(data).to_bytes(4, 'big') + data)
    try:
      while view:
        view = view[os.write(self.writes, view):]
    except OSError:
      raise Closed from None

  def receive(self, deadline=None):
    """Waits for a frame.

    Args:
      deadline: time at which to stop waiting, by time.monotonic.

    Returns:
      The number, kind and bytes of the frame; None at the deadline.

    Raises:
      Closed: the other side has ended, or sent no valid frame.
    """
    while True:
      if frame := self.waiting():
        return frame
      if deadline is not None and not select.select(
          [self.reads], [], [], max(0, deadline - time.monotonic()))[0]:
        return None
      self.read()

  def read(self):
    """Reads the bytes that are there; waits if there are none."""
    try:
      data = os.read(self.reads, 1 << 16)
    except OSError:
      data = b''
    if not data:
      raise Closed
    self._data += data

  def waiting(self):
    """Returns the next frame that has been read, or None."""
    data = self._data
    if len(data) < _HEAD:
      return None
    end = _HEAD + int.from_bytes(data[5:_HEAD], 'big')
    if end > _HEAD + LONGEST:
      raise Closed
    if len(data) < end:
      return None
    frame = int.from_bytes(data[:4], 'big'), bytes(data[4:5]), bytes(
        data[_HEAD:end])
    del data[:end]
    return frame

  def close(self):
    """Closes both pipes."""
    os.close(self.reads)
    os.close(self.writes)


def fork():
  """Forks a child with a channel to it.

  Returns:
    Its process id, which is 0 in the child, and the channel to the other one.
  """
  down, up = os.pipe(), os.pipe()
  mine, other = (up[0], down[1]), (down[0], up[1])
  child = os.fork()
  if not child:
    mine, other = other, mine
  for end in other:
    os.close(end)
  return child, PipeEnd(*mine)


def relay(outer, inner, number, seconds):
  """Passes the frames of a test on, until one side is done.

  Args:
    outer: channel to the other sandbox.
    inner: channel to the child that does the test here.
    number: of the test; frames of other tests are dropped.
    seconds: time limit.

  Returns:
    Why it ended: b'v' (the verdict), b'o' (over), b'' (the child has ended), or
    b't' (time limit); the bytes of that frame; and those of the frame b'e' if
    there was one, else None.

  Raises:
    Closed: the other sandbox has ended.
  """
  deadline = time.monotonic() + seconds
  end = None
  while True:
    # The child comes first: with a verdict, nothing else matters.
    while frame := inner.waiting():
      if frame[1] == b'v':
        return b'v', frame[2], end
      if end is None:
        outer.send(number, *frame[1:])
    while frame := outer.waiting():
      if frame[0] != number:
        continue
      if frame[1] == b'o':
        return b'o', b'', end
      if frame[1] == b'e':
        end = frame[2]
      try:
        inner.send(*frame)
      except Closed:
        return b'', b'', end
    ready, _, _ = select.select(
        [outer.reads, inner.reads], [], [],
        max(0, deadline - time.monotonic()))
    if not ready:
      return b't', b'', end
    if inner.reads in ready:
      try:
        inner.read()
      except Closed:
        return b'', b'', end
    else:
      outer.read()


def end_child(child):
  """Kills a child and its process group.

  Returns:
    Its status, as os.waitpid has it, and the processor seconds that it used.
  """
  for kill in os.killpg, os.kill:
    try:
      kill(child, signal.SIGKILL)
    except OSError:
      pass
  _, status, usage = os.wait4(child, 0)
  return status, usage.ru_utime + usage.ru_stime


def silence():
  """Takes the standard streams from this process, which may print."""
  null = os.open(os.devnull, os.O_RDWR)
  for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)


def main_module(path, name='__main__'):
  """Makes the program at a path `__main__`; returns the module and the source.

  Args:
    path: of the program.
    name: what it sees as its `__name__`.
  """
  module = type(sys)(name)
  module.__file__ = path
  sys.modules['__main__'] = sys.modules[name] = module
  sys.argv = [path]
  builtins.exit = builtins.quit = sys.exit  # the module site is not loaded
  with open(path, 'rb') as file:
    return module, file.read()


def limit_cpu(seconds):
  """Limits the processor seconds of this process and of each child."""
  import resource
  whole = max(1, -(-seconds // 1))
  resource.setrlimit(resource.RLIMIT_CPU, (int(whole), int(whole) + 1))
