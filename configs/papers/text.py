"""Texts made of the papers' values: headers of the configs and docs/papers.md.
"""

import functools
import pathlib
import re
import textwrap
import types
from typing import Iterable, Iterator, Mapping

from jaxrl_llm import config
from jaxrl_llm.config import files as config_files
from jaxrl_llm.config.table import table
from jaxrl_llm.configs.papers import parts, values

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs/papers.md'
# The rest of a config's header, from this line on, is made here.
MARK = 'Beside the paper, as python -m configs.papers writes it:'

_INTRO = '''# The papers, part by part

Written by `python -m configs.papers` from `configs/papers/values.py` and
`configs/papers/parts.py`; `tests/configs_papers_test.py` builds every config
and compares it with these values. "true" means that the method or the setting
is as in the paper, not that its result was reached: the results in
benchmarks/results/claims are of small models.

An experiment is what a config file names as PAPER, with its argument after a
colon. "all large" are those but the ones on small tasks, which take the methods
alone: their sizes, steps and learning rates are their own. configs/all_four.py
is of no paper.'''
# Of these sections a paper may say more than it does.
_SAID = 'sampling.', 'loss.', 'optimizer.', 'learner.', 'actor.'


@functools.cache
def modules() -> list[tuple[pathlib.Path, types.ModuleType]]:
  """Returns the config files of papers, and their modules."""
  files = [path for path in sorted((ROOT / 'configs').rglob('*.py'))
           if path.parent.name != 'papers']
  found = [(path, config_files.load_file(str(path))) for path in files]
  return [(path, module) for path, module in found if hasattr(module, 'PAPER')]


def experiments(module: types.ModuleType) -> dict[str, str]:
  """Returns {argument: name of the experiment} of a config file's module.

  The argument '' is left out where another stands for it.
  """
  names = {arg: f'{module.PAPER}:{arg}'.rstrip(':') for arg in dict.fromkeys((
      '', *getattr(module, 'ARGS', ()), *getattr(module, 'VARIANTS', ())))}
  return without_aliases(names)


def without_aliases(names: Mapping[str, str]) -> dict[str, str]:
  """Leaves out the argument '' where another has the same experiment."""
  first = values.EXPERIMENTS[names['']] if '' in names else None
  again = any(values.EXPERIMENTS[name] is first
              for arg, name in names.items() if arg)
  return {arg: name for arg, name in names.items() if arg or not again}


def differences(name: str) -> list[str]:
  """Returns a text for each value of an experiment that is not the paper's."""
  one = values.EXPERIMENTS[name]
  return [
      f'{field}={_text(value)}, in the paper {_text(one.paper[field][0])} '
      f'({one.paper[field][1]}): {why}'
      for field, (value, why) in one.ours.items() if field in one.paper]


def choices(name: str) -> list[str]:
  """Returns a text for each value that the paper does not give."""
  one = values.EXPERIMENTS[name]
  texts = []
  for field, (value, why) in one.ours.items():
    if field not in one.paper:
      more = re.sub(
          '^not given( for (a|this) (task|experiment|model))?(; )?', '', why)
      texts.append(f'{field}={_text(value)}' + (f' ({more})' if more else ''))
  return texts


def header(module: types.ModuleType) -> str:
  """Returns the generated end of a config's header, without a last newline."""
  names = experiments(module)
  lines = [MARK]
  for text, args in _grouped(names, differences):
    lines += _wrapped(f'- {_prefix(args, names)}{text}.', '  ')
  for args, texts in _by_args(_grouped(names, choices)):
    lines += _wrapped(
        f'- {_prefix(args, names)}not given in the paper: '
        f'{"; ".join(texts)}.', '  ')
  return '\n'.join(lines)


def with_header(source: str, module: types.ModuleType) -> str:
  """Returns a config file's text with the generated part of its header."""
  end = source.index('"""', 3)
  written = source[:end].partition(f'\n{MARK}')[0].rstrip()
  return f'{written}\n\n{header(module)}\n{source[end:]}'


def page() -> str:
  """Returns docs/papers.md."""
  blocks = [_INTRO]
  for paper in parts.PARTS:
    blocks += [f'## {paper.title}', _table(
        ('part', 'here', 'where, or how'),
        ((part.name, part.verdict, part.where) for part in paper.parts))]
    if paper.prefix:
      blocks += _of_experiments(paper.prefix)
  return '\n\n'.join(blocks) + '\n'


