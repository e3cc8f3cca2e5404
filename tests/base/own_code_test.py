"""Tests of the import of the user's modules: which one, once, and errors."""

import fractions
import importlib
import sys
import types

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.base import own_code


@pytest.fixture(autouse=True)
def restored(monkeypatch):
  """Restores what imports change: `sys.path` and `sys.modules`."""
  monkeypatch.setattr(sys, 'path', [*sys.path])
  before = {*sys.modules}
  importlib.invalidate_caches()
  yield
  for name in {*sys.modules} - before:
    del sys.modules[name]


def write(path, text):
  path.parent.mkdir(exist_ok=True)
  path.write_text(text)
  return str(path)


def refused(match, load, name):
  with pytest.raises(ValueError, match=match) as error:
    load(name)
  assert '\n' not in str(error.value)


def test_a_file_is_one_module_under_every_path(tmp_path, monkeypatch):
  path = write(tmp_path / 'a/mine.py', 'made = object()')
  found = own_code.load(path)
  monkeypatch.chdir(tmp_path)
  for other in ('a/mine.py', './a/../a/mine.py'):
    assert own_code.load(other) is found
  monkeypatch.setenv('HOME', str(tmp_path))
  assert own_code.load('~/a/mine.py') is found
  (tmp_path / 'link.py').symlink_to(path)
  assert own_code.load('link.py') is found
  # Another file of the same name is another module.
  other = own_code.load(write(tmp_path / 'b/mine.py', 'made = 3'))
  assert other is not found and other.made == 3


def test_a_file_hides_no_module(tmp_path):
  import json
  found = own_code.load(write(tmp_path / 'json.py', 'made = 1'))
  assert found is not json and sys.modules['json'] is json
  assert importlib.import_module('json') is json


def test_a_file_imports_those_beside_it(tmp_path):
  write(tmp_path / 'beside_it.py', 'made = 5')
  path = write(tmp_path / 'a.py', 'from beside_it import made')
  write(tmp_path / 'b.py', '')
  assert own_code.load(path).made == 5
  own_code.load(str(tmp_path / 'b.py'))
  assert sys.path.count(str(tmp_path)) == 1
  # They come last, so that none hides an installed package.
  assert sys.path[-1] == str(tmp_path)


def test_dataclasses_with_annotations_in_quotes(tmp_path):
  found = own_code.load(write(
      tmp_path / 'a.py', 'from __future__ import annotations\n'
      'import dataclasses\n@dataclasses.dataclass\nclass A:\n  x: int = 3\n'))
  assert found.A().x == 3


def test_dotted_names(tmp_path, monkeypatch):
  write(tmp_path / 'some_package/__init__.py', '')
  write(tmp_path / 'some_package/inside.py', 'def f():\n  return 4')
  monkeypatch.syspath_prepend(str(tmp_path))
  found = own_code.load('some_package.inside')
  assert found.__name__ == 'some_package.inside'
  assert own_code.function('some_package.inside:f')() == 4


@pytest.mark.parametrize('text, line, said', [
    ('x = 1\n\ny = x + z\n', 3, "NameError: name 'z'"),
    ('x = 1\ndef f(:\n  pass\n', 2, 'SyntaxError'),
    ('import no_such_package\n', 1, "ModuleNotFoundError: .*no_such_package"),
    ('import json\n\njson.loads("{")\n', 3, 'JSONDecodeError'),
    ('raise RuntimeError("two\\nlines")\n', 1, 'RuntimeError: two lines'),
    ('import sys\nsys.exit()\n', 2, 'SystemExit'),
    ('x = 1\nclass E(BaseException):\n  pass\nraise E\n', 4, 'E'),
    ('def f():\n  return f()\nf()\n', 2, 'RecursionError'),
])
def test_a_file_that_fails_is_named_with_its_line(
    tmp_path, monkeypatch, text, line, said):
  path = tmp_path / 'bad_one.py'
  write(path, text)
  monkeypatch.syspath_prepend(str(tmp_path))
  match = f'cannot be imported .*{said}.*: correct {path}, line {line}.$'
  refused(f'^{path} {match}', own_code.load, str(path))
  refused(f'^bad_one {match}', own_code.load, 'bad_one')
  # It is tried again once it is corrected.
  write(path, 'x = 1')
  assert own_code.load(str(path)).x == 1


@pytest.mark.parametrize('data, line', [
    (b'x = 1\ny = "\0"', 'line 2'), (b'x = 1\n# caf\xe9', 'line 2'),
    (b'# coding: none\nx = 1', 'line 1'), (b'\xff\xfe', 'line 1')])
def test_a_file_that_is_no_text_is_named_with_its_line(tmp_path, data, line):
  path = tmp_path / 'a.py'
  path.write_bytes(data)
  refused(f'SyntaxError: .*: correct {path}, {line}.$', own_code.load,
          str(path))


def test_a_failure_in_a_module_beside_it_names_that_one(tmp_path):
  write(tmp_path / 'beside_too.py', '\nx = y\n')
  path = write(tmp_path / 'a.py', 'import beside_too')
  refused(f'correct {tmp_path}/beside_too.py, line 2', own_code.load, path)


def test_what_is_not_there(tmp_path, monkeypatch):
  write(tmp_path / 'rewards.py', '')
  monkeypatch.chdir(tmp_path)
  refused(f"^There is no file {tmp_path}/reward.py. Did you mean "
          f"'{tmp_path}/rewards.py'", own_code.load, 'reward.py')
  refused("There is no file .*x.py. Give the path", own_code.load, 'none/x.py')
  refused("There is no module 'no_such.task' .*FILE.py", own_code.load,
          'no_such.task')
  refused("There is no module 'json.no_such'", own_code.load, 'json.no_such')
  for name in ('./rewards', '.rewards', 'rewards.txt/', 'a b.c', 'a..b'):
    refused(f"'{name}' names no module: write", own_code.load, name)


