"""A folder has one writer, whichever process is killed."""

import os
import time

import pytest

from specsamp.errors import UserError
from specsamp.utils import locks


def test_shared_folders_except_the_workdir(tmp_path):
  """The workdir is locked already, by whatever name."""
  run, other = tmp_path / 'run', tmp_path / 'other'
  again = tmp_path / 'again'
  with locks.lock(run):
    again.symlink_to(run)
    with (
      locks.lock_shared([other, str(again), other], run),
      pytest.raises(UserError, match='is writing in it'),
    ):
      locks.lock(other).__enter__()
  assert not other.exists()  # it was new and is empty
  with locks.lock(other):
    pass


def _hold(folder):
  with locks.lock(folder):
    (folder / 'held').write_text('')
    time.sleep(60)


def test_one_holder_until_its_death(server, tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  with locks.lock(folder):
    with pytest.raises(UserError, match=f'process {os.getpid()} on .* writing'):
      locks.lock(folder).__enter__()
    assert [path.name for path in folder.iterdir()] == [locks.LOCK]
  assert not list(folder.iterdir())
  holder = server.Process(target=_hold, args=(folder,))
  holder.start()
  while not (folder / 'held').exists():
    time.sleep(0.001)
  with pytest.raises(UserError, match=f'process {holder.pid} on'):
    locks.lock(folder).__enter__()
  partial = folder / '.a.0123456789abcdef.partial'
  (partial / 'b').mkdir(parents=True)
  holder.kill()
  holder.join()
  with locks.lock(folder):
    assert not partial.exists()
