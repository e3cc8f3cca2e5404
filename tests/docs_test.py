"""Tests that what the pages name exists: files, functions, classes, fields.

Blocks of code are parsed here, and executed in readme_test. Links lead to files
and headings, also on the site, whose hooks are tested without building it.

In a paragraph, list item or table row of a page, `a/file.py` sets the file of
the names in backticks that follow it. A name before any file may be in any
file of the package. A name with a dot is a class and its member, or a field of
the config. Source is parsed, not imported.
"""

import ast
import functools
import re
import shlex

import pytest

from jaxrl_llm.config.sections import SECTIONS
from tests.helpers import blocks as blocks_lib

ROOT = blocks_lib.ROOT
PACKAGE = ROOT / 'jaxrl_llm'
# Page to the headings between which it is checked, and the least that it names.
PAGES = {
    'docs/a_tokens_way.md': ('', '', 80), 'docs/glossary.md': ('', '', 120),
    'docs/papers.md': ('', '', 150),
    'CONTRIBUTING.md': ('## What a new thing costs', '## Style', 40)}
PLACEHOLDER = re.compile(r'\b(FILE|NAME|OTHER_CHECKOUT)\b')
NAME = re.compile(r'[A-Za-z_]\w*(\.[A-Za-z_]\w*)*')


@functools.cache
def names(path):
  """Returns what a file binds: names, and Class.member of its classes.

  The names of a function's arguments and variables count, and the keys of
  dictionaries: a page names arrays as the code does.
  """
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ClassDef):
      found |= {f'{node.name}.{member}' for part in node.body
                for member in _bound(part)}
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'dict':
      found |= {keyword.arg for keyword in node.keywords}
    found |= _bound(node)
  return found


def _bound(node):
  """Returns the names that one node binds."""
  if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
    return {node.name}
  if isinstance(node, ast.arg):
    return {node.arg}
  if isinstance(node, (ast.Assign, ast.AnnAssign)):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in ast.walk(target)]
    return {part.id for part in parts if isinstance(part, ast.Name)} | {
        part.value for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)}
  return set()


@functools.cache
def fields():
  """Returns the names of the config's fields, and of their sections."""
  found = {field.name for section in SECTIONS for field in section.fields()}
  return found | {name.partition('.')[0] for name in found}


@functools.cache
def anywhere():
  """Returns what the files of the package bind."""
  return set().union(*map(names, sorted(PACKAGE.rglob('*.py'))))


def place(text):
  """Returns the file or folder of this name, or None."""
  for base in PACKAGE, ROOT:
    if (base / text).exists():
      return base / text
  return None


def blocks(text):
  """Returns paragraphs, list items and table rows, without fenced code."""
  text = re.sub(r'^```.*?^```', '', text, flags=re.DOTALL | re.MULTILINE)
  return re.split(r'\n\s*\n|\n(?=(?:- |\d+\. |\|))', text)


def checked(text):
  """Checks a page.

  Returns:
    How many files and names it names, and those that nothing has.
  """
  count, wrong = 0, []
  for block in blocks(text):
    known = None
    for quoted in re.findall(r'`([^`]+)`', block):
      quoted = ' '.join(quoted.split())
      if PLACEHOLDER.search(quoted):
        continue
      if '/' in quoted and ' ' not in quoted or re.fullmatch(
          r'\S+\.(py|md|txt)', quoted):
        found = place(quoted)
        if found is None:
          wrong.append(quoted)
        elif found.suffix == '.py':
          known = names(found)
      elif NAME.fullmatch(quoted):
        if quoted not in fields() and quoted not in (
            anywhere() if known is None else known):
          wrong.append(f'{quoted} in: {block[:60]}')
      else:
        continue  # a command, a setting or a formula
      count += 1
  return count, wrong


@pytest.mark.parametrize('page', PAGES)
def test_what_a_page_names_exists(page):
  begin, end, least = PAGES[page]
  text = (ROOT / page).read_text()
  count, wrong = checked(
      text[text.index(begin):text.index(end) if end else None])
  assert not wrong
  assert count >= least, f'{page} names {count} files and names'


def test_every_word_of_the_glossary_names_its_place():
  entries = [block for block in blocks((ROOT / 'docs/glossary.md').read_text())
             if block.startswith('- ')]
  assert len(entries) > 50
  words = [re.match(r'- \*\*(.+?)\*\*', entry)[1] for entry in entries]
  assert len(words) == len(set(words))
  for word, entry in zip(words, entries):
    assert checked(entry)[0] >= 2, f'{word} names no file and name'


