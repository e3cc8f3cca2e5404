"""Tests of rows from every file format, and of errors for bad rows."""

import datetime
import decimal
import enum
import gc
import gzip
import json
import pathlib
import sys
import time

import datasets
import huggingface_hub
from huggingface_hub import constants
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

import jaxrl_llm
from jaxrl_llm.tasks import problem_files

ROWS = [{'problem': 'What is 1+1?', 'answer': '2', 'level': 1},
        {'problem': 'Ünïcode \\frac{1}{2} 🙂', 'answer': '\\frac{1}{2}',
         'level': 2}]
LINES = ''.join(json.dumps(row) + '\n' for row in ROWS).encode()


def write(path, content):
  path.write_bytes(content)
  return str(path)


def read(source):
  return list(problem_files.rows(source))


def refused(source, match):
  with pytest.raises(ValueError, match=match) as error:
    read(source)
  said = str(error.value)
  assert '\n' not in said and said.endswith('.')
  return said


def make(tmp_path, ending):
  path = tmp_path / f'a{ending}'
  if ending == '.parquet':
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return str(path)
  return write(path, {
      '.jsonl': LINES, '.jsonl.gz': gzip.compress(LINES),
      '.json': json.dumps(ROWS).encode()}[ending])


@pytest.mark.parametrize('ending, place', [
    ('.jsonl', 'line'), ('.jsonl.gz', 'line'), ('.json', 'entry'),
    ('.parquet', 'row')])
def test_formats(tmp_path, ending, place):
  path = make(tmp_path, ending)
  assert read(path) == [
      (f'{path}, {place} {i}', row) for i, row in enumerate(ROWS, 1)]


def test_all_formats_are_tested(tmp_path):
  for ending in problem_files.FORMATS:
    assert len(read(make(tmp_path, ending))) == 2


def test_parquet_rows_are_numbered_through(tmp_path):
  rows = [{'x': i} for i in range(10)]
  path = tmp_path / 'a.parquet'
  parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
  assert read(str(path)) == [
      (f'{path}, row {i + 1}', row) for i, row in enumerate(rows)]


