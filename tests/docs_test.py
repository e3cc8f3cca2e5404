"""Tests that what the pages name exists: files, functions, classes, fields.

In a paragraph, list item or table row of a page, `a/file.py` sets the file of
the names in backticks that follow it. A name before any file may be in any
file of the package. A name with a dot is a class and its member, or a field of
the config. Source is parsed, not imported.
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
  tree = ast.parse((PACKAGE / 'config/fields.py').read_text())
  found = {call.args[0].value for call in ast.walk(tree)
           if isinstance(call, ast.Call) and call.args
           and getattr(call.func, 'id', '') == 'Field'}
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


def test_links_lead_somewhere():
  for page in (*PAGES, 'README.md'):
    for link in re.findall(r'\]\(([^)#:]+)\)', (ROOT / page).read_text()):
      assert (ROOT / page).parent.joinpath(link).exists(), f'{page}: {link}'


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
