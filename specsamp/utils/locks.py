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
  """Keeps other runs out of a folder until the block or the process ends.

  The first process holds the lock for all processes of a run. Hidden files of
  killed runs are removed; so is the folder in the end, if it is new and empty.

  Raises:
    UserError: another run holds the folder, or it cannot be written.
  """
  folder = pathlib.Path(folder)
  path = folder / LOCK
  file_lock = filelock.FileLock(
    path, blocking=False, thread_local=False, fallback_to_soft=False
  )
  missing = [path for path in (folder, *folder.parents) if not path.exists()]

  def acquire():
    folder.mkdir(parents=True, exist_ok=True)
    try:
      file_lock.acquire()
    except filelock.Timeout:
      raise UserError(
        f'folder {folder}: {_holder(path)} is writing in it; wait for its end '
        'or name another folder'
      ) from None
    except OSError as error:
      if error.errno not in (errno.ENOSYS, errno.ENOTSUP):
        raise
      print(
        f'{folder}: its file system has no locks; other runs are not kept out',
        file=sys.stderr,
      )
      return
    path.write_text(
      f'{pathlib.Path(sys.argv[0]).name} (process {os.getpid()} on '
      f'{socket.gethostname()}, since {time.strftime("%Y-%m-%d %H:%M:%S")})\n'
    )
    files.clean_up(folder)

  distributed.first_does(acquire, f'folder {folder}')
  try:
    yield
  finally:
    if file_lock.is_locked:
      with contextlib.suppress(OSError):
        path.unlink()  # a waiting process then creates a new file
      file_lock.release()
      for parent in missing:
        with contextlib.suppress(OSError):  # it is not empty
          parent.rmdir()


@contextlib.contextmanager
def lock_shared(folders: Iterable, workdir) -> Iterator[None]:
  """Locks the folders that a run writes in, in addition to its workdir.

  Args:
    folders: written by other runs too; '' is skipped, and so is the workdir.
    workdir: a folder that is already locked.

  Raises:
    UserError: see `lock`.
  """
  # Sorted, so that no two runs wait for each other.
  paths = set(map(os.path.realpath, filter(None, folders)))
  with contextlib.ExitStack() as stack:
    for folder in sorted(paths - {os.path.realpath(workdir)}):
      stack.enter_context(lock(folder))
    yield


def _holder(path: pathlib.Path) -> str:
  """Returns a lock file's text; waits a moment if it is not written yet."""
  for _ in range(20):
    with contextlib.suppress(OSError):
      if text := path.read_text(errors='replace').strip():
        return text
    time.sleep(0.05)
  return 'another run'