def test_home_and_relative_paths(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.chdir(tmp_path)
  make(tmp_path, '.jsonl')
  for path in ('~/a.jsonl', 'a.jsonl', './a.jsonl'):
    assert [row for _, row in read(path)] == ROWS


@pytest.mark.parametrize('text', [
    LINES.replace(b'\n', b'\r\n'), LINES.replace(b'\n', b'\n\n'),
    b'\xef\xbb\xbf' + LINES, LINES.rstrip()])
def test_line_ends_and_marks(tmp_path, text):
  assert [r for _, r in read(write(tmp_path / 'a.jsonl', text))] == ROWS


def test_blank_lines_count(tmp_path):
  path = write(tmp_path / 'a.jsonl', b'\n \n' + LINES)
  assert [where for where, _ in read(path)] == [
      f'{path}, line 3', f'{path}, line 4']


BAD_LINES = {
    'no JSON': (b'{"a": }', 'not valid JSON'),
    'cut off': (b'{"problem": "x', 'not valid JSON'),
    'two rows': (b'{} {}', 'not valid JSON'),
    'a list': (b'["x"]', r"\"\['x'\]\" is not a JSON object"),
    'a number': (b'5', "'5' is not a JSON object"),
    'null': (b'null', "'None' is not a JSON object"),
    'not UTF-8': (b'{"a": "\xff"}', 'not valid JSON'),
    'deep': (b'[' * 100_000, 'not valid JSON'),
    'long number': (b'{"a": ' + b'1' * 5000 + b'}', 'not valid JSON'),
    'zero byte': (b'{"a": "x"}\0', 'not valid JSON'),
}


@pytest.mark.parametrize('name', BAD_LINES)
def test_a_bad_line_is_named(tmp_path, name):
  line, match = BAD_LINES[name]
  path = write(tmp_path / 'a.jsonl', LINES + line + b'\n' + LINES)
  assert refused(path, match).startswith(f'{path}, line 3: ')
  packed = write(tmp_path / 'a.jsonl.gz', gzip.compress(LINES + line))
  assert refused(packed, match).startswith(f'{packed}, line 3: ')


def test_lines_in_a_file_of_the_other_name(tmp_path):
  path = write(tmp_path / 'a.json', LINES)
  assert refused(path, 'Extra data').endswith(
      ': name it FILE.jsonl if each line is an object.')


def test_rows_before_a_bad_line_come_first(tmp_path):
  rows = problem_files.rows(write(tmp_path / 'a.jsonl', LINES + b'x'))
  assert [next(rows)[1], next(rows)[1]] == ROWS
  with pytest.raises(ValueError, match='line 3: not valid JSON'):
    next(rows)


@pytest.mark.parametrize('ending', ['.jsonl', '.jsonl.gz'])
@pytest.mark.parametrize('indent', [None, 1])
def test_an_array_among_lines_names_the_fix(tmp_path, ending, indent):
  text = json.dumps(ROWS, indent=indent).encode()
  path = write(tmp_path / f'a{ending}', {
      '.jsonl': text, '.jsonl.gz': gzip.compress(text)}[ending])
  assert refused(path, 'JSON array') == (
      f'{path} holds a JSON array, not an object on each line: name it '
      'FILE.json.')


def test_a_first_line_that_is_a_list_is_a_bad_row(tmp_path):
  path = write(tmp_path / 'a.jsonl', b'[1]\n' + LINES + b'x\n\n' + LINES)
  faults = []
  found = [*problem_files.rows(path, faults)]
  assert found == [(f'{path}, line {i}', row) for i, row in zip(
      (2, 3, 6, 7), ROWS * 2)]
  assert [where for where, _ in faults] == [f'{path}, line {i}' for i in (1, 4)]


@pytest.mark.parametrize('text, match', [
    (b'', 'not valid JSON'), (LINES, 'not valid JSON'),
    (b'{}', 'must contain a list of problems'),
    (b'[{}, 5]', "entry 2: '5' is not a JSON object"),
    (b'\xff[]', 'not valid JSON')])
def test_bad_json(tmp_path, text, match):
  path = write(tmp_path / 'a.json', text)
  assert refused(path, match).startswith(path)


def test_json_that_is_too_deep(tmp_path):
  gc.collect()  # what other tests left must not be collected at the depth limit
  path = write(tmp_path / 'a.json', b'[' * 100_000)
  assert refused(path, 'not valid JSON').startswith(path)


def test_damaged_archives(tmp_path):
  """Cut at any place, or with any byte changed: never another kind of error."""
  good = gzip.compress(LINES * 3, mtime=0)
  bad = [good[:i] for i in range(1, len(good), 3)] + [
      good[:i] + bytes([good[i] ^ 255]) + good[i + 1:]
      for i in range(len(good))]
  kinds = set()
  for content in bad:
    path = write(tmp_path / 'a.jsonl.gz', content)
    try:
      assert [row for _, row in read(path)] == ROWS * 3  # a byte of the header
    except ValueError as error:
      kinds.add(' line ' in str(error) and str(error).startswith(path))
  assert kinds == {True}


def test_damaged_parquet(tmp_path):
  path = make(tmp_path, '.parquet')
  content = (tmp_path / 'a.parquet').read_bytes()
  for text in (b'', b'PAR1', content[:-20], content[:200] + content[300:]):
    assert refused(write(tmp_path / 'a.parquet', text), 'cannot be read'
                   ).startswith(path)


@pytest.mark.parametrize('ending', ['.jsonl', '.json', '.parquet'])
def test_unreadable_files(tmp_path, monkeypatch, ending):
  path = make(tmp_path, ending)

  def refuse(*args, **kwargs):
    raise PermissionError('Permission denied')

  for target in ('builtins.open', 'pathlib.Path.read_bytes',
                 'pyarrow.parquet.ParquetFile'):
    monkeypatch.setattr(target, refuse)
  assert refused(path, 'cannot be read.*Permission denied').startswith(path)


@pytest.mark.parametrize('source', [
    'a.jsonl', 'folder/a.jsonl', '/a/b', './a/b', '~/b', 'a', 'a/b/c/d', '',
    'a/b.parquet'])
def test_no_such_file(tmp_path, monkeypatch, source):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(datasets, 'load_dataset', None)
  with pytest.raises(ValueError) as error:
    read(source)
  assert str(error.value) == (
      '. is not a file: give the path of a file in it.' if source == '' else
      f'There is no file {tmp_path / pathlib.Path(source).expanduser()}: '
      'correct the path.')


def test_other_sources(tmp_path):
  refused(str(tmp_path), 'is not a file: give the path of a file')
  for name in ('a.csv', 'a.txt', 'a.json.gz', 'jsonl'):
    refused(write(tmp_path / name, LINES),
            f'{name} has an unknown format: use .jsonl, .jsonl.gz')


@pytest.mark.parametrize('source, args, split', [
    ('org/name', ['org/name'], 'train'),
    ('org/name:test', ['org/name'], 'test'),
    ('org/name:test[:5]', ['org/name'], 'test[:5]'),
    ('org/name/main', ['org/name', 'main'], 'train'),
    ('org/name/main:test', ['org/name', 'main'], 'test'),
])
def test_the_hub(monkeypatch, source, args, split):
  asked = []

  def load(*args, split):
    asked.append([list(args), split])
    return datasets.Dataset.from_list(ROWS)

  monkeypatch.setattr(datasets, 'load_dataset', load)
  assert read(source) == [
      (f'{source}, row {i}', row) for i, row in enumerate(ROWS)]
  assert asked == [[args, split]]


def test_a_file_comes_before_the_hub(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'org').mkdir()
  write(tmp_path / 'org/name', LINES)
  refused('org/name', 'org/name has an unknown format')


@pytest.mark.parametrize('error', [
    ConnectionError('no network'), FileNotFoundError('no network\nmore'),
    ValueError('no network'), KeyError('no network')])
def test_the_hub_fails(monkeypatch, error):
  def load(*args, **kwargs):
    raise error

  monkeypatch.setattr(datasets, 'load_dataset', load)
  said = refused('org/name', 'no file org/name, and the hub has no such')
  assert f'{type(error).__name__}: ' in said and 'no network' in said
  assert 'more' not in said


class Away:
  """A session of the hub's client without a network."""

  def head(self, url, timeout):
    assert url == 'https://huggingface.co' and timeout < 10
    raise OSError('no\nroute')


def test_a_hub_that_cannot_be_reached(monkeypatch, capsys, caplog):
  """Data sets on the disk are read, without trying the network."""
  monkeypatch.setattr(huggingface_hub.utils, 'get_session', Away)
  began = time.monotonic()
  said = refused('org/name', 'no file org/name')
  assert time.monotonic() - began < 5
  assert said.endswith(
      'and cannot be reached (https://huggingface.co: OSError: no route): '
      'connect to it, or give a file.')
  assert capsys.readouterr() == ('', '') and not caplog.records
  offline = []

  def load(*args, split):
    offline.append(constants.is_offline_mode())
    return datasets.Dataset.from_list(ROWS)

  monkeypatch.setattr(datasets, 'load_dataset', load)
  assert len(read('org/name')) == 2
  assert offline == [True] and not constants.is_offline_mode()


def test_what_is_not_installed(tmp_path, monkeypatch):
  path = make(tmp_path, '.parquet')
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  monkeypatch.setitem(sys.modules, 'datasets', None)
  install = r"the extra `data`: pip install 'jaxrl_llm\[data\]'"
  refused(path, f'^{path}: Parquet files need {install}')
  refused('org/name', f'no file org/name, and data sets of .* need {install}')


def nested(depth):
  return [nested(depth - 1)] if depth else []


within = []
within += [within, within]


@pytest.mark.parametrize('value, said', [
    (np.int64(3), 'np.int64(3) (int64)'), (np.float64(.5), '(float64)'),
    ([{'b': (1, np.bool_(1))}], 'np.True_ (bool)'), (b'a', "b'a' (bytes)"),
    ({'a': {2: 3}}, 'the key 2'), ({'a': {'\ud800': 3}}, 'surrogates'),
    (datetime.date(2026, 1, 1), '(date)'), (decimal.Decimal('1.5'), '(Dec'),
    ({1}, '{1} (set)'), (len, '(builtin'), ([10**4300], '(int)'),
    (within, '(list)'), (nested(200), '(list)'),
    (enum.IntEnum('E', 'a').a, '(E)')])
def test_problems_in_python_that_json_does_not_keep(value, said):
  with pytest.raises(ValueError) as error:
    jaxrl_llm._lines([{'problem': '1'}, {'problem': '1', 'x': value}])
  assert said in str(error.value) and '\n' not in str(error.value)
  assert str(error.value).startswith('Problem 1: ')
  assert "in the column 'x'" in str(error.value)


def test_problems_in_python_are_read_as_they_are():
  values = ['é\n\u2028\0', -0.0, 10**400, True, None, {'a': [1, {}]}, nested(9)]
  text = jaxrl_llm._lines(
      {'problem': '1', 'x': value} for value in [*values, float('nan'), (1, 2)])
  found = [json.loads(line)['x'] for line in text.split('\n')[:-1]]
  assert repr(found) == repr([*values, float('nan'), [1, 2]])
  data = datasets.Dataset.from_list(ROWS)
  assert [*map(json.loads, jaxrl_llm._lines(data).splitlines())] == [*data]
  for wrong in data.to_pandas(), {'problem': ['1']}, 'a.jsonl', [None], 5:
    with pytest.raises(ValueError, match='a list of dictionaries; of a table'):
      jaxrl_llm._lines(wrong)