HOOKS = blocks_lib.hooks()


def headings(text):
  """Returns the anchors of a page's headings, as GitHub and the site make them.
  """
  text = re.sub(r'^```.*?^```', '', text, flags=re.DOTALL | re.MULTILINE)
  return {re.sub(r'[^\w\- ]', '', title).strip().lower().replace(' ', '-')
          for title in re.findall(r'^#+ (.*)$', text, re.MULTILINE)}


@pytest.mark.parametrize('page', [*blocks_lib.PAGES, 'CHANGELOG.md'])
def test_links_lead_somewhere(page):
  text = (ROOT / page).read_text()
  for link, anchor in re.findall(r'\]\(([^)#:]*)(?:#([^)]+))?\)', text):
    target = (ROOT / page).parent.joinpath(link) if link else ROOT / page
    assert target.exists(), f'{page}: {link}'
    assert not anchor or anchor in headings(target.read_text()), (
        f'{page}: {link}#{anchor}')
  HOOKS.linked(text, page, 'https://example.org')


def test_links_of_a_page_of_the_site():
  linked = lambda text, page: HOOKS.linked(text, page, 'https://x.org/p')
  assert linked(
      '![](../docs/curves.png) [a](../README.md#two) [b](speed.md) '
      '[c](../notebooks) [d](../launch/run.py) [e](../launch/FITS.md) '
      '[f](../jaxrl_llm/config/sections.py) [g](https://y.org/h.md) [i](#j)\n'
      '```text\n[k](none.md)\n```\n', 'docs/start.md') == (
      '![](curves.png) [a](index.md#two) [b](speed.md) '
      '[c](https://x.org/p/tree/main/notebooks) '
      '[d](https://x.org/p/blob/main/launch/run.py) [e](launch/FITS.md) '
      '[f](fields.md) [g](https://y.org/h.md) [i](#j)\n'
      '```text\n[k](none.md)\n```\n')
  assert linked('[a](pkpo.png) [b](../../../docs/pkpo.md)',
                'benchmarks/results/claims/pkpo.md') == (
      '[a](pkpo.png) [b](../../../pkpo.md)')
  assert linked('[a](docs/start.md)', 'README.md') == '[a](start.md)'
  with pytest.raises(ValueError, match=r'README.md links to docs/none.md'):
    linked('[a](docs/none.md)', 'README.md')


@pytest.mark.parametrize('text, found', [
    ('<script src="https://x.org/a.js">', ['https://x.org/a.js']),
    ('<link rel="stylesheet" href=//x.org/a.css>', ['//x.org/a.css']),
    ("<img alt='' src='http://x.org/a.png'>", ['http://x.org/a.png']),
    ('a { src: url("https://x.org/f.woff2") }', ['https://x.org/f.woff2']),
    ('@import "https://x.org/a.css";', ['https://x.org/a.css']),
    ('<a class="b" href="https://x.org">x</a> <img src="a.png">', []),
    ('<svg xmlns="http://www.w3.org/2000/svg"> url(a.css)', [])])
def test_what_a_page_loads_is_found(text, found):
  assert HOOKS.loaded(text) == found


def test_every_page_has_its_place_in_the_site():
  nav = set(re.findall(r': ([\w/]+\.md)$', (ROOT / 'mkdocs.yml').read_text(),
                       re.MULTILINE))
  pages = {HOOKS.place(path) for path in HOOKS.in_site()}
  assert nav <= pages
  assert {page for page in pages if '/' not in page
          and page.endswith('.md')} <= nav


def test_the_address_of_the_repository_is_one():
  found = {}
  for name in ('README.md', 'CITATION.cff', 'mkdocs.yml'):
    found[name], = set(re.findall(
        r'https://github\.com/[\w-]+/jaxrl_llm', (ROOT / name).read_text()))
  assert len(set(found.values())) == 1


def test_the_version_is_one():
  cited = re.search(r'^version: (.+)$', (ROOT / 'CITATION.cff').read_text(),
                    re.MULTILINE)[1]
  assert f'\n## {cited}\n' in (ROOT / 'CHANGELOG.md').read_text()


def test_the_readme_is_short():
  assert len((ROOT / 'README.md').read_text().split()) <= 1000


