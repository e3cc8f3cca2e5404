"""Tests of config files; what is no config is said to be none."""

import pytest

from jaxrl_llm import config

BASE = 'from jaxrl_llm import config\ndef get_config():\n  c = config.base()\n'
DEEP = '[' * 200_000
# Sentences about a value, which may come from the command line as well.
OF_VALUES = (
    'without end', 'must be a text', 'is not valid Unicode',
    'task.name=(1,) must be a text')


@pytest.mark.parametrize('name, text, said', [
    ('a.py', 'x = 1', 'no function get_config'),
    ('a.py', 'get_config = 3', 'no function get_config'),
    ('a.py', 'def get_config():\n  pass', 'gives no ConfigDict'),
    ('a.py', f'{BASE}  c.model.update(widht=3)\n  return c',
     'a.py, line 4: model.widht is not a field'),
    ('a.py', 'from ml_collections import ConfigDict\ndef get_config():\n'
     '  return ConfigDict({1: 2})', 'a.py: 1 is not the name of a field'),
    ('a.py', f'{BASE}  c.loss.clip_low = c\n  return c', 'without end'),
    ('a.py', f'{BASE}  c.task.name = len\n  return c', 'must be a text'),
    ('a.json', '{"task.name": "\\ud800"}', 'is not valid Unicode'),
    ('a.json', '{"task.name": [1]}', 'task.name=(1,) must be a text'),
    ('a.json', '{"steps": ' + '9' * 5000 + '}', 'is no whole JSON file'),
    ('a.json', '[1]', 'holds no config'),
    ('a.json', '{"steps": ', 'is no whole JSON file'),
    ('a.json', DEEP, 'is no whole JSON file'),
    ('a.json', b'{"workdir": "\xe9"}', 'is not utf-8 text'),
    ('a.txt', '', 'neither .py nor .json'),
    ('.', None, 'is a folder'),
    ('x.json', None, 'There is no config file'),
    ('x' * 300 + '.py', None, 'File name too long'),
])
def test_a_file_that_is_no_config_is_said_to_be_none(
    tmp_path, refused, name, text, said):
  path = tmp_path / name
  if text is not None:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
  sentence = refused(path)
  assert said in sentence
  assert str(path) in sentence or said in OF_VALUES


@pytest.mark.parametrize('text, line, said', [
    ('x = 1\ndef f(:\n', 2, 'SyntaxError'),
    ('x = 1\ny = "\0"\n', 2, 'SyntaxError: there is a NUL byte'),
    (b'x = 1\n\n# caf\xe9\n', 3, 'SyntaxError: it is not utf-8 text'),
    ('import no_such_package\n', 1, 'ModuleNotFoundError'),
    ('def get_config():\n  return int("x")', 2, 'ValueError: invalid literal'),
    ('def get_config():\n  return get_config()', 2, 'RecursionError'),
    ('import sys\ndef get_config():\n  sys.exit(0)', 3, 'SystemExit: 0'),
    ('class E(BaseException):\n  def __str__(self):\n    raise OSError\n'
     'def get_config():\n  raise E', 5, '(E: <E>)'),
    ('def get_config(arg, other):\n  pass', None, 'TypeError'),
    ('import math\nget_config = math.sqrt', None, 'TypeError'),
    # The last line of the user's own, not one of a library.
    (f'{BASE}  c.task.update(3)\n', 4, "'int' object has no"),
])
def test_a_file_that_fails_is_named_with_its_line(
    tmp_path, refused, text, line, said):
  path = tmp_path / 'a.py'
  path.write_bytes(text.encode() if isinstance(text, str) else text)
  sentence = refused(path)
  assert said in sentence
  if line:
    assert sentence.endswith(f'correct {path}, line {line}.\n')
  else:
    assert sentence.endswith(f'correct {path}.\n')


def test_a_field_that_is_not_there_names_the_line(tmp_path, refused):
  path = tmp_path / 'a.py'
  path.write_text(f'{BASE}  c.loss.update(nope=1)\n  return c\n')
  assert f'{path}, line 4: loss.nope is not a field' in refused(path)


def test_an_argument_of_a_config_without_one_is_refused():
  with pytest.raises(ValueError, match='countdown takes no argument: leave '
                     'out :hard'):
    config.load('countdown:hard')


@pytest.fixture(name='refused')
def _refused(capsys):
  """Function that returns the command line's sentence about a config file."""
  def refused(path):
    with pytest.raises(SystemExit) as end:
      config.parse([f'--config={path}'])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count('\n') == 1
    return said
  return refused


def test_latin_1_that_is_declared_is_read(tmp_path):
  path = tmp_path / 'a.py'
  path.write_bytes(b'# coding: latin-1\n# caf\xe9\n' + (
      f'{BASE}  c.steps = 7\n  return c\n').encode())
  assert config.load(str(path)).steps == 7


def test_names_of_fields_are_texts():
  for name in (1, None, ('a', 'b')):
    with pytest.raises(ValueError, match='is not the name of a field: use'):
      config.load('configs/countdown.py', {name: 1})


def test_an_actor_of_a_file_can_be_switched_off():
  """What the file says of the actor goes with it."""
  actor = 'configs/jackpot/qwen3_1p7b_4b_math.py'
  assert config.load(actor).actor.model.hf
  without = config.load(actor, {'actor.model.hf': None})
  assert config.flatten(without.actor) == {
      'lag': 0, 'model.hf': None, 'model.preset': None}
