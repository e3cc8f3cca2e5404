"""Texts of --help: the fields by what a user wants, and others' names of them.
"""

from typing import Any, Iterable, Iterator, Mapping, NamedTuple

from rich import console, table

from jaxrl_llm.base.declared import Field
from jaxrl_llm.config import files, names, plugs, values
from jaxrl_llm.config.model import model_config
from jaxrl_llm.config.nested import flatten, nested
from jaxrl_llm.config.plugs import PLUG_FIELDS
from jaxrl_llm.config.sections import SECTIONS
from jaxrl_llm.config.table import chosen, hyperparameters
from jaxrl_llm.config.table import table as table_of

ALL = 'all'
_WIDE = 160  # columns where there is no terminal: whole names can be searched


class Group(NamedTuple):
  """Fields with one purpose.

  Attributes:
    title: heading.
    main: fields that most users set.
    more: other fields and sections. A field belongs to the group that names
      it, or that names the longest part of it; a plug's hyperparameter, to the
      group of the field that chooses the plug.
  """
  title: str
  main: tuple[str, ...]
  more: tuple[str, ...] = ()


GROUPS = {
    'run': Group(
        'The run', ('steps', 'workdir', 'seed', 'checkpoint.every'),
        ('checkpoint',)),
    'problems': Group(
        'Problems and rewards', (
            'task.name', 'task.path', 'task.heldout', 'task.template',
            'task.reward'), ('task', 'reward')),
    'model': Group(
        'Model', ('model.hf', 'model.preset', 'model.dtype', 'lora.rank'),
        ('model', 'lora')),
    'sampling': Group(
        'Sampling', (
            'prompts_per_step', 'samples_per_prompt', 'max_prompt',
            'max_response', 'sampling.temperature'), ('sampling',)),
    'method': Group(
        'Method', (
            'advantage', 'curriculum', 'selection', 'off_policy',
            'loss.objective', 'loss.aggregation', 'loss.kl_coef'),
        ('curriculum_prompts', 'drop_zero_advantage', 'loss', 'overlong',
         'actor', 'teacher', 'jackpot')),
    'optimiser': Group(
        'Optimiser, and supervised fine-tuning before RL', (
            'optimizer.learning_rate', 'optimizer.schedule', 'learner.updates',
            'sft.path', 'sft.epochs'),
        ('optimizer', 'learner.epochs', 'sft')),
    'evaluation': Group(
        'Evaluation', ('eval.every', 'eval.samples', 'eval.problems'),
        ('eval', 'eval_k')),
    'machine': Group(
        'Devices, memory and speed', (
            'learner.tokens_per_microbatch', 'sampling.slots', 'mesh.fsdp',
            'mesh.cpu_devices'),
        ('mesh', 'learner', 'compilation_cache', 'processes',
         'sampling.steps_per_refill', 'sampling.chunk',
         'sampling.share_prompts', 'sampling.unroll',
         'sampling.prefill_prompts', 'sampling.buckets', 'sampling.weights',
         'sampling.kv')),
    'logging': Group(
        'Logs', ('log.every', 'log.samples', 'log.tensorboard', 'log.wandb'),
        ('log',)),
}


class _Shown(NamedTuple):
  """A field to show: its value as text, and the choice that it needs or ''."""
  field: Field
  value: str
  choice: str = ''


def group_of(field: Field) -> str:
  """Returns the group of a field; ValueError if none names it."""
  for name in field.name, field.chosen_by:
    # Names that fit are beginnings of this one: no two have one length.
    groups = {
        len(named): key for key, group in GROUPS.items()
        for named in (*group.main, *group.more)
        if f'{name}.'.startswith(f'{named}.')}
    if groups:
      return groups[max(groups)]
  raise ValueError(f'No group of jaxrl_llm/config/help.py has {field.name}.')


