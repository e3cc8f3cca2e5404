"""Tests of the source: import directions, sizes of functions, docstrings.

Most parse the source without importing it.
"""

import ast
import collections
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / 'jaxrl_llm'
FILES = sorted(PACKAGE.rglob('*.py'))  # without those behind links
EXAMPLES = sorted((PACKAGE / 'examples').glob('*.py'))
PROGRAMS = {'train', 'evaluate', 'export', 'sft'}
ABOVE = {*PROGRAMS, 'cli', 'jobs', '__init__'}  # what the other parts serve

# What each part may import of the package beside itself. A part is a folder or
# a file of the package, or an example; one that is not listed only has to be
# free of cycles. A module that a text names counts as imported.
ALLOWED = {
    'types': {'base'},
    'base': set(),
    'storage': {'base'},
    'ops': {'types'},
    'models': {'base', 'ops', 'storage', 'types'},
    'sharding': {'base', 'ops', 'types'},
    'sampling': {'base', 'models', 'ops', 'types'},
    'learner': {'base', 'models', 'ops', 'sharding', 'types'},
    'answers': set(),
    'rewards': {'answers', 'base'},
    'environments': {'answers', 'base', 'rewards'},
    'tasks': {
        'answers', 'base', 'environments', 'examples.calculator', 'rewards',
        'storage'},
    'curriculum': {'ops', 'types'},
    'selection': {'base', 'ops', 'types'},
    'config': {
        'base', 'curriculum', 'learner', 'models', 'ops', 'sampling',
        'selection', 'storage', 'tasks', 'types', *(
            f'examples.{path.stem}' for path in EXAMPLES)},
    'monitoring': {'base', 'storage', 'types'},
    'loop': {
        'base', 'environments', 'learner', 'models', 'monitoring', 'rewards',
        'sampling', 'sharding', 'storage', 'tasks', 'types'},
    'prepare': {
        'base', 'checkpoint', 'config', 'learner', 'loop', 'models', 'ops',
        'sampling', 'sharding', 'storage', 'tasks', 'types'},
    'evaluation': {
        'base', 'checkpoint', 'config', 'loop', 'models', 'monitoring',
        'prepare', 'sampling', 'storage', 'tasks'},
}


@functools.cache
def tree(path):
  """Returns the syntax tree of a file."""
  return ast.parse(path.read_text())


def module_of(path):
  """Returns the name of a file's module; that of a package for `__init__`."""
  return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix(
      '.__init__') if path.parent != PACKAGE else f'jaxrl_llm.{path.stem}'


def part(module):
  """Returns the part of a module: 'ops' for 'jaxrl_llm.ops.kl'."""
  _, first, *rest = module.split('.')
  return '.'.join([first, *rest[:1]]) if first == 'examples' else first


def named(path):
  """Returns the package's modules that texts of a file name.

  Such as 'jaxrl_llm.ops.kl', 'jaxrl_llm.ops.kl:k3' or, in front of a name that
  is filled in, 'jaxrl_llm.ops.'.
  """
  texts = {node.value for node in ast.walk(tree(path))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)}
  return MODULES & {
      text.partition(':')[0].removesuffix('.') for text in texts}


MODULES = {*map(module_of, FILES + EXAMPLES)}


def imported(path):
  """Returns the package's modules that a file imports, also in functions."""
  for node in ast.walk(tree(path)):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}: import by the full name'
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    yield from (n for n in names if n.startswith('jaxrl_llm.'))


def graph():
  """Returns the import graph: part to the other parts that it imports."""
  edges = {}
  for path in FILES + EXAMPLES:
    name = part(module_of(path))
    edges.setdefault(name, set()).update(
        map(part, {*imported(path), *named(path)}))
    edges[name].discard(name)
  return edges


def module_graph():
  """Returns the import graph of files within the package."""
  names = {'.'.join(path.relative_to(ROOT).with_suffix('').parts): path
           for path in FILES + EXAMPLES}
  edges = {}
  for name, path in names.items():
    found = set()
    for module in imported(path):
      while not {module, f'{module}.__init__'} & names.keys():
        module = module.rpartition('.')[0]
      if f'{module}.__init__' in names:
        module = f'{module}.__init__'
      found.add(module)
    edges[name] = (found & names.keys()) - {name}
  return edges


def test_imports_point_one_way():
  edges = graph()
  assert ALLOWED.keys() <= edges.keys()
  for name, allowed in ALLOWED.items():
    extra = edges.get(name, set()) - allowed
    assert not extra, f'{name} must not import {", ".join(sorted(extra))}'


# Folders that could be taken out of the package, and what each may import of it
# beside itself.
ROOMS = {
    'answers': (),
    'rewards/sandbox': (),
    'models/gguf': ('models.tensor_files', 'base.phases'),
}


@pytest.mark.parametrize('room', ROOMS)
def test_rooms_import_nothing_of_the_others(room):
  own = room.replace('/', '.')
  seen = 0
  for path in (PACKAGE / room).rglob('*.py'):
    for module in imported(path):
      inside = module.removeprefix('jaxrl_llm.') + '.'
      assert inside.startswith((
          f'{own}.', *(f'{name}.' for name in ROOMS[room]))), (
              f'{path.relative_to(ROOT)} must not import {module}')
      seen += 1
  assert seen > 10


def test_loop_and_device_code_read_no_config():
  for path in FILES:
    if path.parent.name in ('curriculum', 'learner', 'loop', 'models', 'ops',
                            'sampling', 'selection'):
      assert 'ml_collections' not in path.read_text(), path


def test_nothing_imports_a_program():
  for name, others in graph().items():
    assert not others & PROGRAMS, name
    assert name in ABOVE or not others & ABOVE, name


