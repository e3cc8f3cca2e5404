"""The user's own modules and functions, imported by the name in a config.

A module is named as Python names it (`my_package.my_task`) or by its file
(`FILE.py`). A function is named as `MODULE:NAME`.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import os
import pathlib
import sys
import sysconfig
import traceback
import types
import typing
from typing import Any, Callable, Iterator, Sequence
import zlib

from jaxrl_llm.base import plain, process_state

# Type of a field whose text names a module or a function. The config makes the
# path of a FILE.py absolute, so that a saved config works in any folder.
Name = typing.NewType('Name', str)
# Type of a field whose text is a path, which may begin with ~.
Path = typing.NewType('Path', str)
# Type of a field whose text may stand in a FILE.txt. The config takes the
# file's content, so that a run does not change with the file.
FileText = typing.NewType('FileText', str)

EXECUTING: list[pathlib.Path] = []  # files that `execute` is at work on
_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_GIVEN: dict[str, Callable[..., Any]] = {}  # see `give`
# Folders of code that is not the user's own.
_INSTALLED = (
    f'{pathlib.Path(__file__).parents[1]}{os.sep}', *(
        sysconfig.get_path(name) + os.sep
        for name in ('stdlib', 'purelib', 'platlib')))


def closest(name: str, known: Sequence[str]) -> str:
  """Returns ' Did you mean ...?' and the known names, for an error message."""
  near = difflib.get_close_matches(str(name), known, 1, 0.5)
  hint = f' Did you mean {near[0]!r}?' if near else ''
  return f'{hint} Known: {", ".join(known)}.'


def example(name: str) -> str:
  """Returns ' Did you mean ...?' for a name that an example of ours has.

  Args:
    name: of a module; its last part counts.
  """
  leaf = name.rpartition('.')[2]
  known = [file.stem for file in _EXAMPLES.glob('*.py')]
  return f" Did you mean 'jaxrl_llm.examples.{leaf}'?" if leaf in known else ''


def absolute(name: str) -> str:
  """Makes the path in `FILE.py` or `FILE.py:NAME` absolute.

  Any other name is returned as it is.
  """
  path, colon, function = _parts(name)
  if path.endswith('.py'):
    path = os.path.abspath(expanded(path))
  return f'{path}{colon}{function}'


def expanded(path: str) -> str:
  """Expands the home folder at the start of a path, `~` or `~user`.

  Raises:
    ValueError: there is no such user.
  """
  found = os.path.expanduser(path)
  if found.startswith('~'):
    user = path.partition('/')[0]
    raise ValueError(
        f'{path} is no path, since there is no user {user[1:]!r}: correct the '
        f'name, or write ./{path} for a folder of that name.')
  return found


def is_installed(path: str | os.PathLike[str]) -> bool:
  """Returns whether a file is of Python, this package or an installed one."""
  return os.fspath(path).startswith(_INSTALLED)


def content(text: str) -> str:
  """Returns the content of the file that a text names, without its last end of
  line.

  A text that does not end in `.txt`, or that contains {problem}, is returned as
  it is.

  Raises:
    ValueError: there is no such file, or it cannot be read.
  """
  if not text.endswith('.txt') or '{problem}' in text:
    return text
  file = pathlib.Path(expanded(text))
  if not file.is_file():
    raise ValueError(f'There is no file {file}: correct the path.')
  try:
    return file.read_text('utf-8').removesuffix('\n')
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f'{file} cannot be read as text ({error}).') from None


@contextlib.contextmanager
def blamed(
    what: str, *allowed: type[BaseException], at: str = '',
    own_only: bool = False) -> Iterator[None]:
  """Says which line is at fault if code of the user fails.

  Args:
    what: the start of the sentence, such as 'get_config of a.py fails'.
    *allowed: types of errors that are passed on.
    at: the user's file, for an error outside of its lines, such as a call with
      arguments that its function does not take.
    own_only: whether a ValueError outside of the user's lines passes: one of
      this package says itself what is wrong with an argument.

  Raises:
    ValueError: one sentence with the error, and the file and line of the last
      code of the user that was at work.
  """
  try:
    with process_state.code():
      yield
  except (KeyboardInterrupt, *allowed):
    raise
  except BaseException as error:  # sys.exit() is no end of this program
    where = place(error, own_only=True)
    if own_only and not where and isinstance(error, ValueError):
      raise
    raise ValueError(failure(what, error, where or at)) from error


def guarded(
    what: str, call: Callable[..., Any], *allowed: type[BaseException],
) -> Callable[..., Any]:
  """Makes a function of the user fail with one sentence.

  Args:
    what: its name in the config, such as 'advantage=mine.py:f'.
    call: the function.
    *allowed: types of errors that are passed on.

  Returns:
    The function; see `blamed` for its errors.
  """
  @functools.wraps(call, updated=())
  def run(*args, **options):
    with blamed(
        f'{what} failed', *allowed, at='what it returns', own_only=True):
      return call(*args, **options)

  return run


def load(name: str) -> types.ModuleType:
  """Imports a module of the user.

  A file is executed once per process. Its folder is added to the end of
  `sys.path`, so that it can import the modules beside it, and so that these
  do not hide an installed package.

  Args:
    name: dotted name, or path of a Python file.

  Returns:
    The module; the same one for every path to one file.

  Raises:
    ValueError: there is no such module, or its import fails. The message names
      the file, and the line that failed.
  """
  if not name.endswith('.py'):
    return _imported(name)
  file = _file(name)
  # The digest keeps a file called math.py apart from the module math.
  known_as = f'{file.stem}_{zlib.crc32(str(file).encode()):08x}'
  if known_as in sys.modules:
    return sys.modules[known_as]
  if str(file.parent) not in sys.path:
    sys.path.append(str(file.parent))
  return execute(file, known_as, register=True)


def execute(
    file: pathlib.Path, name: str, *, register: bool = False,
) -> types.ModuleType:
  """Executes a Python file as a new module.

  Args:
    file: path that ends in `.py`.
    name: name of the module.
    register: whether to put it into `sys.modules`, as dataclasses with
      annotations in quotes need. It is left out if it raises an error.

  Returns:
    The module.

  Raises:
    ValueError: it fails; see `blamed`.
  """
  spec = importlib.util.spec_from_file_location(name, file)
  module = importlib.util.module_from_spec(spec)
  if register:
    sys.modules[name] = module
  EXECUTING.append(file)
  # The user's code may be in another folder than the run.
  whole = file.absolute()
  try:
    with blamed(f'{file} cannot be imported', at=str(file)):
      _check_text(file, whole.read_bytes())
      spec.loader.exec_module(module)
  except BaseException:
    if register:
      sys.modules.pop(name, None)
    raise
  finally:
    EXECUTING.pop()
  return module


def _check_text(file: pathlib.Path, data: bytes) -> None:
  """Raises SyntaxError with the line of a byte that no program may have."""
  try:
    importlib.util.decode_source(data)
    fault, at = 'there is a NUL byte', data.find(0)
  except UnicodeDecodeError as error:
    fault, at = f'it is not {error.encoding} text', error.start
  except SyntaxError as error:  # of the line that declares the encoding
    fault, at = error.msg, 0
  if at >= 0:
    raise SyntaxError(
        fault, (str(file), data.count(b'\n', 0, at) + 1, None, None))


def _file(name: str) -> pathlib.Path:
  """Returns the path of a Python file; ValueError if there is none."""
  file = pathlib.Path(expanded(name)).resolve()
  if not file.is_file():
    near = difflib.get_close_matches(
        file.name, [p.name for p in sorted(file.parent.glob('*.py'))], 1, 0.5)
    hint = f' Did you mean {str(file.parent / near[0])!r}?' if near else (
        ' Give the path of a Python file.')
    raise ValueError(f'There is no file {file}.{hint}')
  return file


def file_of(name: str) -> pathlib.Path | None:
  """Returns the file that a function is named by, unimported; None if by none.

  Raises:
    ValueError: there is no such file.
  """
  path, _, _ = _parts(name)
  return _file(path) if path.endswith('.py') and name not in _GIVEN else None


def give(found: Callable[..., Any]) -> str:
  """Registers a function of this process, and returns its name for a config.

  A function at the top level of a module is named by its package and module, or
  by its file, so that a saved config finds it in another process. Any other,
  such as one of a notebook, is named `python:NAME` and is known to this process
  alone.
  """
  leaf = getattr(found, '__qualname__', type(found).__name__)
  module = sys.modules.get(getattr(found, '__module__', None) or '')
  file = getattr(module, '__file__', None) or ''
  name = f'python:{leaf}'
  if getattr(module, leaf, None) is found and file.endswith('.py'):
    # A module of a package may import relative to it.
    inside = module.__name__ != '__main__' and module.__package__
    name = f'{module.__name__}:{leaf}' if inside else absolute(f'{file}:{leaf}')
  _GIVEN[name] = found
  return name


def function(name: str) -> Callable[..., Any]:
  """Imports a function of the user.

  Args:
    name: `FILE.py:NAME` or `PACKAGE.MODULE:NAME`.

  Returns:
    The function.

  Raises:
    ValueError: see `load`; or the module has no such function.
  """
  if name in _GIVEN:
    return _GIVEN[name]
  path, _, leaf = _parts(name)
  if path == 'python':
    raise ValueError(
        f'{name!r} was given to a run in Python and is not known to this '
        'process: put the function into a file and name it FILE.py:NAME.')
  if not path or not leaf:
    raise ValueError(
        f'{name!r} does not name a function: write FILE.py:NAME or '
        'PACKAGE.MODULE:NAME.')
  module = load(path)
  found = getattr(module, leaf, None)
  if not callable(found):
    known = [n for n, value in vars(module).items()
             if callable(value) and value.__module__ == module.__name__]
    raise ValueError(
        f'{module.__file__ or path} has no function {leaf!r}.'
        + (closest(leaf, known) if known else ' Define it there.'))
  return found


def _parts(name: str) -> tuple[str, str, str]:
  """Splits a name into its module, ':' and function; the last may be ''."""
  if name.endswith('.py') or ':' not in name:
    return name, '', ''
  return name.rpartition(':')


def _imported(name: str) -> types.ModuleType:
  """Imports a module by its dotted name."""
  if not all(part.isidentifier() for part in name.split('.')):
    raise ValueError(
        f'{name!r} names no module: write PACKAGE.MODULE, or the path of a '
        'file that ends in .py.')
  with blamed(f'{name} cannot be imported'):
    try:
      return importlib.import_module(name)
    except ModuleNotFoundError as error:
      if not error.name or not f'{name}.'.startswith(f'{error.name}.'):
        raise
      reason = error
  raise ValueError(
      f'There is no module {name!r} ({reason}): correct the name, install its '
      'package, start in the folder that holds it, or give the path of its '
      f'FILE.py.{example(name)}')


def failure(what: str, error: BaseException, where: str = '') -> str:
  """Returns the sentence about an error of the user's code.

  Args:
    what: the failure.
    error: as it was caught.
    where: the culprit; empty for `place`.
  """
  if isinstance(error, SyntaxError) and error.filename:
    said = f'{type(error).__name__}: {error.msg}'
  else:
    said = plain.line(plain.error(error)).rstrip(':')
  return f'{what} ({said}): correct {where or place(error) or "it"}.'


def place(error: BaseException, own_only: bool = False) -> str:
  """Returns the 'FILE, line N' of the user's code that an error comes from.

  Args:
    error: as it was caught.
    own_only: return '' if there is no line of the user's own; else it is the
      last one of any.
  """
  if isinstance(error, SyntaxError) and error.filename:
    return f'{error.filename}, line {error.lineno}'
  frames = [
      frame for frame in traceback.extract_tb(error.__traceback__)
      if not frame.filename.startswith('<frozen')
      and frame.filename not in (__file__, importlib.__file__)]
  # The last line of the user's own, not one of a library that it called.
  own = [f for f in frames if not is_installed(f.filename)]
  return ''.join(
      f'{frame.filename}, line {frame.lineno}'
      for frame in (own if own_only else own or frames)[-1:])
