"""The side of the tests: runs them against a proxy of the program.

  checker.serve(LINE, NAMESPACE)

Programs come one after another; each is judged in a child of its own, and each
of its tests in a child of that. Names that a test does not define stand for the
program's: calls cross to the other sandbox, and results come back as literals.
Objects that are no literals stay there; here they are `Remote`, and equal only
to themselves, whatever the program says. A pipe gets a frame for each test:
(kind, detail) with the kind passed, wrong, exception, timeout, memory, killed
or syntax_error.
"""

import _signal as signal  # signal itself imports enum
import builtins
import gc
import os
import sys
import time

import frames
import literals

_KILLED = 'killed', ''
_NONE = b'N'  # the literal of None
_REASONS = 'syntax_error', 'exception', 'memory', 'timeout', 'killed'
_LONGEST_REASON = 10_000  # bytes
_INT = 4  # bytes of a descriptor in a message
_GRACE = 5.0  # seconds until the program's side has ended a test
_MOST_BASES = 20  # of the type of an error


class Gone(BaseException):
  """Raised if the program has ended; `Peer.gone` is the reason."""


class ProgramError(Exception):
  """An error of the program whose type is no built-in one."""


class _OwnType(type):
  """Type of the types of errors that the program defines."""

  def __instancecheck__(cls, value):
    if type(value) is Remote and cls.remote:
      return isinstance(value, cls.remote)
    return type.__instancecheck__(cls, value)


def _attribute(error, name):
  """Returns an attribute that the program's own error has."""
  if name.startswith('_') or '_remote' not in error.__dict__:
    raise AttributeError(name)
  return getattr(error.__dict__['_remote'], name)


def _built_in(kind):
  """Returns the built-in type that a type of errors is nearest to."""
  return next(base for base in kind.__mro__ if base.__module__ == 'builtins')


class Peer:
  """Asks the program's side."""

  def __init__(self, channel, number):
    self._channel, self._number = channel, number
    self._remotes, self._functions, self._types = {}, [], {}
    self.gone = None  # reason (kind, detail) once the program has ended

  def ask(self, operation, *args):
    """Returns the answer to a question.

    Raises:
      Gone: the program has ended.
      Exception: the program raised an error of this type.
    """
    try:
      self._channel.send(
          self._number, b'q', literals.dump((operation, *args), self._token))
      while True:
        _, kind, data = self._channel.receive()
        if kind == b'a':
          break
        if kind != b'q':
          self.gone = _reason(data) if kind == b'e' else _KILLED
          raise Gone
        self._call_back(data)
    except frames.Closed:
      self.gone = self.gone or _KILLED
      raise Gone from None
    try:
      good, value, *more = literals.load(data, self._loaded)
      error = good == 'error' and self._error(value, *more)
    except (TypeError, ValueError, MemoryError) as fault:
      error = ProgramError(f'a result is no literal: {fault}')
    if error:
      error.of_program = True
      raise error
    return value, more[0]

  def _error(self, names, args, text, remote):
    """Returns an error of the program."""
    kind = self.error_type(names)
    try:
      error = kind(*args)
    except Exception:  # the program may have changed args
      error = ProgramError(f'{names[0]}: {text}')
    if type(kind) is _OwnType:
      error._text, error._remote = str(text), remote
    return error

  def error_type(self, names, remote=None):
    """Returns the type of an error, one of ours for the program's own.

    Args:
      names: of the type and its bases, the nearest first.
      remote: the type.
    """
    if type(names) is not tuple or not 0 < len(names) <= _MOST_BASES or any(
        type(name) is not str for name in names):
      return ProgramError
    kind = getattr(builtins, names[0], None)
    # StopIteration would end a loop of the test, as in all(map(...)), before
    # anything has been compared.
    if isinstance(kind, type) and issubclass(kind, Exception) and (
        not issubclass(kind, StopIteration)):
      return kind
    if names not in self._types:
      base = self.error_type(names[1:])
      self._types[names] = _OwnType(names[0], (base,), {
          'remote': None, '__getattr__': _attribute,
          '__str__': lambda error: error.__dict__.get(
              '_text') or base.__str__(error)})
    found = self._types[names]
    found.remote = remote or found.remote
    return found

  def call(self, function, args, kwargs):
    """Calls, and changes the arguments that the program has changed."""
    value, changed = self.ask('call', function, args, kwargs)
    given = *args, *kwargs.values()
    if type(changed) is tuple and len(changed) == len(given):
      for old, new in zip(given, changed):
        if type(old) is not type(new):
          continue
        if type(old) in (list, bytearray):
          old[:] = new
        elif type(old) in (dict, set):
          old.clear()
          old.update(new)
    return value

  def _call_back(self, data):
    """Answers the program's call of a function of the test's."""
    try:
      number, args = literals.load(data, self._loaded)
      reply = True, self._functions[number](*args)
    except Exception as error:
      reply = False, (_built_in(type(error)).__name__, str(error)[:300])
    self._channel.send(
        self._number, b'a', literals.dump(reply, self._token))

  def _token(self, value):
    if type(value) is _OwnType and value.remote:
      value = value.remote
    if type(value) is Remote:
      return b'h%x;' % value._remote[1]
    name = getattr(value, '__name__', '')
    # The program gets its own: eval of this interpreter would run its code.
    if name in frames.BUILTINS and getattr(builtins, name) is value:
      return b'u%x;' % frames.BUILTINS.index(name)
    if not callable(value):
      raise TypeError(
          f'{type(value).__name__} cannot be given to the program')
    self._functions.append(value)
    return b'x%x;' % (len(self._functions) - 1)

  def _loaded(self, letter, number):
    if letter == b'x':
      return self._functions[number]
    return self._remotes.setdefault(number, Remote(self, number))


