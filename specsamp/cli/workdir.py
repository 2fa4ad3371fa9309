"""The folder of a run: one run's at a time, and never overwritten."""

import contextlib
import json
import pathlib
import time

from specsamp.data import tokenizers
from specsamp.errors import UserError
from specsamp.utils import distributed, files, locks

TIME = '-{time}'  # in a folder's name, until the run begins

# What a run holds until it ends, and what it takes back if it never began.
_held = contextlib.ExitStack()
_begun = contextlib.ExitStack()


def release() -> None:
  """Lets others have the folder."""
  _held.close()


def take_back() -> None:
  """Leaves nothing of a folder that this run made and wrote nothing into."""
  _begun.close()


def make_workdir(path: str, config, resumes: bool = True) -> pathlib.Path:
  """Creates the folder and writes the config into it as config.json.

  The folder is this run's until the process ends: others are refused. Of
  several processes, which all must see the folder, the first one makes it. If
  the launcher ends with a `UserError` before anything else is written, nothing
  is left of it.

  Args:
    path: folder.
    config: a ConfigDict.
    resumes: the run goes on in a folder in which the same config began.

  Raises:
    UserError: the folder can't be written, is another run's, or holds what must
      not be overwritten.
  """
  if not path.strip():
    raise UserError(f'workdir: got {path!r}, expected a folder')
  folder = pathlib.Path(path)
  if path.endswith(TIME):
    folder = _new_folder(path.removesuffix(TIME))
  file = folder / 'config.json'
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + '\n'
  try:
    _look(folder, text, resumes)  # before anything is written, the lock too
    _held.enter_context(locks.lock(folder))
    is_new = _look(folder, text, resumes)
    distributed.wait('workdir looked at')
  except OSError as error:
    raise UserError(f'workdir {folder}: {error.strerror}') from None
  if is_new:
    _begun.callback(_take_back, folder)
  distributed.first_does(lambda: files.replace(file, text), f'workdir {folder}')
  return folder


def _new_folder(prefix: str) -> pathlib.Path:
  """A name with the time in it that no other run has."""
  now = time.localtime(distributed.of_first(int(time.time())))
  name = prefix + time.strftime('-%Y%m%d-%H%M%S', now)
  count = 0
  if distributed.is_first():
    while pathlib.Path(f'{name}{-count or ""}').exists():
      count += 1
  return pathlib.Path(f'{name}{-distributed.of_first(count) or ""}')


def _look(folder: pathlib.Path, text: str, resumes: bool) -> bool:
  """Whether a run has yet to begin there, with this config.

  Raises:
    UserError: what the folder holds must not be overwritten.
    OSError: it cannot be read.
  """
  file = folder / 'config.json'
  if file.is_dir():
    raise UserError(f'workdir {folder}: config.json is a folder')
  # A config alone is a run that never began: a mistake in it stopped it.
  if not folder.exists() or not any(
    other.name not in (file.name, locks.LOCK)
    and not files.is_left_over(other.name)
    for other in folder.iterdir()
  ):
    return True
  same = file.exists() and file.read_bytes() == text.encode()
  if same and resumes:
    return False
  kind = 'this run' if same else _other(file, text)
  raise UserError(f'workdir {folder} holds {kind} already; name another folder')


def _other(file: pathlib.Path, text: str) -> str:
  """What a folder holds that is not this run's: another config, if it is."""
  try:
    old, new = json.loads(file.read_bytes()), json.loads(text)
    names = [name for name in new if old.get(name) != new[name]]
  except (OSError, ValueError, AttributeError):
    return 'something else'
  return f'the run of another config (another {", ".join(names[:3])})'


def _take_back(folder: pathlib.Path) -> None:
  """Removes what a run has written that has not begun."""
  if not distributed.is_first():  # the first may have removed the folder too
    return
  own = {'config.json', tokenizers.FILE}
  there = {path.name for path in folder.iterdir()}
  if there <= own | {locks.LOCK}:
    for name in own:
      (folder / name).unlink(missing_ok=True)
