"""The command line: --config=FILE, --config.FIELD=VALUE, --help[=GROUP]."""

import contextlib
import sys
from typing import Callable, Iterator, Sequence

from ml_collections import ConfigDict

from jaxrl_llm.config import files, help, names
from jaxrl_llm.config.checks import validate
from jaxrl_llm.config.table import table
from jaxrl_llm.storage import paths

_HELP = ('--help', '-h')


@contextlib.contextmanager
def refused() -> Iterator[None]:
  """Ends the program with a sentence and exit code 2 if its body fails."""
  try:
    yield
  except (OSError, ValueError) as error:
    sys.stderr.write(f'{paths.as_given(str(error))}\n')
    sys.exit(2)


def _help(argv: Sequence[str]) -> list[str]:
  """Returns what --help is asked for, such as ['method'], or ['']; or []."""
  return [arg.partition('=')[2] for arg in argv
          if arg.partition('=')[0] in _HELP]


def _misunderstood(arg: str) -> str:
  """Returns the sentence about an argument of another form.

  It may be a field without `--config.`, or an option of another library.
  """
  known = table()
  name = arg.partition('=')[0].lstrip('-+')
  if name in known:
    return f'{arg} is not understood: write --config.{name}=VALUE.'
  if names.meanings(name):
    return f'{arg} is not understood: {names.unknown(name, known)}'
  return (f'{arg} is not understood: write --config=FILE.py, '
          '--config.FIELD=VALUE or --help.')


def parse(
    argv: Sequence[str], program: str = 'train', more: str = '', *,
    check: Callable[[ConfigDict], None] = validate) -> tuple[ConfigDict, str]:
  """Reads the command line of a program.

  Prints fields and ends the program on `--help`; on a mistake, ends it
  with one sentence on stderr and exit code 2.

  Args:
    argv: the arguments, without the program's own name.
    program: its module in this package, for `--help`.
    more: text for `--help` about its other arguments.
    check: raises ValueError for a config that does not fit itself.

  Returns:
    The config, checked, and its name.
  """
  with refused():
    spec, overrides = split(argv)
    if asked := _help(argv):
      help.show(asked[-1], spec, overrides, program, more)
      sys.exit(0)
    if spec is None:
      raise ValueError(
          'No config is given: add --config=FILE.py, or the name of one of the '
          'package, such as --config=countdown, or --help.')
    config = files.load(spec, overrides)
    check(config)
  return config, files.name_of(spec)


def split(argv: Sequence[str]) -> tuple[str | None, dict[str, str]]:
  """Splits arguments into the config, if one is given, and overrides.

  Args:
    argv: the arguments, without the program's own name.

  Returns:
    The config's file, or None; dotted field name to text.

  Raises:
    ValueError: arguments of another form, with a line for each.
  """
  spec, overrides, others = None, {}, []
  for arg in argv:
    flag, equals, value = arg.partition('=')
    name = flag.removeprefix('--config.')
    if flag in _HELP:
      continue
    if not equals or name == flag != '--config':
      others.append(_misunderstood(arg))
    elif flag == '--config':
      spec = value
    else:
      overrides[name] = value
  if others:
    raise ValueError('\n'.join(others))
  return spec, overrides
