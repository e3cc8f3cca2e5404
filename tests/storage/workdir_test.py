"""Tests of the folder of a run."""

import errno
import os
import pathlib

import pytest

from jaxrl_llm.storage import workdir


def test_a_lost_lock_or_a_weak_network_does_not_end_a_run(
    tmp_path, monkeypatch):
  (tmp_path / 'config.json').write_text('')
  with workdir.held(tmp_path) as held:
    gone = held.watch()
  (tmp_path / 'lock').unlink()
  assert not gone()
  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, 'stat', lambda _: (_ for _ in ()).throw(
        OSError(errno.ESTALE, 'Stale file handle')))
    assert not gone()
  (tmp_path / 'config.json').unlink()
  assert gone()


def test_another_folder_of_the_process_changes_nothing(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with workdir.held('runs/mine') as held:
    (tmp_path / 'runs/mine/config.json').write_text('')
    gone = held.watch()
    os.chdir('/')
    assert not gone() and held.path == held.local == tmp_path / 'runs/mine'


@pytest.mark.filterwarnings('ignore:os.fork')
def test_a_forked_process_that_goes_on_does_not_hold_the_folder(tmp_path):
  (life, held), (ready, begun) = os.pipe(), os.pipe()
  with workdir.held(tmp_path):
    child = os.fork()
    if not child:
      os.close(held)
      os.write(begun, b'1')
      os.read(life, 1)  # until the run is over, and longer
      os._exit(0)
    os.read(ready, 1)
    with pytest.raises(ValueError, match='Another run'), (
        workdir.held(tmp_path)):
      pass
  with workdir.held(tmp_path):
    pass
  os.close(held)
  assert os.waitpid(child, 0)[1] == 0
