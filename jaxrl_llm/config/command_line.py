"""The command line: --config=FILE, --config.FIELD=VALUE, --help."""

import sys
from typing import Mapping, Sequence

from ml_collections import ConfigDict
from rich import console, table

from jaxrl_llm.config import files, values
from jaxrl_llm.config.checks import validate
from jaxrl_llm.config.model import model_config
from jaxrl_llm.config.nested import flatten, nested
from jaxrl_llm.config.table import table as table_of


def parse(argv: Sequence[str]) -> tuple[ConfigDict, str]:
  """Reads the command line of a program.

  Prints the fields and ends the program on `--help`; on a mistake, ends it
  with one sentence on stderr and exit code 2.

  Args:
    argv: the arguments, without the program's own name.

  Returns:
    The config, checked by `validate`, and its name.
  """
  try:
    spec, overrides = split(argv)
    if '--help' in argv:
      _print_help(spec, overrides)
      sys.exit(0)
    if spec is None:
      raise ValueError(
          'No config is given: add --config=FILE.py, such as '
          '--config=configs/countdown.py, or --help.')
    config = files.load(spec, overrides)
    validate(config)
  except (OSError, ValueError) as error:
    sys.stderr.write(f'{error}\n')
    sys.exit(2)
  return config, files.name_of(spec)


def split(argv: Sequence[str]) -> tuple[str | None, dict[str, str]]:
  """Splits arguments into the config, if one is given, and overrides.

  Args:
    argv: the arguments, without the program's own name.

  Returns:
    The config's file, or None; dotted field name to text.

  Raises:
    ValueError: an argument of another form.
  """
  spec, overrides = None, {}
  for arg in argv:
    flag, equals, value = arg.partition('=')
    name = flag.removeprefix('--config.')
    if flag == '--help':
      continue
    if not equals or name == flag != '--config':
      raise ValueError(
          f'{arg} is not understood: write --config=FILE.py, '
          '--config.FIELD=VALUE or --help.')
    if flag == '--config':
      spec = value
    else:
      overrides[name] = value
  return spec, overrides


def _print_help(spec: str | None, overrides: Mapping[str, str]) -> None:
  """Prints every field, its value in this config and its meaning."""
  if spec:
    config = files.load(spec, overrides)
  else:
    config = nested(files.overridden(flatten(files.base()), overrides))
  try:
    model = model_config(config)
  except ValueError:  # a model that is not here yet; its fields are its own
    model = None
  rows = table.Table(box=None, show_header=False, padding=(0, 1, 0, 0))
  rows.add_column(no_wrap=True, style='cyan')
  rows.add_column(max_width=16, overflow='fold')
  rows.add_column(overflow='fold')
  section = None
  for field in table_of(config.task.name).values():
    head, _, leaf = field.name.partition('.')
    value = flatten(config)[field.name]
    text = values.to_text(value)
    if head == 'model' and value is None and hasattr(model, leaf):
      text = f'({values.to_text(getattr(model, leaf))})'
    if leaf and head != section:
      rows.add_row()
      section = head
    rows.add_row(field.name, text.replace(',', ', '), field.meaning)
  show = console.Console(highlight=False).print
  show('Usage: python -m jaxrl_llm.train --config=FILE.py[:ARG] '
       '[--config.FIELD=VALUE]\n', markup=False, soft_wrap=True)
  show(f'Fields, their values {f"in {spec}" if spec else "by default"}, and '
       'what they mean:\n', markup=False, soft_wrap=True)
  show(rows)
