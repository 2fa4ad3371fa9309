"""Folders that one run at a time writes in."""

import contextlib
import errno
import os
import pathlib
import socket
import sys
import time
from collections.abc import Iterable, Iterator

import filelock

from specsamp.errors import UserError
from specsamp.utils import distributed, files

LOCK = '.lock'  # in every folder that a run writes in


@contextlib.contextmanager
def lock(folder) -> Iterator[None]:
  """Keeps every other run out of a folder; the end of the process does, too.

  The first process holds it for all of a run. What killed runs left of files
  that they were about to replace is removed; so is at the end a folder that was
  made for this and is empty.

  Args:
    folder: made if it is not there.

  Raises:
    UserError: another run holds it, and who; or it cannot be written.
  """
  folder = pathlib.Path(folder)
  path = folder / LOCK
  held = filelock.FileLock(
    path, blocking=False, thread_local=False, fallback_to_soft=False
  )
  made = [each for each in (folder, *folder.parents) if not each.exists()]

  def take():
    folder.mkdir(parents=True, exist_ok=True)
    try:
      held.acquire()
    except filelock.Timeout:
      raise UserError(
        f'folder {folder}: {_holder(path)} is writing in it; wait for its end '
        'or name another folder'
      ) from None
    except OSError as error:
      if error.errno not in (errno.ENOSYS, errno.ENOTSUP):
        raise
      print(
        f'{folder}: its file system has no locks; nothing keeps another run '
        'out of it',
        file=sys.stderr,
      )
      return
    path.write_text(
      f'{pathlib.Path(sys.argv[0]).name} (process {os.getpid()} on '
      f'{socket.gethostname()}, since {time.strftime("%Y-%m-%d %H:%M:%S")})\n'
    )
    files.remove_left_overs(folder)

  distributed.first_does(take, f'folder {folder}')
  try:
    yield
  finally:
    if held.is_locked:
      with contextlib.suppress(OSError):
        path.unlink()  # who has opened it sees that it is gone
      held.release()
      for each in made:
        with contextlib.suppress(OSError):  # something is in it
          each.rmdir()


@contextlib.contextmanager
def lock_shared(folders: Iterable, workdir) -> Iterator[None]:
  """Locks what a run writes in beside its workdir, which is locked already.

  Args:
    folders: that other runs write in too; any may be the workdir, or '' for
      none.
    workdir: a folder.

  Raises:
    UserError: see `lock`.
  """
  # In one order, so that no two runs hold what the other waits for.
  real = set(map(os.path.realpath, filter(None, folders)))
  with contextlib.ExitStack() as held:
    for folder in sorted(real - {os.path.realpath(workdir)}):
      held.enter_context(lock(folder))
    yield


def _holder(path: pathlib.Path) -> str:
  """Who holds a lock, which may take a moment to write it, or end."""
  for _ in range(20):
    with contextlib.suppress(OSError):
      if name := path.read_text(errors='replace').strip():
        return name
    time.sleep(0.05)
  return 'another run'
