"""Tests of paths in buckets that cannot be used; without a server."""

import contextlib
import pathlib
import threading
import types

import pytest

from jaxrl_llm import config, evaluate, export
from jaxrl_llm.monitoring import exits
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import problem_files
from tests.helpers import tiny


class Objects(dict):
  """Stands for gcsfs with the objects of a bucket, by their paths.

  Attributes:
    refused: names of files that cannot be written.
  """

  def __init__(self, *given, refused=()):
    super().__init__(*given)
    self.refused = refused

  def call(self, *args, **options):
    pass

  def find(self, root, detail):
    return {path.removeprefix('gs://'): {'size': len(content)}
            for path, content in self.items()
            if path.startswith(f'gs://{root}')}

  def get_file(self, path, target):
    if path not in self:
      raise FileNotFoundError(path)
    pathlib.Path(target).write_bytes(self[path])

  def put_file(self, source, path):
    if pathlib.Path(path).name in self.refused:
      raise ConnectionError('no route')
    self[path] = pathlib.Path(source).read_bytes()

  def rm_file(self, path):
    del self[path]


@pytest.fixture
def serve(monkeypatch):
  """Sets what stands for gcsfs."""
  monkeypatch.setattr(paths, '_reached', set())
  def give(found):
    monkeypatch.setattr(paths, 'files', lambda: found)
    return found
  yield give
  paths.forget_copies()


@pytest.mark.parametrize('path, said', [
    ('s3://a/b', 'of no kind of storage'), ('gs://', 'names no bucket'),
    ('gs:///a', 'names no bucket'), ('gs://a/b#1', 'the character #'),
    ('gs://a/b?', r'the character \?'), ('gs://a/[b', r'the character \['),
    ('gs://a/b]', r'the character \]'), ('gs://a/*', r'the character \*')])
def test_what_is_no_path(path, said):
  for call in (paths.place, paths.reachable):
    with pytest.raises(ValueError, match=said):
      call(path)


def test_a_path_on_disk_may_have_any_name(serve):
  serve(None)
  assert paths.place('a/b#[?*') == pathlib.Path('a/b#[?*')
  paths.reachable('a/b#[?*')


def test_a_bucket_that_does_not_answer_is_one_sentence_at_once(
    monkeypatch, serve, capsys, tmp_path):
  serve(types.SimpleNamespace(call=lambda *_, **__: threading.Event().wait()))
  monkeypatch.setattr(paths, '_ANSWER', 0.1)
  there = 'gs://away/a'
  for call in (
      paths.reachable, paths.local_folder, config.load_file,
      lambda path: contextlib.ExitStack().enter_context(paths.local(path)),
      lambda path: export.export(tiny.load(), paths.place(path)),
      lambda path: evaluate.evaluate(tiny.load(path))):
    with pytest.raises(OSError, match=f'^{there} did not answer within 0 s: '):
      call(there)
  with pytest.raises(SystemExit) as ended:
    evaluate.parse([f'--config={there}.json'])
  assert ended.value.code == 2
  assert capsys.readouterr().err.startswith(f'{there}.json did not answer')


def test_a_bucket_that_has_answered_is_not_asked_again(serve, monkeypatch):
  asked = []
  objects = serve(Objects())
  monkeypatch.setattr(
      objects, 'call', lambda *args, **_: asked.append(args), raising=False)
  for path in ('gs://a/b', 'gs://a/c', 'gs://d/e'):
    paths.reachable(path)
  assert [args[2] for args in asked] == ['a', 'd']


@pytest.mark.parametrize('left', [False, True])
def test_an_export_is_whole_or_not_at_all(serve, tmp_path, left):
  for name in ('a.safetensors', 'config.json', 'z.txt'):
    (tmp_path / name).write_text(name)
  objects = serve(Objects(refused=() if left else ('z.txt',)))
  if left:
    paths.upload(tmp_path, 'gs://a/m')
    assert [*objects] == [
        'gs://a/m/a.safetensors', 'gs://a/m/z.txt', 'gs://a/m/config.json']
  else:
    with pytest.raises(OSError, match='gs://a/m cannot be reached .*no route'):
      paths.upload(tmp_path, 'gs://a/m')
    assert not objects


def test_sentences_name_the_bucket_and_not_the_copy(serve):
  serve(Objects({
      'gs://a/m/config.json': b'{', 'gs://a/p.jsonl': b'{}\n{', 'gs://a/x': b''
  }))
  with pytest.raises(ValueError, match='^gs://a/p.jsonl, line 2: not valid'):
    [*problem_files.rows('gs://a/p.jsonl')]
  with pytest.raises(ValueError, match='^gs://a/x has an unknown format'):
    [*problem_files.rows('gs://a/x')]
  with pytest.raises(SystemExit) as ended, exits.program(''):
    tiny.load(model__hf='gs://a/m/')
  assert str(ended.value.code).startswith('gs://a/m/config.json cannot be read')


def test_a_sentence_is_not_within_another(serve):
  serve(Objects())
  with pytest.raises(FileNotFoundError, match='^gs://a/m has no files: '):
    paths.local_folder('gs://a/m')
  with pytest.raises(OSError) as failed:
    with paths.explained('gs://a'), paths.explained('gs://a'):
      raise ConnectionError('no route')
  assert str(failed.value).count('cannot be reached') == 1


def test_copies_end_with_the_program(serve):
  serve(Objects({'gs://a/m/config.json': b'{}', 'gs://a/x.gguf': b'1'}))
  with exits.program(''):
    copy = paths.local_folder('gs://a/m')
    assert (copy / 'config.json').exists()
    file = paths.local_file('gs://a/x.gguf')
    assert (file.name, file.read_bytes()) == ('x.gguf', b'1')
    assert paths.as_given(f'{file} is damaged') == 'gs://a/x.gguf is damaged'
  assert not copy.exists() and not file.exists()
  assert (paths.local_folder('gs://a/m') / 'config.json').exists()
