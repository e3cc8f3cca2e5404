"""Hooks of the documentation's build, of which `mkdocs.yml` has the settings.

README.md is the home page. CONTRIBUTING.md, CHANGELOG.md and the reports are
pages too, where the repository has them. Links between files are written as
they work in the repository, and changed here to those of the site; what the
site does not have is linked in the repository. Two pages are made from the
code, fields and metrics; a link to their source leads to them. The end of the
build fails if a page would load anything from a network.
"""

import ast
import functools
import html
import itertools
import pathlib
import posixpath
import re
from typing import Any, Iterable, Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / 'jaxrl_llm'
# Files beside docs/ that are part of the site.
BESIDE = (
    'README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'launch/FITS.md',
    'benchmarks/README.md', 'benchmarks/results/**/*.md',
    'benchmarks/results/**/*.png')
# Sources of which the site has a page: links lead to it.
MADE = {
    'jaxrl_llm/config/sections.py': ('fields.md', lambda: fields()),
    'jaxrl_llm/loop/step_metrics.py': ('metrics.md', lambda: metrics())}

_FENCE = re.compile(r'(^```.*?^```$)', re.DOTALL | re.MULTILINE)
_LINK = re.compile(r'\]\(([^)\s:#]+)(#[^)\s]*)?\)')
# Attributes of any element but a link to follow, and what style sheets name.
_LOADED = re.compile(
    r'''<(?!a\b)[a-z]+\b[^>]*?\s(?:src|srcset|href|data|poster)=["']?'''
    r'''((?:https?:)?//[^"'\s>]+)'''
    r'''|(?:url\(|@import\s)\s*["']?((?:https?:)?//[^"')\s]+)''')


class Metric(NamedTuple):
  """Declaration of a metric, from the docstring of the module that computes it.

  Attributes:
    unit: such as 'tokens'.
    meaning: one line.
    module: file of the package.
  """
  unit: str
  meaning: str
  module: str


def place(path: str) -> str:
  """Returns where the site has a file of the repository."""
  if path in MADE:
    return MADE[path][0]
  return 'index.md' if path == 'README.md' else path.removeprefix('docs/')


@functools.cache
def in_site() -> frozenset[str]:
  """Returns the files of the repository that are part of the site."""
  docs = [*(ROOT / 'docs').glob('*.md'), *(ROOT / 'docs').glob('*.png')]
  beside = itertools.chain(*map(ROOT.glob, BESIDE))
  return frozenset(
      str(path.relative_to(ROOT)) for path in (*docs, *beside)) | {*MADE}


def linked(markdown: str, page: str, repository: str) -> str:
  """Changes a page's links to those of the site.

  Args:
    markdown: text of the page.
    page: its path in the repository.
    repository: address of the repository.

  Raises:
    ValueError: a link leads to no file.
  """
  def change(match):
    target, anchor = match[1], match[2] or ''
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if path in in_site():
      at = posixpath.relpath(place(path), posixpath.dirname(place(page)) or '.')
    elif not path.startswith('../') and (ROOT / path).exists():
      kind = 'tree' if (ROOT / path).is_dir() else 'blob'
      at = f'{repository}/{kind}/main/{path}'
    else:
      raise ValueError(f'{page} links to {target}, which is no file.')
    return f']({at}{anchor})'

  parts = _FENCE.split(markdown)
  parts[::2] = [_LINK.sub(change, part) for part in parts[::2]]
  return ''.join(parts)


def loaded(text: str) -> list[str]:
  """Returns the addresses in a network that a page or style sheet loads."""
  return [''.join(found) for found in _LOADED.findall(text)]


_METRIC = re.compile(r'^  (\S+) \[(.+?)\]: (.*(?:\n    .*)*)', re.MULTILINE)


@functools.cache
def declared() -> dict[str, Metric]:
  """Returns the metrics that the package declares, by name.

  A module that names metrics lists them in its docstring, in the section
  Metrics, as `name [unit]: meaning`. A part of a name in angle brackets stands
  for any text without a slash.

  Raises:
    ValueError: a metric is declared twice.
  """
  found: dict[str, Metric] = {}
  for path in sorted(PACKAGE.rglob('*.py')):
    said = ast.get_docstring(ast.parse(path.read_text())) or ''
    module = str(path.relative_to(PACKAGE))
    for name, unit, meaning in _METRIC.findall(
        said.partition('\nMetrics:\n')[2]):
      if name in found:
        raise ValueError(
            f'{name} is declared in {found[name].module} and in {module}.')
      found[name] = Metric(unit, ' '.join(meaning.split()), module)
  return found


@functools.cache
def _known() -> re.Pattern[str]:
  return re.compile('|'.join(
      re.sub('<[^>]+>', '[^/]+', re.escape(name)) for name in declared()))


def undeclared(names: Iterable[str]) -> set[str]:
  """Returns the metrics among these names that no table declares."""
  return {name for name in names if not _known().fullmatch(name)}


