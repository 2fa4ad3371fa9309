"""Files and folders replaced as a whole, and files of JSON.

New content is written to a hidden sibling, `.NAME.0123456789abcdef.partial`,
which is then renamed, so that after a kill the name holds the old content or
the new one. Replacing a folder takes two renames; a kill between them leaves
the old folder as `.NAME.0123456789abcdef.old`.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from specsamp.errors import UserError
from specsamp.utils import distributed

_HIDDEN = '.{}.{:016x}.partial'
_IS_HIDDEN = re.compile(r'\.(.+)\.[0-9a-f]{16}\.(partial|old)')


def replace(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file; an existing one is replaced by a rename.

  Raises:
    OSError: the file cannot be written; the old one is unchanged.
  """
  content = content.encode() if isinstance(content, str) else content
  partial = path.with_name(_HIDDEN.format(path.name, secrets.randbits(64)))
  try:
    partial.write_bytes(content)
    partial.rename(path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise


def replace_json(path: pathlib.Path, value: Any) -> None:
  """Writes a value as JSON; see `replace`."""
  replace(path, json.dumps(value, indent=2) + '\n')


def claim(path: pathlib.Path, settings: dict[str, Any]) -> None:
  """Writes the settings of a folder's files into it, or compares them.

  All processes of a run must call this.

  Raises:
    UserError: the folder has files of other settings or cannot be written.
  """
  folder = path.parent

  def write():
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      replace_json(path, settings)

  distributed.first_does(write, f'folder {folder}')
  with reading(f'{path}'):
    kept, new = read_json(path), json.loads(json.dumps(settings))
    names = sorted(kept.keys() | new.keys())
    other = [name for name in names if kept.get(name) != new.get(name)]
    if other:
      raise ValueError(
        f'has another {", ".join(other)} than this run; name another folder'
      )


def check_replaceable(
  path, is_ours: Callable[[pathlib.Path], bool], keep=None
) -> None:
  """Refuses a destination that `replace_folder` must not replace.

  Args:
    path: a folder, which need not exist.
    is_ours: returns True if a folder holds only files that may be replaced.
    keep: a folder that must stay, such as the source of a conversion, or None.

  Raises:
    UserError: the path is not a folder, holds other files, or contains `keep`,
      the working folder or the home folder.
  """
  name = os.fspath(path)
  if not name.strip() or '\0' in name:
    raise UserError(f'folder: got {name!r}, expected a name')
  goal = pathlib.Path(os.path.realpath(name))
  for folder in (os.getcwd(), os.path.expanduser('~'), keep):
    kept = folder and pathlib.Path(os.path.realpath(folder))
    if kept and goal in (kept, *kept.parents):
      raise UserError(
        f'folder {name}: holds {kept}, which is in use, and is not replaced; '
        'name another folder'
      )
  try:
    if goal.is_dir():
      if any(goal.iterdir()) and not is_ours(goal):
        raise UserError(
          f'folder {name}: holds other files and is not replaced; name another '
          'folder'
        )
    elif goal.exists():
      raise UserError(f'folder {name}: got a file, expected a folder')
  except OSError as error:
    raise UserError(f'folder {name}: {error.strerror}') from None


@contextlib.contextmanager
def replace_folder(
  path, is_ours: Callable[[pathlib.Path], bool]
) -> Iterator[pathlib.Path]:
  """Yields a new folder that takes the place of `path` when the block ends.

  If the block raises, the old folder stays. All processes of a run must enter;
  the first one creates and renames folders, and the others leave later.

  Args:
    path: the destination.
    is_ours: see `check_replaceable`.

  Raises:
    UserError: see `check_replaceable`.
  """
  goal = pathlib.Path(os.path.realpath(path))
  token = distributed.of_first(secrets.randbits(31))
  partial = goal.with_name(_HIDDEN.format(goal.name, token))
  old = partial.with_suffix('.old')

  def begin():
    check_replaceable(path, is_ours)
    goal.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir()

  def end():
    check_replaceable(path, is_ours)  # it may have changed meanwhile
    if goal.exists():
      goal.rename(old)
    try:
      partial.rename(goal)
    except BaseException:
      if old.exists():
        old.rename(goal)
      raise

  distributed.first_does(begin, f'folder {path}')
  try:
    yield partial
    distributed.first_does(end, f'folder {path}')
  finally:
    if distributed.is_first():
      shutil.rmtree(partial, ignore_errors=True)
      if goal.exists():
        shutil.rmtree(old, ignore_errors=True)


def clean_up(folder: pathlib.Path) -> None:
  """Removes hidden files of killed runs, or restores the folders they replaced.

  Nothing may be replaced in the folder at the same time.
  """
  for path in folder.iterdir():
    if match := _IS_HIDDEN.fullmatch(path.name):
      goal = path.with_name(match[1])
      if match[2] == 'old' and not goal.exists():
        path.rename(goal)
      elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
      else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
  """Raises errors of reading a file as a `UserError` of one line.

  Args:
    what: beginning of the line, such as the file's name.
  """
  try:
    yield
  except OSError as error:
    reason = error.strerror or error
  except KeyError as error:
    reason = f'no {error.args[0]}'
  except UnicodeDecodeError:
    reason = 'not UTF-8 text'
  except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
    reason = error
  else:
    return
  raise UserError(f'{what}: {reason}')


def parse_json(text: str | bytes) -> Any:
  """Returns the value of a JSON text; raises ValueError if it is invalid."""
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError('nested too deep') from None


def read_json(path) -> Any:
  """Returns the value of a JSON file in UTF-8.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is not valid JSON.
  """
  text = pathlib.Path(path).read_bytes().decode('utf-8-sig')
  try:
    return parse_json(text)
  except ValueError as error:
    raise ValueError(f'not valid JSON: {error}') from None