def show(
    what: str, spec: str | None, overrides: Mapping[str, str], program: str,
    more: str) -> None:
  """Prints what --help is asked for.

  Args:
    what: '' for the main fields; a group, a section or a field; `all`; or a
      library, for its names and ours.
    spec: the config's file. Without one, the fields of all that one could
      choose are shown too.
    overrides: dotted field name to text.
    program: module of the program.
    more: text about its other arguments.

  Raises:
    ValueError: there is nothing of this name, or the config is wrong.
  """
  out = console.Console(highlight=False)

  def say(text=''):
    out.print(text, markup=False, soft_wrap=True)

  libraries = {library.lower(): library for library in names.libraries()}
  if what.lower() in libraries:
    if not out.is_terminal:
      out = console.Console(highlight=False, width=_WIDE)
    out.print(_of_library(libraries[what.lower()]))
    return
  fields = [*_fields(spec, overrides)]
  wanted = [one for one in fields if what in (ALL, group_of(one.field))
            or f'{one.field.name}.'.startswith(f'{what}.')]
  if what and not wanted:
    raise ValueError(names.unknown(what, [one.field.name for one in fields]))
  say(f'Usage: python -m jaxrl_llm.{program} --config=FILE.py[:ARG] '
      '[--config.FIELD=VALUE]\n')
  if not spec and not what:
    out.print('Configs of the package, by name, as in --config=countdown: '
              f'{", ".join(files.shipped())}.\n', markup=False)
  if more and not what:
    say(more)
  say(f'Fields, their values {f"in {spec}" if spec else "by default"}, and '
      'what they mean' + ('' if what else (
          '.\n--help=GROUP has all of a group, --help=all those of all groups, '
          'and\n--help=trl, verl or openrlhf the fields for the names of these '
          'libraries')) + ':')
  for name, group in GROUPS.items():
    inside = [one for one in wanted or fields if group_of(one.field) == name]
    if inside:
      say(f'\n{group.title} (--help={name})')
      if what:
        out.print(_rows(inside))
      else:
        out.print(_rows(one for one in inside if not one.choice
                        and one.field.name in group.main))
        out.print(_others(inside, group), markup=False)


def _fields(spec: str | None, overrides: Mapping[str, str]) -> Iterator[_Shown]:
  """Yields the fields of a config; without one, also those of other choices.
  """
  config = files.load(spec, overrides) if spec else nested(
      files.overridden({}, overrides))
  try:
    model = model_config(config)
  except ValueError:  # a model that is not here yet; its fields are its own
    model = None
  flat = flatten(config)
  for field in table_of(flat).values():
    section, _, leaf = field.name.rpartition('.')
    value = _text(flat[field.name])
    if section == 'model' and flat[field.name] is None and hasattr(model, leaf):
      value = f'({_text(getattr(model, leaf))})'
    yield _Shown(field, value)
  if spec:
    return
  others = {f'{by}={name}': hyperparameters(by, name).values()
            for by in PLUG_FIELDS for name in plugs.known(by)
            if name != flat[by] and by not in overrides and not (
                by == 'task.name' and 'task' in overrides)}
  others |= {section.choice: section.fields() for section in SECTIONS
             if not chosen(section, flat)}
  for choice, fields in others.items():
    for field in fields:
      yield _Shown(field, _text(field.default), choice)


def _text(value: Any) -> str:
  """Returns a value as on the command line, with spaces after commas."""
  return 'none' if value == () else values.to_text(value).replace(',', ', ')


def _rows(fields: Iterable[_Shown]) -> table.Table:
  """Returns a table of fields, with a gap between two sections."""
  rows = table.Table(box=None, show_header=False, padding=(0, 1, 0, 0))
  rows.add_column(no_wrap=True, style='cyan')
  rows.add_column(max_width=16, overflow='fold')
  rows.add_column(overflow='fold')
  before = None
  for field, value, choice in fields:
    section = field.name.rpartition('.')[0], choice
    if before not in (None, section):
      rows.add_row()
    if choice and (not before or before[1] != choice):
      rows.add_row(f'with {choice}:'.replace(' or ', ' or\n  '))
    rows.add_row(field.name, value, _meaning(field))
    before = section
  return rows


def _others(inside: Iterable[_Shown], group: Group) -> str:
  """Returns a line with the fields that are not shown; '' if there are none."""
  others = [one.field.name for one in inside
            if not one.choice and one.field.name not in group.main]
  choices = dict.fromkeys(
      one.choice.partition('=')[0] for one in inside if one.choice)
  if choices:
    others.append(f'and others with another {", ".join(choices)}')
  return f'also {", ".join(others)}' if others else ''


def _meaning(field: Field) -> str:
  """Returns a field's meaning, its other choices, and the range of a plug's.
  """
  named = all(one in field.meaning for one in field.choices)
  said = ['' if named else ', '.join(field.choices),
          field.range if field.chosen_by else '']
  return '; '.join([field.meaning, *(text for text in said if text)])


def _of_library(library: str) -> table.Table:
  """Returns a table of a library's names, and of ours."""
  rows = table.Table(box=None, padding=(0, 2, 0, 0))
  for title in (library, 'here', ''):
    rows.add_column(title, overflow='fold')
  for row in names.libraries()[library]:
    rows.add_row('\n'.join(row.names), '\n'.join(row.ours) or '-',
                 row.note.replace('`', ''))
  return rows
