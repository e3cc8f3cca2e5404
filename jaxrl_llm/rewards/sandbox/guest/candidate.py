"""The side of the program that is judged: it answers calls, and no more.

  candidate.main(PROGRAM, READS, WRITES, SECONDS)

It runs the program once and forks a child for each test, which starts from the
program's globals as they are then. Nothing here is trusted: the program shares
this interpreter. All that it can do is to answer questions, without knowing
what answer is right.
"""

import _signal as signal  # signal itself imports enum: 10 ms a program
import builtins
import os
import sys

import frames
import literals

_LONGEST_ERROR = 100_000  # bytes


class Callback:
  """A function of the test's, which the program may call."""

  def __init__(self, server, number):
    self._server, self._number = server, number

  def __call__(self, *args):
    return self._server.call_back(self._number, args)


class Server:
  """Answers the questions of one test."""

  def __init__(self, channel, number, program):
    self._channel, self._number, self._program = channel, number, program
    self._objects, self._places = [], {}

  def serve(self):
    """Answers until the other side has ended."""
    while True:
      _, kind, data = self._channel.receive()
      if kind == b'q':
        self._answer(data)

  def _answer(self, data):
    try:
      operation, *args = literals.load(data, self._loaded)
      reply = 'value', *getattr(self, f'do_{operation}')(*args)
      out = literals.dump(reply, self._token)
      if len(out) > frames.LONGEST:
        raise ValueError('a result is too large')
    except frames.Closed:
      raise
    except BaseException as error:
      out = self._failed(error)
    self._channel.send(self._number, b'a', out)

  def _failed(self, error):
    """Returns the reply for an error of the program."""
    names, text = type_names(type(error)), _text(error)
    own = None
    if not hasattr(builtins, names[0]):
      own = BaseException.with_traceback(error, None)  # its frames may be large
    for args in BaseException.args.__get__(error), (text,):
      try:
        out = literals.dump(('error', names, args, text, own), self._token)
      except Exception:  # too deep
        continue
      if len(out) < _LONGEST_ERROR:
        break
    return out

  def call_back(self, number, args):
    """Calls a function of the test's."""
    self._channel.send(self._number, b'q', literals.dump(
        (number, args), self._token))
    while True:
      _, kind, data = self._channel.receive()
      if kind == b'q':
        self._answer(data)
      else:
        good, value = literals.load(data, self._loaded)
        if not good:
          name, text = value
          raise getattr(builtins, name)(text)
        return value

  def _token(self, value):
    if type(value) is Callback:
      return b'x%x;' % value._number
    # The list keeps the object, so that its id is not used again.
    if id(value) not in self._places:
      self._places[id(value)] = len(self._objects)
      self._objects.append(value)
    return b'h%x;' % self._places[id(value)]

  def _loaded(self, letter, number):
    if letter == b'x':
      return Callback(self, number)
    if letter == b'u':
      return getattr(builtins, frames.BUILTINS[number])
    return self._objects[number]

  def do_names(self, names):
    """Returns the values of those global names that the program has."""
    found = {}
    for name in names:
      if name not in self._program:
        continue
      value = self._program[name]
      found[name] = 'value', value
      if type(value) is type(sys):
        found[name] = 'module', value.__name__
      elif type(value) is type and value.__module__ in literals.LIBRARIES:
        # The checker may take it from its own, since the program has it too.
        found[name] = 'library', value.__module__
      elif isinstance(value, type) and issubclass(value, BaseException):
        found[name] = 'error', (type_names(value), value)
    return found, None

  def do_call(self, function, args, kwargs):
    """Calls; returns the result, and the arguments if they have changed."""
    given = *args, *kwargs.values()
    mutable = any(type(arg) in (list, dict, set, bytearray) for arg in given)
    before = mutable and literals.dump(given, self._token)
    result = function(*args, **kwargs)
    changed = mutable and literals.dump(given, self._token) != before
    return result, given if changed else None

  def do_builtin(self, value, name, *args):
    """Returns what Python's own function of a name gives: len, getattr, ..."""
    return getattr(builtins, name)(value, *args), None

  def do_item(self, value, key):
    """Returns an element."""
    return value[key], None

  def do_set_item(self, value, key, new):
    """Sets an element."""
    value[key] = new
    return None, None

  def do_del_item(self, value, key):
    """Removes an element."""
    del value[key]
    return None, None

  def do_enter(self, value):
    """Begins a `with`."""
    return type(value).__enter__(value), None

  def do_exit(self, value, kind, text):
    """Ends a `with`, which an error of a type may have ended."""
    type(value).__exit__(value, kind, kind and kind(text), None)
    return None, None

  def do_next(self, value):
    """Returns the next value in a tuple, or () at the end."""
    for item in value:
      return (item,), None
    return (), None


def type_names(kind):
  """Returns the names of a type and of its bases, the nearest first."""
  return tuple(base.__name__ for base in kind.__mro__)


def _text(error):
  try:
    return str(error)[:300]
  except BaseException:
    return ''


def main(program, reads, writes, seconds):
  """Loads the program at a path, then serves tests until the input ends."""
  channel = frames.PipeEnd(reads, writes)
  frames.silence()
  # What runs if it is `__main__` reads an input, or has tests of its own.
  module, source = frames.main_module(program, 'program')
  # An endless loop ends this process; honest programs do not touch the timer.
  signal.setitimer(signal.ITIMER_PROF, seconds)
  fault = code = None
  try:
    code = compile(source, program, 'exec', dont_inherit=True)
    exec(code, module.__dict__)
  except MemoryError:
    fault = 'memory', ''
  except SystemExit as error:
    if error.code:  # else all of it has run
      fault = 'exception', f'SystemExit: {_text(error)}'
  except BaseException as error:
    fault = ('exception' if code else 'syntax_error',
             f'{type(error).__name__}: {_text(error)}')
  signal.setitimer(signal.ITIMER_PROF, 0)
  channel.send(0, b'l', literals.dump(fault))
  try:
    while fault is None:
      number, kind, _ = channel.receive()
      if kind == b't':
        _test(channel, number, module.__dict__, seconds)
  except frames.Closed:
    pass
  os._exit(0)  # threads and atexit functions of the program are not awaited


def _test(outer, number, program, seconds):
  """Does a test in a child, and tells the other side when it has ended."""
  child, inner = frames.fork()
  if not child:
    try:
      os.setsid()
      outer.close()
      frames.limit_cpu(seconds)
      Server(inner, number, program).serve()
    except frames.Closed:
      pass
    finally:
      os._exit(0)
  # The checker's own time limit comes first.
  why, _, _ = frames.relay(outer, inner, number, 100 * seconds)
  inner.close()
  status, used = frames.end_child(child)
  reason = 'killed', f'status {status}'
  if os.WIFSIGNALED(status) and (
      os.WTERMSIG(status) == signal.SIGXCPU or used >= seconds) or why == b't':
    reason = 'timeout', f'{seconds:g} s'
  outer.send(number, b'e', literals.dump(reason))
