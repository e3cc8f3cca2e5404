"""Tests of tasks and reward functions from outside of the package, in configs.

A path in a config is relative to the folder that the program starts in. A saved
config has it absolute, and works in any folder.
"""

import json
import pathlib
import sys

import pytest

from jaxrl_llm import config, rewards
from jaxrl_llm.prepare import build

TASK = '''
import dataclasses
import types

from jaxrl_llm import tasks
from jaxrl_llm.base import own_code, tokenizer
from jaxrl_llm.rewards import Verdict

@dataclasses.dataclass(frozen=True)
class Options:
  """Throws of dice.

  Attributes:
    sides: of the largest die,
      which is thrown last.
    rewards: function that judges.
  """
  sides: int = 6
  rewards: own_code.Name = ''
  weights: tuple[float, ...] = (0.5,)

def create(given, options: Options):
  problems = [
      tasks.Problem(i, str(i), 'die') for i in range(options.sides)]
  return types.SimpleNamespace(
      tokenizer=tokenizer.CharTokenizer('0123456789'), train=problems[1:],
      heldout=problems[:1], verify=lambda problem, text, truncated: Verdict(
          float(text == problem.prompt), 'judged'))
'''
CONFIG = '''
from jaxrl_llm import config

def get_config():
  c = config.base()
  c.task.name = {name!r}
  {rest}
  return c
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The current folder, with a task and configs in it."""
  monkeypatch.setattr(sys, 'path', [*sys.path])
  here = tmp_path / 'here'
  here.mkdir()
  (tmp_path / 'there').mkdir()
  (here / 'dice.py').write_text(TASK)
  (here / 'c.py').write_text(CONFIG.format(name='dice.py', rest='c.steps = 7'))
  (here / 'other.py').write_text(CONFIG.format(name='countdown', rest=''))
  monkeypatch.chdir(here)
  return here


def saved(tmp_path, c):
  """Saves a config as a run does."""
  path = tmp_path / 'config.json'
  path.write_text(config.to_json(c))
  return str(path)


def task_options(c):
  """Returns the options of the task."""
  return {k: v for k, v in c.task.items() if k != 'name'}


def routes(folder):
  """Returns a config per place that may name the task."""
  (folder / 'c.json').write_text(json.dumps({'task.name': 'dice.py'}))
  argv = '--config=other.py', '--config.workdir=x'
  return {
      'python': config.load('c.py'),
      'json': config.load('c.json'),
      'section': config.parse([*argv, '--config.task=dice.py'])[0],
      'name': config.parse([*argv, '--config.task.name=./dice.py'])[0],
  }


def test_a_file_is_absolute_by_every_route(folder):
  for route, c in routes(folder).items():
    assert c.task.name == str(folder / 'dice.py'), route
    assert task_options(c) == {
        'sides': 6, 'rewards': '', 'weights': (0.5,)}, route
    config.validate(c)


def test_options_are_overridden_and_checked(folder):
  c = config.load('c.py', {'task.sides': '8', 'task.rewards': 'a.py:f',
                           'task.weights': '1,2'})
  assert task_options(c) == {
      'sides': 8, 'rewards': f'{folder}/a.py:f', 'weights': (1.0, 2.0)}
  for given, match in (({'task.sides': 'x'}, r'task.sides=x must be .*\(int\)'),
                       ({'task.side': 3}, 'did you mean task.sides'),
                       ({'task.rewards': 3}, r'task.rewards=3 must be a text'),
                       ({'task.kinds': 'two'}, 'task.kinds has no effect '
                        'without task.name=countdown')):
    with pytest.raises(ValueError, match=match):
      config.load('c.py', given)


def test_only_what_a_device_computes_with_must_have_32_bits(folder):
  large = 2 ** 40
  c = config.load('c.py', {'task.sides': large})
  assert task_options(c)['sides'] == large
  for given in ({'steps': large}, {'task': 'countdown', 'task.seed': large}):
    with pytest.raises(ValueError, match=f'={large} is no 32-bit number'):
      config.load('c.py', given)


def test_a_saved_config_works_in_any_folder(folder, tmp_path, monkeypatch):
  c = config.load('c.py', {'task.sides': 8, 'task.rewards': '../r.py:f'})
  path = saved(tmp_path, c)
  monkeypatch.chdir(tmp_path / 'there')
  again = config.load(path)
  assert again == c and again.task.rewards == f'{tmp_path}/r.py:f'
  assert config.difference(c, again) == {}
  assert config.resume_conflicts(config.flatten(c), again) == []
  # The same file under another path keeps the options; another task does not.
  same = config.load(path, {'task': '../here/dice.py'})
  assert same.task.sides == 8
  assert 'sides' not in config.load(path, {'task': 'countdown'}).task


def test_dotted_names(folder, tmp_path, monkeypatch):
  (tmp_path / 'there/games').mkdir()
  (tmp_path / 'there/games/thrown.py').write_text(TASK)
  monkeypatch.syspath_prepend(str(tmp_path / 'there'))
  c = config.load('other.py', {'task': 'games.thrown', 'task.sides': 3})
  assert c.task.name == 'games.thrown' and c.task.sides == 3
  assert config.load(saved(tmp_path, c)) == c


def test_a_run_is_built(folder, tmp_path, monkeypatch):
  c = config.load('c.py', {'task.sides': 8})
  path = saved(tmp_path, c)
  monkeypatch.chdir(tmp_path)
  parts = build.parts(config.load(path))
  assert [p.id for p in parts.task.train] == [*range(1, 8)]
  assert [v.reward for v in rewards.verify_all(
      parts.task, parts.task.train[:2], ['1', '3'], [False] * 2)] == [1, 0]


@pytest.mark.parametrize('argv', [
    ['--config=c.py', '--config.task.sides=9'],
    ['--config.task=dice.py', '--config.task.sides=9'],
    ['--config.task.name=dice.py', '--config.task.sides=9']])
def test_help_lists_the_options(folder, capsys, monkeypatch, argv):
  monkeypatch.setenv('COLUMNS', '200')
  with pytest.raises(SystemExit):
    config.parse([*argv, '--help=problems'])
  lines = [' '.join(line.split()) for line in capsys.readouterr().out.split(
      '\n')]
  assert 'task.sides 9 of the largest die, which is thrown last' in lines
  assert 'task.rewards function that judges' in lines
  assert 'task.weights 0.5' in lines
  assert not any(line.startswith('task.kinds') for line in lines)


@pytest.mark.parametrize('old, new, match', [
    ('sides: int = 6', 'sides: int', 'Option sides .* has no default'),
    ('sides: int = 6', 'name: int = 6', 'Option name .* rename it'),
    ('sides: int = 6', 'sides: dict = None', 'Option sides .* the type dict'),
    ('sides: int = 6', 'sides: list[int] = None', r'has the type list\[int\]'),
    ('sides: int = 6', 'sides: "int | str" = 6', r'has the type int \| str'),
    ('@dataclasses.dataclass(frozen=True)', '', 'Option options .* no default'),
    ('def create', 'def make', "has no function 'create'"),
    ('import types', 'import types = 3', 'cannot be imported'),
])
def test_a_file_that_is_no_task(folder, capsys, old, new, match):
  assert old in TASK
  (folder / 'dice.py').write_text(TASK.replace(old, new, 1))
  with pytest.raises(ValueError, match=match) as error:
    config.load('c.py')
  assert '\n' not in str(error.value)
  assert 'dice.py' in str(error.value)
  with pytest.raises(SystemExit) as end:
    config.parse(['--config=c.py'])
  assert end.value.code == 2 and len(capsys.readouterr().err.split('\n')) == 2


def test_options_of_other_forms(folder):
  text = TASK.replace('sides: int = 6', 'sides: int | None = None').replace(
      TASK[TASK.index('  """'):TASK.rindex('  """') + 6], '')
  (folder / 'dice.py').write_text(
      'from __future__ import annotations\n' + text)
  c = config.load('c.py', {'task.sides': '4'})
  assert c.task.sides == 4 and config.load('c.py').task.sides is None


def test_a_missing_file_is_named(folder):
  for name, match in (
      ('dic.py', f"There is no file {folder}/dic.py. Did you mean '{folder}/"
       "dice.py'"), ('no.such', "There is no module 'no.such'"),
      ('countdwn', "task.name=countdwn is not known. Did you mean 'countdown'"),
      (3, 'task.name=3 must be a text')):
    with pytest.raises(ValueError, match=match):
      config.load('other.py', {'task': name})


def test_a_reward_function_is_absolute_by_every_route(
    folder, tmp_path, monkeypatch):
  (folder / 'math_task.py').write_text(CONFIG.format(
      name='math', rest="c.task.reward = '../r.py:f', 'a.b:g'"))
  (folder / 'math.json').write_text(json.dumps(
      {'task.name': 'math', 'task.reward': ['../r.py:f', 'a.b:g']}))
  want = f'{tmp_path}/r.py:f', 'a.b:g'
  given = {'task': 'math', 'task.reward': '../r.py:f,a.b:g'}
  found = [config.load('math_task.py'), config.load('math.json'),
           config.load('other.py', given)]
  for c in found:
    assert c.task.reward == want
  path = saved(tmp_path, found[0])
  monkeypatch.chdir(tmp_path / 'there')
  assert config.load(path).task.reward == want
  dotted = config.load(path, {'task.reward': 'some.module:f'})
  assert dotted.task.reward == ('some.module:f',)
  # Another function is another run.
  assert config.resume_conflicts(config.flatten(found[0]), dotted)


def test_a_config_takes_the_content_of_a_text_file(folder, tmp_path):
  """So a run does not change with the file, or need it again."""
  (folder / 'ask.txt').write_text('Solve {problem}.\n\n')
  c = config.load('other.py', {'task': 'math', 'task.template': 'ask.txt'})
  assert c.task.template == 'Solve {problem}.\n'  # without the last line's end
  (folder / 'ask.txt').unlink()
  assert config.load(saved(tmp_path, c)) == c
  with pytest.raises(ValueError, match='^task.template: There is no file ask'):
    config.load('other.py', {'task': 'math', 'task.template': 'ask.txt'})
  # A text with {problem} is a template, whatever its end.
  c = config.load('other.py', {
      'task': 'math', 'task.template': '{problem} a.txt'})
  assert c.task.template == '{problem} a.txt'
  (folder / 'ask.txt').write_bytes(b'\xff')
  with pytest.raises(ValueError, match='ask.txt cannot be read as text'):
    config.load('other.py', {'task': 'math', 'task.system': 'ask.txt'})


def test_config_files_are_executed_anew(folder):
  path = pathlib.Path('c.py')
  first = config.load_file(str(path))
  assert config.load_file(str(path)) is not first
  before = path.stat()
  path.write_text(path.read_text().replace('steps = 7', 'steps = 123'))
  assert path.stat().st_size != before.st_size
  assert config.load(str(path)).steps == 123
  assert first.__name__ not in sys.modules


@pytest.mark.parametrize('old, new, match', [
    ('weights: tuple[float, ...] = (0.5,)',
     'weights: tuple[float, ...] = (0.5,)\n  def __post_init__(self):\n'
     '    self.sides + None', 'Options of .*TypeError.*dice.py, line 22.$'),
    ('  problems = [', '  raise SystemExit\n  problems = [',
     'task.name=.*SystemExit.*dice.py, line 23.$'),
])
def test_a_task_that_fails_is_named_with_its_line(folder, old, new, match):
  assert old in TASK
  (folder / 'dice.py').write_text(TASK.replace(old, new, 1))
  with pytest.raises(ValueError, match=match) as error:
    c = config.load('c.py')
    config.validate(c)
    build.parts(c)
  assert '\n' not in str(error.value)