def _text(text: str) -> str:
  """Returns a text as Markdown of a table's cell."""
  return re.sub(r'([|*_\[\]`\\])', r'\\\1', html.escape(text, quote=False))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
  lines = [head, ('---',) * len(head), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def metrics() -> str:
  """Returns the page of all metrics."""
  parts = [
      '# Every metric\n\nA step writes one row of metrics to `metrics.jsonl`, '
      'and the same numbers to TensorBoard. This page is made from the '
      'docstrings of the modules that compute them. A name in angle brackets '
      'stands for one of several. A metric that cannot be known in a step, '
      'such as a mean over no rows, is null.']
  for section, names in itertools.groupby(
      sorted(declared(), key=_section), key=_section):
    found = {name: declared()[name] for name in names}
    modules = ', '.join(sorted({f'`{x.module}`' for x in found.values()}))
    rows = [(f'`{name}`', _text(x.unit), _text(x.meaning))
            for name, x in found.items()]
    parts.append(f'## {section}\n\nIn {modules}.\n\n' + _table(
        ('metric', 'unit', 'meaning'), rows))
  return '\n\n'.join(parts) + '\n'


def _section(name: str) -> str:
  return name.partition('/')[0]


def _field_rows(of: Iterable[Any]) -> Iterator[tuple[str, ...]]:
  """Yields the cells of fields; imports the package's configs."""
  from jaxrl_llm import config
  from jaxrl_llm.base import declared

  for field in of:
    default = config.to_text(field.default)
    bounds = ', '.join(field.choices) or field.range
    yield (
        f'`{field.name}`', default and f'`{default}`', _text(bounds),
        'fixed' if declared.WEIGHTS in field.affects else '',
        _text(field.meaning))


def fields() -> str:
  """Returns the page of all fields."""
  from jaxrl_llm.config import plugs
  from jaxrl_llm.config import table as table_lib
  from jaxrl_llm.config.plugs import PLUG_FIELDS
  from jaxrl_llm.config.sections import SECTIONS

  head = 'field', 'default', 'values', 'in a run', 'meaning'
  parts = [
      '# Every field\n\nThis page is made from the table of fields. '
      '`--help` prints the same with the values of a config. A field is set '
      'by `--config.FIELD=VALUE`, or in a config file. A fixed field keeps '
      'its value for as long as a run goes on: with another value, the run '
      'needs another workdir. Others may change when a run goes on.']
  named = [(by, plug) for by in PLUG_FIELDS for plug in plugs.known(by)]
  named += [('task.name', f'jaxrl_llm.examples.{file.stem}')
            for file in sorted((ROOT / 'examples').glob('*.py'))
            if 'def create(' in file.read_text()]
  choices = {
      f'{by}={plug}': [*table_lib.hyperparameters(by, plug).values()]
      for by, plug in named}
  own = {field.name for fields in choices.values() for field in fields}
  common = [x for x in table_lib.table().values() if x.name not in own]
  section = lambda field: field.name.rpartition('.')[0] or 'The run'
  order = sorted(
      {section(x): None for x in common},
      key=lambda name: name != 'The run')  # the rest stays in its order
  for name in order:
    rows = _field_rows(x for x in common if section(x) == name)
    parts.append(f'## {name}\n\n' + _table(head, rows))
  choices |= {section.choice: section.fields() for section in SECTIONS
              if section.choice}
  parts.append(
      '## Fields of a choice\n\nThese exist with a choice alone. An actor of '
      'another model also has the fields of `model`, as `actor.model`.')
  parts += [f'### {choice}\n\n' + _table(head, _field_rows(of))
            for choice, of in choices.items() if of]
  return '\n\n'.join(parts) + '\n'


def formula(source: str, *args: Any, **options: Any) -> str:
  """Returns a fenced block of TeX as MathML, which browsers draw themselves."""
  from latex2mathml import converter
  return converter.convert(source, display='block')


def on_config(config: Any) -> Any:
  """Draws blocks of `math`, which GitHub draws too."""
  config.mdx_configs.setdefault('pymdownx.superfences', {})['custom_fences'] = [
      dict(name='math', **{'class': 'math'}, format=formula)]
  return config


def on_files(files: Any, config: Any) -> Any:
  """Adds the pages that are not in docs/."""
  from mkdocs.structure.files import File
  for path in sorted(in_site()):
    if path in MADE:
      files.append(File.generated(
          config, place(path), content=MADE[path][1]()))
    elif not path.startswith('docs/'):
      files.append(File.generated(
          config, place(path), abs_src_path=str(ROOT / path)))
  return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
  """Changes the links of a page."""
  path, = [x for x in in_site() if place(x) == page.file.src_uri]
  return linked(markdown, path, config.extra['repository'])


def on_post_build(config: Any) -> None:
  """Fails if a page loads something from a network."""
  from mkdocs import exceptions
  site = pathlib.Path(config.site_dir)
  for path in sorted([*site.rglob('*.html'), *site.rglob('*.css')]):
    if found := loaded(path.read_text()):
      raise exceptions.PluginError(f'{path} loads {", ".join(found)}.')