@pytest.mark.parametrize('edges', [graph(), module_graph()])
def test_no_cycles(edges):
  assert sum(map(len, edges.values())) > 20
  while edges:
    free = {name for name, others in edges.items() if not others & edges.keys()}
    assert free, f'these import each other: {sorted(edges)}'
    edges = {n: others for n, others in edges.items() if n not in free}


def test_few_floors():
  """The longest chain of parts, each of which imports the next one."""
  edges = graph()

  @functools.cache
  def chain(name):
    longest = max(map(chain, edges.get(name, ())), key=len, default=())
    return (name, *longest)

  longest = max(map(chain, edges), key=len)
  assert len(longest) <= 11, f'{len(longest)} floors: {" > ".join(longest)}'


def test_texts_that_name_modules_are_read():
  assert 'jaxrl_llm.environments.worker' in named(
      PACKAGE / 'environments/turns.py')
  assert named(PACKAGE / 'curriculum/__init__.py') == {'jaxrl_llm.curriculum'}


def test_examples_import_nothing_private():
  """They are like files of users, who have the parts that docs/ shows."""
  assert len(EXAMPLES) > 4
  for path in EXAMPLES:
    for module in imported(path):
      assert part(module) in (
          'base', 'environments', 'examples.calculator', 'rewards',
          'tasks'), f'{path}: {module}'
      assert '._' not in module, f'{path}: {module}'


def test_few_files_lie_loose():
  """A new file has its place in one of the folders."""
  assert len([*PACKAGE.glob('*.py')]) <= 11


# Names that the protocol of plugs gives: each plug may have one of its own.
OF_PLUGS = {'Options', 'create'}
# Functions `make` that users call by the name of their module.
MAKERS = {'curriculum/groups.py', 'rewards/sandbox/__init__.py'}


def test_a_class_name_stands_once():
  places = collections.defaultdict(list)
  for path in FILES:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ClassDef):
        places[node.name].append(f'{path.relative_to(ROOT)}:{node.lineno}')
  assert len(places) > 250
  for name, found in places.items():
    assert len(found) == 1 or name in OF_PLUGS, f'{name}: {", ".join(found)}'


def test_a_function_is_named_by_the_thing_it_makes():
  for path in FILES:
    place = path.relative_to(PACKAGE).as_posix()
    plugs = place.partition('/')[0] in (
        'curriculum', 'environments', 'selection', 'tasks')
    for node in ast.parse(path.read_text()).body:
      if isinstance(node, ast.FunctionDef):
        assert node.name != 'make' or place in MAKERS, place
        assert node.name != 'create' or plugs, place


def lines_and_arguments(node):
  """Returns the lines of a function without its docstring, and its arguments.
  """
  first = node.body[0]
  said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
  lines = node.end_lineno - node.lineno + 1 - said * (
      first.end_lineno - first.lineno + 1)
  given = node.args
  names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
  return lines, len([name for name in names if name not in ('self', 'cls')])


# Functions to be read from top to bottom.
STORIES = ('loop/step.py', 'take_step'), ('learner/update.py', 'update')


def test_functions_are_short_and_have_few_arguments():
  """A nested function counts in its parent too."""
  seen = 0
  for path in [*FILES, *(ROOT / 'launch').rglob('*.py')]:
    for node in ast.walk(tree(path)):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        lines, arguments = lines_and_arguments(node)
        story = '/'.join(path.parts[-2:]), node.name
        most = 120 if story in STORIES else 60
        assert lines <= most, f'{path}:{node.lineno} {node.name}: {lines} lines'
        assert arguments <= 8, f'{path}:{node.lineno} {node.name}: {arguments}'
        seen += 1
  assert seen > 1000


def test_the_drawing_has_the_tree():
  """Every module stands in the drawing, and nothing else does."""
  text = (ROOT / 'docs/house.md').read_text().partition('## The house')[2]
  drawing = text.split('```')[1].partition('configs/')[0]
  words = set(re.findall(r'\w+', drawing))
  for path in FILES:
    name = path.stem if path.stem != '__init__' else path.parent.name
    assert name in words, f'house.md does not draw {path.relative_to(ROOT)}'
  for name in re.findall(r'(\w+)\.py', drawing):
    assert (PACKAGE / f'{name}.py').exists(), name
  for folder in re.findall(r'^  (\w+)/', drawing, re.MULTILINE):
    assert (PACKAGE / folder).is_dir(), folder


def test_only_programs_print():
  for path in FILES:
    if path.parent.name == 'jobs' or path == PACKAGE / 'sft.py':
      continue
    for node in ast.walk(tree(path)):
      assert not (isinstance(node, ast.Call)
                  and isinstance(node.func, ast.Name)
                  and node.func.id == 'print'), f'{path}:{node.lineno}'


def public(body, prefix=''):
  """Yields public functions, classes and methods with their dotted names.

  Leaves out properties, since a class's docstring lists its attributes.
  """
  for node in body:
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      continue
    is_property = any('property' in ast.unparse(d) for d in node.decorator_list)
    if node.name.startswith('_') or is_property:
      continue
    yield prefix + node.name, node
    if isinstance(node, ast.ClassDef):
      yield from public(node.body, f'{prefix}{node.name}.')


def test_everything_public_has_a_docstring():
  launch = sorted((ROOT / 'launch').glob('*.py'))
  for path in FILES + EXAMPLES + launch:
    module = tree(path)
    if path.name != '__init__.py' or module.body:
      assert ast.get_docstring(module), f'{path} says nothing at its top'
    for name, node in public(module.body):
      assert ast.get_docstring(node), f'{path}: {name} has no docstring'
