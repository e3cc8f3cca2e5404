"""Tests of the folder of a run."""

import errno
import pathlib

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
