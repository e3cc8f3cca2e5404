"""Tests of checkpoints when storage fails, or when the run is killed."""

import asyncio
import contextlib
import errno
import pathlib
import resource
import signal
import subprocess
import sys
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import checkpoint
from jaxrl_llm.checkpoint import saver as saver_lib
from tests.helpers import devices
from tests.helpers.states import abstract, bits, make_state, one_warning, write


@pytest.mark.parametrize('error', [
    OSError(errno.ENOSPC, 'No space'), ValueError('RESOURCE_EXHAUSTED: x')])
def test_a_full_disk_costs_only_that_checkpoint(
    tmp_path, caplog, monkeypatch, error):
  write(tmp_path, [1])
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=1)

  def full(*args, **kwargs):
    raise error

  with monkeypatch.context() as patch:  # before anything is written
    patch.setattr(saver._manager, 'save', full)
    saver.save(2, make_state(2), {})
  assert len(caplog.records) == 1
  one_warning(caplog, 'step 2', 'disk is full', 'goes on', 'of step 1')
  with monkeypatch.context() as patch:  # while it is written
    patch.setattr(saver_lib.files, 'checksum', full)
    saver.save(3, make_state(3), {})
    saver.wait()
  assert len(caplog.records) == 2
  one_warning(caplog, 'step 3', 'disk is full', 'goes on', 'of step 1')
  assert [p.name for p in tmp_path.iterdir()] == ['1']
  assert checkpoint.restore(tmp_path, make_state(0)).step == 1
  saver.save(4, make_state(4), {})
  saver.close()
  assert checkpoint.steps(tmp_path) == [1, 4]  # the best, and the newest
  assert len(caplog.records) == 2


@pytest.fixture
def away(monkeypatch):
  """Makes a context in which no call to the storage of a run works."""
  def fail(*args, **kwargs):
    raise ConnectionError('no route')

  @contextlib.contextmanager
  def begin(saver):
    with monkeypatch.context() as patch:
      patch.setattr(saver_lib.paths, 'remove', fail)
      patch.setattr(pathlib.Path, 'glob', fail)
      patch.setattr(saver._manager, 'reload', fail)
      patch.setattr(saver._manager, 'save', fail)
      yield patch

  return begin


def test_storage_that_is_away_costs_only_that_checkpoint(
    tmp_path, caplog, away):
  write(tmp_path, [1])
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=9)
  with away(saver):  # at the beginning of a save
    saver.save(2, make_state(2), {})
  one_warning(caplog, 'step 2', 'no route', 'goes on', 'of step 1')
  with away(saver) as patch:  # in the middle of one, and after it
    patch.setattr(saver, '_clear', lambda: None)
    saver.save(2, make_state(2), {})
  one_warning(caplog, 'step 2', 'no route', 'goes on', 'of step 1')
  saver.save(2, make_state(2), {})
  saver.wait()
  with away(saver) as patch:  # after the step that is to be replaced has gone
    patch.setattr(saver, '_clear', lambda: None)
    patch.setattr(saver_lib.paths, 'remove', lambda _: None)
    saver.save(2, make_state(3), {}, again=True)
  one_warning(caplog, 'step 2', 'no route', 'goes on', 'of step 1')
  assert len(caplog.records) == 3 and checkpoint.steps(tmp_path) == [1]
  saver.save(0, make_state(0), {})  # The old one has its name again.
  saver.wait()
  assert checkpoint.steps(tmp_path) == [0, 1, 2]
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(2))
  saver.save(2, make_state(3), {}, again=True)
  saver.close()
  assert len(caplog.records) == 3 and checkpoint.steps(tmp_path) == [0, 1, 2]
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(3))


def test_leftovers_that_cannot_be_removed_are_no_failed_save(
    tmp_path, caplog, away):
  saver = checkpoint.Checkpointer(tmp_path, {})
  saver.save(1, make_state(1), {})
  saver.wait()
  with away(saver):
    saver.close()
  assert not caplog.records and checkpoint.whole_steps(tmp_path) == [1]


def test_a_step_is_given_up_by_all_processes(tmp_path, caplog):
  """So that none waits for the others in the middle of a save."""
  said = []
  channel = types.SimpleNamespace(
      first=True, gather=lambda value=None: [value, *said])
  saver = checkpoint.Checkpointer(tmp_path, {}, channel=channel)
  said.append((False, "ConnectionError('no route')"))
  saver.save(1, make_state(1), {})
  one_warning(caplog, 'step 1', 'no route', 'goes on', 'none')
  said[0] = True, None  # What the first process sees, all do.
  saver.save(1, make_state(1), {})
  saver.close()
  assert len(caplog.records) == 1 and checkpoint.steps(tmp_path) == [1]