def _conversion(name):
  """Returns a method that asks for bool, len, ... of an object."""
  return lambda self: self._ask('builtin', name)


class Remote:
  """An object in the program's sandbox."""

  def __init__(self, peer, number):
    object.__setattr__(self, '_remote', (peer, number))

  def _ask(self, operation, *args):
    return self._remote[0].ask(operation, self, *args)[0]

  def __call__(self, *args, **kwargs):
    return self._remote[0].call(self, args, kwargs)

  def __getattr__(self, name):
    if name.startswith('__'):  # copy and pickle ask for such
      raise AttributeError(name)
    return self._ask('builtin', 'getattr', name)

  def __setattr__(self, name, value):
    self._ask('builtin', 'setattr', name, value)

  def __getitem__(self, key):
    return self._ask('item', key)

  def __setitem__(self, key, value):
    self._ask('set_item', key, value)

  def __delattr__(self, name):
    self._ask('builtin', 'delattr', name)

  def __delitem__(self, key):
    self._ask('del_item', key)

  def __enter__(self):
    return self._ask('enter')

  def __exit__(self, kind, error, _):
    # Whatever the program says, an error of the test is not suppressed.
    if kind is None or issubclass(kind, Exception):
      self._ask('exit', kind and _built_in(kind), str(error))

  def __iter__(self):
    return self._ask('builtin', 'iter')

  def __next__(self):
    if item := self._ask('next'):
      return item[0]
    raise StopIteration

  def __instancecheck__(self, value):
    return self._remote[0].ask(
        'builtin', value, 'isinstance', self)[0] is True

  __bool__, __len__, __str__, __repr__, __int__, __float__ = map(
      _conversion, ('bool', 'len', 'str', 'repr', 'int', 'float'))


def _reason(data):
  """Returns why the program ended: (kind, detail).

  The program may have written this itself, so it can be of any form.
  """
  try:
    said = literals.load(data) if len(data) < _LONGEST_REASON else None
  except ValueError:
    said = None
  if type(said) is tuple and [*map(type, said)] == [str, str] and (
      said[0] in _REASONS):
    return said
  return _KILLED


def _names(code):
  """Returns the names in compiled code and in the functions that it makes."""
  found = set(code.co_names)
  for constant in code.co_consts:
    if type(constant) is type(code):
      found |= _names(constant)
  return found


def _bind(peer, names, entries):
  """Returns the globals of a test: the program's values of some names.

  The name of a built-in object or of a module of the standard library is the
  program's only if the test is about it: else a program could redefine the
  means of the test. Modules and types of the library are this interpreter's
  own; a test sees them if the program has imported them.
  """
  wanted = [name for name in sorted(names)
            if name in entries or not hasattr(builtins, name)]
  answer, _ = peer.ask('names', wanted)
  found = {}
  for name in wanted:
    if type(answer) is not dict or name not in answer:
      continue
    how, value = answer[name]
    if how == 'module' and value == name and name in sys.stdlib_module_names:
      found[name] = __import__(name)
    elif how == 'library' and value in literals.LIBRARIES:
      found[name] = getattr(__import__(value), name)
    elif how in ('value', 'error') and (
        name in entries or name not in sys.stdlib_module_names):
      found[name] = peer.error_type(*value) if how == 'error' else value
  return found


