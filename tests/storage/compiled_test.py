"""Tests of the folder of compiled programs, and of what it saved."""

import logging
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.monitoring import compiles
from jaxrl_llm.storage import compiled
from tests.helpers import devices


def test_a_damaged_program_is_removed_and_written_again(tmp_path):
  store = compiled.Store(tmp_path)
  store.put('a', b'program')
  assert store.get('a') == b'program' and store.get('b') is None
  file, = tmp_path.iterdir()
  whole = file.read_bytes()
  for damaged in (b'', whole[:5], whole[:-1], whole[:-1] + b'x', whole + b'x'):
    file.write_bytes(damaged)
    assert store.get('a') is None and not file.exists()
    store.put('a', b'program')
    assert store.get('a') == b'program'


def test_the_programs_used_last_stay(tmp_path):
  store = compiled.Store(tmp_path, limit=400)
  for i in range(3):
    store.put(str(i), bytes(68))  # 100 with its checksum
  for i, file in enumerate(sorted(tmp_path.iterdir())):
    os.utime(file, (i, i))
  left_over, in_use = tmp_path / 'x.part', tmp_path / 'y.part'
  left_over.touch(), in_use.touch(), os.utime(left_over, (0, 0))
  assert store.get('0') == bytes(68)
  store.put('3', bytes(68))
  assert all(store.get(str(i)) for i in range(4))
  os.utime(tmp_path / '1.program', (0, 0))
  store.put('4', bytes(68))
  assert not store.get('1') and all(store.get(i) for i in '0234')
  assert in_use.exists() and not left_over.exists()


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch, caplog):
  def full(*_):
    raise OSError(28, 'No space left on device')

  store = compiled.Store(tmp_path)
  store.put('a', b'program')
  monkeypatch.setattr(os, 'replace', full)
  for key in 'bc':
    store.put(key, b'other')
  said, = caplog.messages
  assert str(tmp_path) in said and 'No space left' in said
  assert store.get('a') == b'program' and not store.get('b')
  assert len([*tmp_path.iterdir()]) == 1


def programs_in(folder):
  return sorted(pathlib.Path(folder).rglob('*.program'))


def start_twice(folder):
  """A process; returns what it counted, and what it warned of."""
  os.environ.pop('JAX_COMPILATION_CACHE_DIR', None)
  os.environ['XDG_CACHE_HOME'] = folder
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  heard = []
  handler = logging.Handler()
  handler.emit = lambda record: heard.append(record.getMessage())
  logging.getLogger('absl').addHandler(handler)
  said, results = [], []

  def job(where):
    compiled.start(where)
    jax.clear_caches()
    # A donated buffer, and several devices.
    step = jax.jit(lambda x, y: (x + jnp.sin(y).sum(), y @ y.T),
                   donate_argnums=0)
    mesh = jax.sharding.Mesh(jax.devices(), 'data')
    put = lambda x: jax.device_put(x, jax.NamedSharding(
        mesh, jax.P('data')))
    x, y = put(np.arange(8.0)), put(np.linspace(0, 1, 64).reshape(8, 8))
    before = compiles.total()
    count = compiles.first(said.append)
    for _ in range(3):
      x, z = step(x, y)
    results.append([np.asarray(v).tobytes().hex() for v in (x, z)])
    assert count() == compiles.total().since(before)
    return [count().programs, count().loaded]

  counts = [job('auto'), job('auto')]
  kept = [str(path) for path in programs_in(folder)]
  for i, path in enumerate(kept):
    os.truncate(path, (0, 40, 200)[i % 3])
  counts += [job('auto'), job('auto'), job(None)]
  assert compiled.folder() is None
  counts += [job(f'{folder}/other'), job(f'{folder}/other')]
  # There is no such folder, and none can be made.
  pathlib.Path(folder, 'file').touch()
  counts += [job(f'{folder}/file/x')]
  # The caller's choice comes first.
  jax.config.update('jax_compilation_cache_dir', f'{folder}/callers')
  counts += [job('auto')]
  assert str(compiled.folder()) == f'{folder}/callers'
  return dict(counts=counts, kept=kept, said=said, results=results,
              heard=heard, callers=os.listdir(f'{folder}/callers'))


def test_the_second_start_loads_what_the_first_compiled(tmp_path):
  got = devices.run(start_twice, str(tmp_path), devices=4)
  cold, warm = [1, 0], [0, 1]
  assert got['counts'] == [
      cold, warm, cold, warm, cold, cold, warm, cold, cold]
  assert all(found == got['results'][0] for found in got['results'])
  place = tmp_path / 'jaxrl_llm' / 'compiled' / compiled.machine()
  assert place.stat().st_mode & 0o777 == 0o700
  assert got['kept'] and {
      pathlib.Path(path).parent for path in got['kept']} == {place}
  assert got['callers']
  first, second, *_ = got['said']
  assert first.startswith('Compiled 1 program in ') and first.endswith(
      f' the next start takes them from {place}.')
  assert second.startswith(
      'Compiled 0 programs in 0.0 s (threads added up); 1 more came from ')
  warning, = got['heard']
  assert 'file/x' in warning and 'compilation_cache' in warning


def test_another_number_of_cores_is_another_machine(monkeypatch):
  here = compiled.machine()
  assert here == compiled.machine()
  monkeypatch.setenv('NPROC', '1')
  assert here != compiled.machine()


class Channel:
  """Channel of the first of two processes; `other` makes the second's values.
  """
  count, first = 2, True

  def __init__(self, other):
    self._other = other

  def gather(self, value=None):
    return [value, self._other(value)]


def test_processes_share_a_folder_or_keep_nothing(
    tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(compiled, '_PATIENCE', 0.1)
  shared = compiled._shared
  # JAX's keys differ between processes of CPUs.
  assert shared(tmp_path, Channel(lambda value: value)) is None
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert shared(tmp_path, Channel(lambda value: value)) == tmp_path
  assert not caplog.messages and not [*tmp_path.iterdir()]
  # The second has none, another one, or does not see the first one's file.
  assert shared(tmp_path, Channel(lambda _: '')) is None
  assert not caplog.messages
  for other in (lambda value: 'x' if value == str(tmp_path) else value,
                lambda value: value is not True and value):
    assert shared(tmp_path, Channel(other)) is None
    said, = caplog.messages
    assert 'all processes' in said
    caplog.clear()
  assert not [*tmp_path.iterdir()]