def test_functions(tmp_path):
  path = write(tmp_path / 'a.py', 'from json import loads\nscores = 3\n'
               'def score():\n  return 7\n')
  assert own_code.function(f'{path}:score')() == 7
  refused(f"{path} has no function 'scores'. Did you mean 'score'. Known: "
          'score.', own_code.function, f'{path}:scores')
  refused("has no function 'f'. Define it there",
          own_code.function, write(tmp_path / 'b.py', '') + ':f')
  for name in (path, 'some.module', f'{path}:', ':f', ''):
    refused('does not name a function: write FILE.py:NAME', own_code.function,
            name)
  refused('There is no file', own_code.function, f'{path[:-3]}x.py:score')


def test_absolute(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', '/home/me')
  for name, want in {
      'a.py': f'{tmp_path}/a.py', 'a.py:f': f'{tmp_path}/a.py:f',
      '../a.py:f': f'{tmp_path.parent}/a.py:f', '/x/a.py:f': '/x/a.py:f',
      '~/a.py': '/home/me/a.py', 'a.b': 'a.b', 'a.b:f': 'a.b:f', '': '',
      'countdown': 'countdown'}.items():
    assert own_code.absolute(name) == want
    assert own_code.absolute(want) == want


TASK = '''
import dataclasses, types

@dataclasses.dataclass
class Options:
  sides: int = 6

def create(tokenizer, options: Options):
  return types.SimpleNamespace(
      tokenizer=tokenizer, train=[options.sides], heldout=[], verify=None)
'''


def test_a_task_outside_of_the_package(tmp_path, monkeypatch):
  path = write(tmp_path / 'die_of_mine/roll.py', TASK)
  monkeypatch.syspath_prepend(str(tmp_path))
  for name in (path, 'die_of_mine.roll'):
    assert tasks.get(name, 'tokenizer').train == [6]
    task = tasks.get(name, 'tokenizer', sides=8)
    assert task.train == [8] and task.tokenizer == 'tokenizer'
    refused("has no option 'side'. Did you mean 'sides'",
            lambda n: tasks.get(n, side=3), name)
    refused(f'task.name={name} returns an object without tokenizer',
            lambda n: tasks.get(n, None), name)


@pytest.mark.parametrize('old, new, match', [
    ('class Options', 'class Option',
     "cannot be imported .NameError: name 'Options'"),
    ('@dataclasses.dataclass', '', 'Option options of .* has no default'),
    ('def create', 'def make', "has no function 'create'"),
    ('verify=', 'check=', 'returns an object without verify'),
    ('heldout=', 'held=', 'returns an object without heldout'),
    ('[options.sides]', '[types.SimpleNamespace(info=object())]',
     'has another repr in every process'),
])
def test_a_module_that_is_no_task(tmp_path, old, new, match):
  assert old in TASK
  path = write(tmp_path / 'a.py', TASK.replace(old, new))
  refused(match,
          lambda name: tasks.get(name, 'tokenizer'), path)


def test_a_name_without_a_dot_is_one_of_the_package():
  refused("task.name=countdwn is not known. Did you mean 'countdown'",
          tasks.get, 'countdwn')


def given(path, name, code):
  """Imports a module of the user as Python does; returns its function f."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(code)
  return importlib.import_module(name).f


def test_a_function_given_in_python_is_found_by_its_name(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
  monkeypatch.setattr(own_code, '_GIVEN', {})
  plain = given(tmp_path / 'alone_fn.py', 'alone_fn', 'def f(): return 1')
  (tmp_path / 'pack_fn').mkdir()
  (tmp_path / 'pack_fn' / '__init__.py').write_text('TWO = 2')
  inside = given(tmp_path / 'pack_fn' / 'mine.py', 'pack_fn.mine',
                 'from . import TWO\ndef f(): return TWO')
  wrapped = given(
      tmp_path / 'wrapped_fn.py', 'wrapped_fn',
      'import functools, alone_fn\n'
      'def deco(g):\n'
      '  return functools.wraps(g)(lambda: g())\n'
      '@deco\ndef f(): return 3')
  names = [own_code.give(f) for f in (plain, inside, wrapped)]
  assert names == [f'{tmp_path}/alone_fn.py:f', 'pack_fn.mine:f',
                   f'{tmp_path}/wrapped_fn.py:f']
  assert [own_code.absolute(name) for name in names] == names
  monkeypatch.setattr(own_code, '_GIVEN', {})  # as in another process
  assert [own_code.function(name)() for name in names] == [1, 2, 3]


def test_a_function_without_a_place_is_known_to_this_process(monkeypatch):
  monkeypatch.setattr(own_code, '_GIVEN', {})

  def inner():
    return 4

  name = own_code.give(inner)
  assert name.startswith('python:') and own_code.function(name) is inner
  assert own_code.give(lambda: 5).startswith('python:')
  own_code._GIVEN.clear()
  with pytest.raises(ValueError, match='given to a run in Python') as error:
    own_code.function(name)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('answer, info, want', [
    ('a', 'b', 'a'), ('', 'b', 'b'), ('', None, ''), ('', (1, 2), ''),
    ('', {'answer': 3}, '3'), ('', {'level': 3}, ''),
    ('', types.SimpleNamespace(answer=fractions.Fraction(1, 2)), '1/2')])
def test_the_reference_answer_of_a_problem_is_a_text(answer, info, want):
  assert tasks.Problem(1, 'p', 'k', answer, info).reference == want
