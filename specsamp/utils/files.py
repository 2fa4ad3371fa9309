"""Files and folders replaced as a whole, and JSON lines that survive a kill.

New content is written to a hidden sibling, `.NAME.0123456789abcdef.partial`,
which is then renamed, so that after a kill the name holds the old content or
the new one. Replacing a folder takes two renames; a kill between them leaves
the old folder as `.NAME.0123456789abcdef.old`.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from specsamp.errors import UserError
from specsamp.utils import distributed

_HIDDEN = '.{}.{:016x}.partial'
_IS_HIDDEN = re.compile(r'\.(.+)\.[0-9a-f]{16}\.(partial|old)')
_ASIDE = '.set-aside'


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


def check_replaceable(
  path, is_ours: Callable[[pathlib.Path], bool], keep=None
) -> None:
  """Refuses a destination that `replace_folder` must not replace.

  Args:
    path: a folder, which need not exist.
    is_ours: returns True if an existing folder holds only files that its
      writer may replace.
    keep: a folder that must stay, such as the source of a conversion, or None.

  Raises:
    UserError: the path is not a folder, cannot be written, holds other files,
      or contains `keep`, the working folder or the home folder.
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
    parent = next(parent for parent in goal.parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
      raise UserError(f'folder {name}: cannot write in {parent}')
  except OSError as error:
    raise UserError(f'folder {name}: {error.strerror}') from None


@contextlib.contextmanager
def replace_folder(
  path, is_ours: Callable[[pathlib.Path], bool]
) -> Iterator[pathlib.Path]:
  """Yields a new folder that takes the place of `path` when the block ends.

  If the block raises, the old folder stays. All processes of a run must enter;
  the first one creates and renames folders, and the others leave after it.

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


def is_left_over(name: str) -> bool:
  """Returns True for the name of a hidden file or folder of a killed run."""
  return _IS_HIDDEN.fullmatch(name) is not None


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


def has_shape(value: Any, shape: Any) -> bool:
  """Returns True if a JSON value has a shape.

  Args:
    value: the parsed value.
    shape: a type, where float is any finite number; [shape] for a list of
      values of one shape; {name: shape} for an object with these fields and
      maybe more; (shape, ..) for alternatives; or None.
  """
  if isinstance(shape, tuple):
    return any(has_shape(value, option) for option in shape)
  if isinstance(shape, list):
    return type(value) is list and all(has_shape(v, shape[0]) for v in value)
  if isinstance(shape, dict):
    return type(value) is dict and all(
      name in value and has_shape(value[name], field)
      for name, field in shape.items()
    )
  if type(value) is int and abs(value) >= 2**63:
    return False
  if shape is float:
    return type(value) in (int, float) and math.isfinite(value)
  return value is None if shape is None else type(value) is shape


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a JSON-lines file, split by whether this run wrote them.

  Attributes:
    path: the file.
    kept: values that belong to this run, in order.
    aside: (number from 1, line) of the other lines.
  """

  path: pathlib.Path
  kept: list[Any]
  aside: list[tuple[int, bytes]]

  def rewrite(self, values: Sequence[Any]) -> None:
    """Replaces the file's lines with these values, in the first process.

    The other lines are appended to NAME.set-aside; standard error reports it.
    """
    if not distributed.is_first():
      return
    if self.aside:
      with self.path.with_name(self.path.name + _ASIDE).open('ab') as file:
        file.writelines(line + b'\n' for _, line in self.aside)
      print(
        f'{self.path}: {len(self.aside)} lines are not of this run, the first '
        f'is line {self.aside[0][0]}; they go to {self.path.name}{_ASIDE}',
        file=sys.stderr,
      )
    replace(self.path, ''.join(json.dumps(value) + '\n' for value in values))


def read_lines(
  path: pathlib.Path,
  is_own: Callable[[Any], bool],
  key: Callable[[Any], Hashable],
) -> Lines:
  """Reads a JSON-lines file that may be damaged or end in half a line.

  Args:
    path: the file, which need not exist.
    is_own: returns True for a value that this run writes.
    key: maps such a value to its key; of equal keys the first value counts.

  Raises:
    OSError: the file cannot be read.
  """
  lines, keys = Lines(path, [], []), set()
  if not path.exists():
    return lines
  *whole, last = path.read_bytes().split(b'\n')
  for number, line in enumerate([*whole, last], start=1):
    try:
      value = parse_json(line.decode())
    except ValueError:
      # A kill may have interrupted the write of the last line.
      is_half = number > len(whole) and line[:1] in (b'{', b'[')
      if line.strip() and not is_half:
        lines.aside.append((number, line))
      continue
    if is_own(value) and key(value) not in keys:
      keys.add(key(value))
      lines.kept.append(value)
    else:
      lines.aside.append((number, line))
  return lines


def set_aside(path: pathlib.Path, reason: str) -> None:
  """Renames an unusable file to an unused name and reports it."""
  names = (f'{path.name}{_ASIDE}{i or ""}' for i in itertools.count())
  aside = next(a for a in map(path.with_name, names) if not a.exists())
  print(f'{path}: {reason}; it is now {aside.name}', file=sys.stderr)
  path.rename(aside)