@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_files_that_the_system_refuses_to_write(tmp_path, caplog):
  """The real thing: the kernel stops every file at 32 KiB."""
  saver = checkpoint.Checkpointer(tmp_path, {}, keep=1)
  saver.save(1, make_state(1), {})
  saver.wait()
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
  try:
    saver.save(2, make_state(2, size=100_000), {})
    saver.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert len(caplog.records) == 1
  one_warning(caplog, 'step 2', 'could not be written', 'of step 1')
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(1))
  saver.save(3, make_state(3, size=100_000), {})
  saver.close()
  assert checkpoint.steps(tmp_path) == [3]  # now that it is whole, 1 may go


def test_other_writers_of_a_failed_save_are_not_heard(tmp_path, caplog):
  """asyncio reports what nobody waited for, when it is collected."""
  checkpoint.Checkpointer(tmp_path, {}).close()
  with contextlib.closing(asyncio.new_event_loop()) as loop:
    for name, heard in (('4.orbax-checkpoint-tmp/x', 0), ('elsewhere', 1)):
      loop.create_future().set_exception(ValueError(str(tmp_path / name)))
      assert len(caplog.records) == heard


def test_a_step_that_could_not_be_replaced_stays(tmp_path, caplog, monkeypatch):
  write(tmp_path, [1])
  saver = checkpoint.Checkpointer(tmp_path, {})

  def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, 'No space')

  with monkeypatch.context() as patch:
    patch.setattr(saver_lib.files, 'checksum', full)
    saver.save(1, make_state(2), {}, again=True)
    saver.wait()
  saver.close()
  one_warning(caplog, 'step 1', 'disk is full')
  assert [p.name for p in tmp_path.iterdir()] == ['1']
  assert bits(checkpoint.restore(
      tmp_path, abstract(make_state(0))).state) == bits(make_state(1))


@pytest.mark.parametrize('new', ['none', 'half', 'whole'])
def test_killed_while_a_step_is_replaced(tmp_path, new):
  """The old one is used until the new one is whole; nothing else stays."""
  write(tmp_path, [1, 2])
  saver_lib.files.set_aside(tmp_path, 2, saver_lib.files.REPLACED)
  if new != 'none':
    write(tmp_path / 'other', [3])
    (tmp_path / 'other' / '3').rename(tmp_path / '2')
    (tmp_path / 'other').rmdir()
  if new == 'half':  # as a bucket may have it
    (tmp_path / '2' / 'files.json').unlink()
  saver = checkpoint.Checkpointer(tmp_path, {})
  found = saver.restore(abstract(make_state(0)))
  saver.close()
  assert found.step == 2
  assert bits(found.state) == bits(make_state(3 if new == 'whole' else 2))
  assert sorted(p.name for p in tmp_path.iterdir()) == ['1', '2']


ENDLESS = '''
import sys, jax.numpy as jnp
from jaxrl_llm import checkpoint
saver = checkpoint.Checkpointer(sys.argv[1], {}, keep=2)
found = saver.restore({'x': jnp.zeros(200_000)})
step = found.step if found else 0
while True:
  step += 1
  saver.save(step, {'x': jnp.sin(jnp.arange(200_000.) + step)}, {'step': step})
  if step % 5 == 0: print(step, flush=True)
'''


def test_kill_9_never_leaves_a_half_step(tmp_path):
  reached = 0
  for delay in (0.0, 0.013):
    child = subprocess.Popen(
        [sys.executable, '-c', ENDLESS, str(tmp_path)], cwd=devices.ROOT,
        stdout=subprocess.PIPE, text=True)
    printed = int(child.stdout.readline())
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = checkpoint.steps(tmp_path)
    # The step that was printed may still have been under way.
    assert found and found[-1] >= printed - 1 >= reached
    for step in found:
      assert checkpoint.fault(tmp_path / str(step)) is None
    last = checkpoint.restore(tmp_path, {'x': jnp.zeros(200_000)})
    assert last.step == found[-1] and last.host == {'step': last.step}
    np.testing.assert_array_equal(
        last.state['x'], jnp.sin(jnp.arange(200_000.) + last.step))
    reached = last.step
  checkpoint.Checkpointer(tmp_path, {}).close()
  assert not list(tmp_path.glob('*tmp*'))