def test_every_block_is_marked():
  found = blocks_lib.every()
  for block in found:
    if block.language in ('text', 'math'):
      assert not block.mark, block
    else:
      assert block.language in ('python', 'sh', 'json', 'yaml'), block
      assert block.mark in blocks_lib.MARKS, (
          f'Mark this block of {block.page} as run, slow or parse:\n'
          f'{block.code}')
  fences = sum((ROOT / page).read_text().count('```')
               for page in blocks_lib.PAGES)
  assert fences == 2 * len(found) > 20


def bound(module):
  """Returns the names of a module of the package, or None: there is none."""
  path = ROOT.joinpath(*module.split('.'))
  if path.is_dir():
    inside = {x.stem for x in path.iterdir()}
    if '__init__' not in inside:  # of configs and launch
      return inside
    tree = ast.parse((path / '__init__.py').read_text())
    return names(path / '__init__.py') | inside | {
        alias.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) for alias in node.names}
  return names(path.with_suffix('.py')) if (
      path.with_suffix('.py').exists()) else None


def wrong_names(code):
  """Returns what a program takes from the package, and it has not."""
  tree, modules, wrong = ast.parse(code), {}, []
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module.startswith('jaxrl_llm'):
      for alias in node.names:
        modules[alias.asname or alias.name] = f'{node.module}.{alias.name}'
        if alias.name not in (bound(node.module) or ()):
          wrong.append(f'{node.module}.{alias.name}')
    elif isinstance(node, ast.Import):
      modules.update((a.asname or a.name, a.name) for a in node.names
                     if a.name.startswith('jaxrl_llm'))
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      module = modules.get(node.value.id)
      has = module and bound(module)
      if has and node.attr not in has:
        wrong.append(f'{module}.{node.attr}')
  return wrong


@pytest.mark.parametrize('block', blocks_lib.every(language='python'))
def test_python_blocks_name_what_there_is(block):
  assert not wrong_names(block.code)


@pytest.mark.parametrize('code, wrong', [
    ('import jaxrl_llm\njaxrl_llm.go()', ['jaxrl_llm.go']),
    ('from jaxrl_llm.ops import pkpo\npkpo.pass_at_k\npkpo.none',
     ['jaxrl_llm.ops.pkpo.none']),
    ('from jaxrl_llm.ops import none', ['jaxrl_llm.ops.none']),
    ('from jaxrl_llm.none import x', ['jaxrl_llm.none.x']),
    ('from jaxrl_llm.rewards import sandbox\nsandbox.make, sandbox.Suite', [])])
def test_names_that_the_package_has_not_are_found(code, wrong):
  assert wrong_names(code) == wrong


@pytest.mark.parametrize('block', blocks_lib.every(language='sh'))
def test_command_lines_name_what_there_is(block):
  """Fields and options: test_every_command_in_the_readme_is_understood."""
  targets = re.findall(
      r'^([\w-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE)
  packaging, _, extras = (ROOT / 'setup.py').read_text().partition(
      'extras_require')
  for line in blocks_lib.lines(block):
    program, *arguments = shlex.split(line, comments=True)
    if program == 'make':
      assert arguments[0] in targets, line
    elif program == 'pip':
      for extra in re.findall(r'\[([\w,]+)\]', line):
        assert all(f"'{x}':" in extras for x in extra.split(',')), line
    elif program == 'python' and arguments[0] == '-m':
      assert bound(arguments[1]) is not None, line
    elif program == 'python':
      assert (ROOT / arguments[0]).exists(), line
    else:
      assert program in ('git', 'cd') or f"'{program} = " in packaging, line


@pytest.mark.parametrize('text', [
    '`ops/no_such_file.py`', '`ops/advantages.py`, `no_such_function`',
    '`ops/pkpo.py`, `grpo`', '`types.py`, `Table.no_such_column`',
    '`types.py`, `RolloutTokens.reward`', '`no_such_function`',
    '`loss.no_such_field`', '| row | `ops/kl.py`, `k9` |'])
def test_what_nothing_has_is_found(text):
  assert checked(f'One.\n\n{text}\n')[1]


def test_a_file_holds_for_its_block_alone():
  assert checked('`ops/advantages.py`, `grpo`: `types.py`, `Table.reward`') == (
      4, [])
  assert checked('- `ops/pkpo.py`\n- `grpo`') == (2, [])
  assert checked('No name.\n```\n`no_such_function`\n```\n') == (0, [])
