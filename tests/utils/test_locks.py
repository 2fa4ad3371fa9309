"""A folder has one writer, whoever is killed."""

import os
import time

import pytest

from specsamp.errors import UserError
from specsamp.utils import files, locks


def test_leaves_alone_what_is_being_written(tmp_path):
  with files.replace_folder(tmp_path / 'a', lambda _: True) as folder:
    with locks.lock(tmp_path):
      assert folder.exists()
    (folder / 'b').write_text('x')
  assert (tmp_path / 'a' / 'b').read_text() == 'x'
  with locks.lock(tmp_path / 'b' / 'c'):
    pass
  assert not (tmp_path / 'b').exists()  # made for nothing


def test_shared_folders_but_for_the_workdir(tmp_path):
  """Which is locked already, by whatever name."""
  run, other = tmp_path / 'run', tmp_path / 'other'
  again = tmp_path / 'again'
  with locks.lock(run):
    again.symlink_to(run)
    with (
      locks.lock_shared([other, str(again), other], run),
      pytest.raises(UserError, match='is writing in it'),
    ):
      locks.lock(other).__enter__()
  with locks.lock(other):
    pass


def _hold(folder):
  with locks.lock(folder):
    (folder / 'held').write_text('')
    time.sleep(60)


def test_is_held_by_one_and_released_by_death(server, tmp_path):
  (tmp_path / 'run').mkdir()
  with locks.lock(tmp_path / 'run'):
    with pytest.raises(UserError, match=f'process {os.getpid()} on .* writing'):
      locks.lock(tmp_path / 'run').__enter__()
    assert [p.name for p in (tmp_path / 'run').iterdir()] == [locks.LOCK]
  assert not list((tmp_path / 'run').iterdir())
  holder = server.Process(target=_hold, args=(tmp_path / 'run',))
  holder.start()
  while not (tmp_path / 'run' / 'held').exists():
    time.sleep(0.001)
  with pytest.raises(UserError, match=f'process {holder.pid} on'):
    locks.lock(tmp_path / 'run').__enter__()
  left = tmp_path / 'run' / '.a.0123456789abcdef.partial'
  (left / 'b').mkdir(parents=True)
  holder.kill()
  holder.join()
  with locks.lock(tmp_path / 'run'):
    assert not left.exists()
