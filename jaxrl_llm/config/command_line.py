"""The command line: --config=FILE, --config.FIELD=VALUE, --help."""

import itertools
import sys
from typing import Any, Callable, Mapping, Sequence

from ml_collections import ConfigDict
from rich import console, table

from jaxrl_llm.config import files, values
from jaxrl_llm.config.checks import check_options, validate
from jaxrl_llm.config.field import Field
from jaxrl_llm.config.fields import ACTOR, JACKPOT
from jaxrl_llm.config.model import model_config
from jaxrl_llm.config.nested import flatten, nested
from jaxrl_llm.config.table import hyperparameter_fields
from jaxrl_llm.config.table import table as table_of
from jaxrl_llm.plugs import PLUG_FIELDS, plug_fields
from jaxrl_llm.storage import paths

HELP = ('--help', '-h')
_begun: dict[tuple, ConfigDict] = {}  # see `begin`


def begin(argv: Sequence[str]) -> None:
  """Loads the config of a command line ahead of `parse`, which takes it.

  This needs no slow imports. What is wrong with the config file, a field or an
  option of the task ends the program as `parse` does.

  Args:
    argv: the arguments; those that are not about a config are passed over.
  """
  if {*HELP} & {*argv}:
    return
  try:
    spec, overrides = split([x for x in argv if x.startswith('--config')])
    if spec is None:
      return
    config = files.load(spec, overrides)
    check_options(config)
  except (OSError, ValueError) as error:
    _refuse(error)
  _begun[spec, *overrides.items()] = config


def _refuse(error: Exception) -> None:
  sys.stderr.write(f'{paths.as_given(str(error))}\n')
  sys.exit(2)


def parse(
    argv: Sequence[str], program: str = 'train', more: str = '', *,
    check: Callable[[ConfigDict], None] = validate) -> tuple[ConfigDict, str]:
  """Reads the command line of a program.

  Prints the fields and ends the program on `--help`; on a mistake, ends it
  with one sentence on stderr and exit code 2.

  Args:
    argv: the arguments, without the program's own name.
    program: its module in this package, for `--help`.
    more: text for `--help` about its other arguments.
    check: raises ValueError for a config that does not fit itself.

  Returns:
    The config, checked, and its name.
  """
  try:
    spec, overrides = split(argv)
    if {*HELP} & {*argv}:
      _print_help(spec, overrides, program, more)
      sys.exit(0)
    if spec is None:
      raise ValueError(
          'No config is given: add --config=FILE.py, or the name of one of the '
          'package, such as --config=countdown, or --help.')
    config = _begun.pop((spec, *overrides.items()), None) or files.load(
        spec, overrides)
    check(config)
  except (OSError, ValueError) as error:
    _refuse(error)
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
    if flag in HELP:
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


def _print_help(
    spec: str | None, overrides: Mapping[str, str], program: str,
    more: str) -> None:
  """Prints every field, its value in this config and its meaning.

  Without a config, this includes the fields of all that one could choose.
  """
  config = files.load(spec, overrides) if spec else nested(
      files.overridden(flatten(files.base()), overrides))
  try:
    model = model_config(config)
  except ValueError:  # a model that is not here yet; its fields are its own
    model = None
  rows = table.Table(box=None, show_header=False, padding=(0, 1, 0, 0))
  rows.add_column(no_wrap=True, style='cyan')
  rows.add_column(max_width=16, overflow='fold')
  rows.add_column(overflow='fold')
  flat = flatten(config)
  for section, fields in itertools.groupby(
      table_of(flat).values(), _section):
    if section:
      rows.add_row()
    for field in fields:
      value, leaf = flat[field.name], field.name.rpartition('.')[2]
      text = _shown(value)
      if section == 'model' and value is None and hasattr(model, leaf):
        text = f'({_shown(getattr(model, leaf))})'
      rows.add_row(field.name, text, _meaning(field))
  if not spec:
    _add_plugs(rows, flat, overrides)
  show = console.Console(highlight=False).print
  show(f'Usage: python -m jaxrl_llm.{program} --config=FILE.py[:ARG] '
       '[--config.FIELD=VALUE]\n', markup=False, soft_wrap=True)
  if not spec:
    show('Configs of the package, by name, as in --config=countdown: '
         f'{", ".join(files.shipped())}.\n', markup=False)
  if more:
    show(more, markup=False, soft_wrap=True)
  show(f'Fields, their values {f"in {spec}" if spec else "by default"}, and '
       'what they mean:\n', markup=False, soft_wrap=True)
  show(rows)


def _add_plugs(
    rows: table.Table, flat: Mapping[str, Any],
    overrides: Mapping[str, str]) -> None:
  """Adds the fields of what a config could choose, and does not."""
  others = {f'{by}={name}': hyperparameter_fields(by, name).values()
            for by in PLUG_FIELDS for name in plug_fields.known(by)
            if name != flat[by] and by not in overrides and not (
                by == 'task.name' and 'task' in overrides)}
  others['off_policy=jackpot'] = JACKPOT
  others['actor.model.hf or actor.model.preset'] = ACTOR
  for choice, fields in others.items():
    if fields:
      rows.add_row()
      rows.add_row(f'with {choice}:')
    for field in fields:
      rows.add_row(field.name, _shown(field.default), _meaning(field))


def _meaning(field: Field) -> str:
  """Returns a field's meaning; with a plug's choices and range, if it has any.
  """
  if not field.chosen_by or field.name == 'task.name':
    return field.meaning
  said = [', '.join(field.choices), field.range]
  return '; '.join([field.meaning, *(text for text in said if text)])


def _section(field: Field) -> str:
  return field.name.rpartition('.')[0]


def _shown(value: Any) -> str:
  """Returns a value as on the command line, with spaces after commas."""
  return 'none' if value == () else values.to_text(value).replace(',', ', ')