def _run(peer, setup, test, entries):
  """Runs a test; returns its verdict."""
  try:
    codes = [compile(text, name, 'exec', dont_inherit=True)
             for name, text in (('<setup>', setup), ('<test>', test))]
    space = _bind(peer, set().union(*map(_names, codes)), entries)
    program = {name: space[name] for name in entries if name in space}
    space['__name__'] = 'tests'
    exec(codes[0], space)
    # The setup may hold the head of the function that is to be written.
    space.update(program)
    exec(codes[1], space)
    verdict = 'passed', ''
  except MemoryError:
    verdict = 'memory', ''
  except BaseException as error:
    verdict = _of_error(error)
  if peer.gone:  # a test may catch every exception, Gone among them
    verdict = peer.gone
  return verdict


def _of_error(error):
  """Returns the verdict of a test that raised an error."""
  try:
    if isinstance(error, AssertionError) and not hasattr(error, 'of_program'):
      return 'wrong', str(error)[:300]
    return 'exception', f'{type(error).__name__}: {error}'[:300]
  except Exception:  # such as a number too long to be printed
    return 'exception', type(error).__name__


def _test(outer, out, number, test, spec):
  """Does a test in a child; returns its verdict."""
  outer.send(number, b't')
  child, inner = frames.fork()
  if not child:
    try:
      os.setsid()
      outer.close()
      os.close(out.writes)
      frames.silence()
      frames.limit_cpu(spec['seconds'])
      verdict = _run(
          Peer(inner, number), spec['setup'], test, spec['entries'])
      inner.send(number, b'v', literals.dump(verdict))
    finally:
      os._exit(0)
  verdict, end = _KILLED, None
  try:
    why, data, end = frames.relay(outer, inner, number, spec['wall'])
    if why == b'v':
      verdict = literals.load(data)
    elif why == b't':
      verdict = 'timeout', f'{spec["wall"]:g} s'
  finally:
    inner.close()
    status, used = frames.end_child(child)
  if why == b'' and (used >= spec['seconds'] or os.WIFSIGNALED(status)
                     and os.WTERMSIG(status) == signal.SIGXCPU):
    verdict = 'timeout', f'{spec["seconds"]:g} s'
  if end is None:
    outer.send(number, b'o')
    _ended(outer, number)
  return verdict


def _ended(outer, number):
  """Waits until the program's side has ended a test."""
  deadline = time.monotonic() + _GRACE
  while frame := outer.receive(deadline):
    if frame[0] == number and frame[1] == b'e':
      return
  raise frames.Closed


def serve(line, namespace):
  """Judges programs until the other end of a socket is closed.

  Each job is four descriptors: a file with the tests, the channel to the
  program, and a pipe for the verdicts. When it is over and nothing is left of
  it, a byte is sent. This process itself reads nothing that comes of a program.

  Args:
    line: the socket's descriptor.
    namespace: whether every other process that can be seen is of the job.
  """
  # Modules that are loaded here make each fork slower: socket is large.
  import _socket
  # The first call makes the types of `ast`, in 3 ms, which each child would.
  compile('', '<test>', 'exec', dont_inherit=True)
  gc.freeze()  # so that a collection in a child leaves these pages shared
  jobs = _socket.socket(fileno=line)
  while True:
    _, received, _, _ = jobs.recvmsg(1, _socket.CMSG_SPACE(4 * _INT))
    if not received:
      return
    _, _, data = received[0]
    ends = [int.from_bytes(data[i:i + _INT], sys.byteorder)
            for i in range(0, 4 * _INT, _INT)]
    child = os.fork()
    if not child:
      try:
        jobs.close()
        os.setsid()
        _judge(*ends)
      finally:
        os._exit(0)
    for end in ends:
      os.close(end)
    os.waitpid(child, 0)
    _kill_rest(child, namespace)
    if os.listdir() or namespace and os.listdir('/tmp'):
      return  # the next program gets a new sandbox
    jobs.send(b'.')


def _kill_rest(child, namespace):
  """Kills the processes of a child: all of the namespace, or its group."""
  try:
    # By -1 all but this process and the first.
    os.kill(-1 if namespace else -child, signal.SIGKILL)
  except OSError:  # there is nothing
    pass


def _judge(tests, reads, writes, verdicts):
  """Runs the tests of a file and writes their verdicts; all are descriptors."""
  with open(tests, 'rb') as file:
    spec = literals.load(file.read())
  outer, out = frames.PipeEnd(reads, writes), frames.PipeEnd(-1, verdicts)
  fault = 'killed', 'as the program began'
  try:
    _, kind, data = outer.receive()
    if kind == b'l':
      fault = None if data == _NONE else _reason(data)
  except frames.Closed:
    pass
  for number, test in enumerate(spec['tests'], 1):
    verdict = fault
    if not fault:
      try:
        verdict = _test(outer, out, number, test, spec)
      except frames.Closed:
        fault = verdict = _KILLED
    out.send(number, b'v', literals.dump(verdict))
