"""Tests of tensor files: round trips, and errors for damaged files."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxrl_llm.models import tensor_files
from jaxrl_llm.models.tensor_files import INDEX, SINGLE


def tensors():
  """Returns five tensors of 24 to 560 bytes."""
  random = np.random.default_rng(0)
  return {
      name: random.normal(size=shape).astype(dtype)
      for name, shape, dtype in (
          ('b', (12, 7), np.float32), ('a', (20, 14), ml_dtypes.bfloat16),
          ('e', (11,), np.float32), ('c', (4, 3), ml_dtypes.bfloat16),
          ('d', (6, 5), np.float32))}


@pytest.fixture
def shards(tmp_path):
  """Folder with the tensors in three files: b, then a, then the others."""
  tensor_files.write(tmp_path, tensors().items(), 600)
  return tmp_path


def same(a, b):
  return a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize('limit', (10_000, 600, 170, 1))
def test_what_is_written_is_found_and_read(limit, tmp_path):
  want = tensors()
  tensor_files.write(tmp_path, want.items(), limit)
  files = sorted(tmp_path.glob('*.safetensors'))
  names = {10_000: [SINGLE], 600: 3, 170: 4, 1: 5}[limit]
  if limit != 10_000:
    names = [f'model-{i:05d}-of-{names:05d}.safetensors'
             for i in range(1, names + 1)]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index['metadata']['total_size'] == sum(
        x.nbytes for x in want.values())
    assert index['weight_map'].keys() == want.keys()
  assert [file.name for file in files] == names
  for file in files:
    held = load_file(file)
    with safe_open(file, 'numpy') as opened:  # without, transformers 4 refuses
      assert opened.metadata() == {'format': 'pt'}
    assert len(held) == 1 or sum(x.nbytes for x in held.values()) <= limit
  found = tensor_files.find(tmp_path)
  assert found.keys() == want.keys()
  for name, tensor in found.items():
    assert tensor.shape == want[name].shape
    assert tensor.dtype == {4: 'F32', 2: 'BF16'}[want[name].itemsize]
    assert same(tensor.read((slice(None),)), want[name])


@pytest.mark.parametrize('block', (1, 20, 29, 1000))
def test_slices_are_read_some_rows_at_a_time(block, shards, monkeypatch):
  monkeypatch.setattr(tensor_files, '_BLOCK', block)
  tensor, want = tensor_files.find(shards)['a'], tensors()['a']
  for index in ((slice(None), slice(None)), (slice(5, 13), slice(None)),
                (slice(0, 20, None), slice(7, 14)), (slice(3, 4),)):
    assert same(tensor.read(index), want[index])
    parts = list(tensor.blocks(index))
    assert same(np.concatenate(parts), want[index])
    # A row of 14 numbers is the least there is.
    assert max(len(part) for part in parts) * 14 <= max(block, 14)


def test_one_file_comes_before_an_index(shards):
  """As for transformers, if a folder has both."""
  save_file({'x': np.ones(3, np.float32)}, shards / SINGLE)
  assert list(tensor_files.find(shards)) == ['x']


def edit(folder, change):
  index = json.loads((folder / INDEX).read_text())
  change(index)
  (folder / INDEX).write_text(json.dumps(index))


def move(index, file):
  index['weight_map'].update(d=f'model-0000{file}-of-00003.safetensors')


def twice(folder):
  file = folder / 'model-00001-of-00003.safetensors'
  save_file({**load_file(file), 'c': tensors()['c']}, file)


def cut(folder, size):
  file = folder / 'model-00002-of-00003.safetensors'
  file.write_bytes(file.read_bytes()[:size])


def spoil(folder):
  file = folder / 'model-00002-of-00003.safetensors'
  data = bytearray(file.read_bytes())
  data[10:14] = b'\xff\0{"'
  file.write_bytes(data)


@pytest.mark.parametrize('damage, message', [
    (lambda f: (f / 'model-00002-of-00003.safetensors').unlink(),
     'model-00002-of-00003.safetensors is missing: fetch it'),
    (lambda f: cut(f, -1), 'model-00002.* is cut off or damaged .* again'),
    (lambda f: cut(f, 20), 'model-00002.* is cut off or damaged .* again'),
    (lambda f: cut(f, 0), 'model-00002.* is cut off or damaged .* again'),
    (spoil, 'model-00002.* is cut off or damaged .*: fetch it again'),
    (lambda f: edit(f, lambda i: i['weight_map'].pop('d')),
     'index.json and .*00003-of.* contradict each other about the tensor d:'),
    (lambda f: edit(f, lambda i: i['weight_map'].update(
        z='model-00001-of-00003.safetensors')),
     'and .*00001-of.* contradict each other about the tensor z: fetch both'),
    (lambda f: edit(f, lambda i: move(i, 1)), 'contradict .* the tensor d:'),
    (lambda f: edit(f, lambda i: move(i, 2)), 'contradict .* the tensor d:'),
    (lambda f: edit(f, lambda i: move(i, 4)), 'model-00004.* is missing'),
    (twice, 'and .*00001-of.* contradict each other about the tensor c:'),
    (lambda f: (f / INDEX).write_text('{"weight_map": {'),
     'index.json is damaged .*: fetch it again'),
    (lambda f: (f / INDEX).write_bytes(b'\xff\xfe'), 'index.json is damaged'),
    (lambda f: edit(f, lambda i: i.pop('weight_map')), 'index.json is damaged'),
    (lambda f: edit(f, lambda i: i.update(weight_map=[])), 'json is damaged'),
    (lambda f: edit(f, lambda i: i['weight_map'].update(d=3)), 'is damaged'),
    (lambda f: (f / INDEX).unlink(),
     f'has neither {SINGLE} nor {INDEX}: .* save them with transformers'),
])
def test_damage_is_named_without_reading(damage, message, shards, monkeypatch):
  monkeypatch.setattr(tensor_files.Tensor, 'blocks', None)
  damage(shards)
  with pytest.raises(ValueError, match=message) as error:
    tensor_files.find(shards)
  assert '\n' not in str(error.value)


def test_only_pytorch_files(tmp_path):
  (tmp_path / 'pytorch_model.bin').write_bytes(b'PK')
  with pytest.raises(ValueError, match='has neither .* in another format'):
    tensor_files.find(tmp_path)


def test_any_byte_of_the_header_may_be_damaged(shards):
  """Every flip is refused, or changes a name or a size that others check."""
  file = shards / 'model-00002-of-00003.safetensors'
  data = file.read_bytes()
  whole = tensor_files.find(shards)
  size = 8 + int.from_bytes(data[:8], 'little')
  kept = 0
  for i in range(size):
    file.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1:])
    try:
      kept += tensor_files.find(shards) == whole
    except ValueError:
      pass
  # Letters of the metadata and the padding say nothing about tensors.
  assert kept < 0.3 * size


def test_bytes_that_make_no_number_are_seen(shards):
  file = shards / 'model-00001-of-00003.safetensors'
  data = bytearray(file.read_bytes())
  data[-104:-84] = 20 * b'\xff'
  file.write_bytes(data)
  tensor = tensor_files.find(shards)['b']
  with pytest.raises(ValueError, match='00001.*: tensor b has values that are '
                     'not finite: the file is damaged, fetch it again'):
    tensor.read((slice(None),))
  tensor.read((slice(0, 7),))  # the damage is in row 8