def _of_experiments(prefix: str) -> Iterator[str]:
  """Yields the blocks about the experiments of a paper."""
  named = {name: name for name, one in values.EXPERIMENTS.items()
           if name.startswith(prefix) and not any(
               one is other and f'{name}:' in longer
               for longer, other in values.EXPERIMENTS.items())}
  for title, texts in (('Differences', differences),
                       ('Not given in the paper', choices)):
    yield f'### {title}'
    yield _table(('experiments', 'field, value and reason'), (
        (_short(names, named), text)
        for text, names in _grouped(named, texts)))
  yield '### Defaults'
  yield _defaults(prefix)
  merged = {}
  for name in named:
    for row in _arms(values.EXPERIMENTS[name]):
      merged.setdefault(row, []).append(name)
  yield '### Arms of the sweeps'
  yield _table(('experiments', 'in the paper', 'arms'), (
      (_short(names, named), *row) for row, names in merged.items()))


def _defaults(prefix: str) -> str:
  """Returns the paragraph on fields of large experiments that no line has."""
  found = {}
  for _, module in modules():
    for arg, name in experiments(module).items():
      one = values.EXPERIMENTS[name]
      if not name.startswith(prefix) or one.small:
        continue
      made = module.get_config(arg) if arg else module.get_config()
      flat = config_files.overridden(config.flatten(made), {})
      fields = table(flat)
      for field, value in flat.items():
        if (field.startswith(_SAID) and not field.startswith('actor.model.')
            and config.WEIGHTS in fields[field].affects
            and value == fields[field].default and value not in (None, ())
            and field not in {*one.paper, *one.ours}):
          found.setdefault(f'{field}={_text(value)}', None)
  return '\n'.join(textwrap.wrap(
      'Large experiments: of the sections '
      f'{", ".join(section[:-1] for section in _SAID)}, fields that the paper '
      "does not give and no line here has are at this library's defaults: "
      f'{", ".join(sorted(found))}.', 80, break_on_hyphens=False,
      break_long_words=False))


def _arms(one: values.Experiment) -> list[tuple[str, str]]:
  """Returns (source, names of its arms, with what is ours of them)."""
  found = {}
  for arm in one.arms:
    more = f' (not swept: {arm.left_out})' if arm.left_out else ''
    found.setdefault((arm.source or 'ours', arm.ours), []).append(
        arm.name + more)
  return [(source, '; '.join(names) + (f': {ours}' if ours else ''))
          for (source, ours), names in found.items()]


def _short(names: Iterable[str], known: Mapping[str, str]) -> str:
  """Returns names of experiments, or 'all' or 'all but those on small tasks'.
  """
  names = [*names]
  large = [n for n in known if not values.EXPERIMENTS[n].small]
  if names == [*known]:
    return 'all'
  return 'all large' if names == large else ', '.join(names)


def _grouped(names: Mapping[str, str], texts) -> list[tuple[str, list[str]]]:
  """Returns texts of experiments, each with the keys of those that have it."""
  found = {}
  for arg, name in names.items():
    for text in texts(name):
      found.setdefault(text, []).append(arg)
  return [*found.items()]


def _by_args(
    grouped: Iterable[tuple[str, list[str]]],
) -> list[tuple[list[str], list[str]]]:
  """Returns the texts of each list of arguments."""
  found = {}
  for text, args in grouped:
    found.setdefault(tuple(args), []).append(text)
  return [*found.items()]


def _prefix(args: Iterable[str], names: Mapping[str, str]) -> str:
  """Returns the arguments that a line is about, '' for all."""
  if len([*args]) == len(names):
    return ''
  return ', '.join(arg or 'without argument' for arg in args) + ': '


def _text(value: object) -> str:
  """Returns a field's value as on the command line."""
  return config.to_text(value) or "''"


def _wrapped(text: str, indent: str) -> list[str]:
  """Returns lines of at most 80 columns."""
  return textwrap.wrap(
      text, 80, subsequent_indent=indent, break_long_words=False,
      break_on_hyphens=False)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
  """Returns a Markdown table."""
  lines = [head, ('---',) * len(head), *rows]
  return '\n'.join(
      f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in line)} |'
      for line in lines)
