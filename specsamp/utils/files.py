"""Files and folders replaced whole, and lines that outlive a kill.

Whatever is killed, a name holds what it held before or what it was to hold: new
content is written under a name of its own beside the goal, hidden, of the form
`.NAME.0123456789abcdef.partial`, and takes the goal's place by a rename. (Where
a file system cannot exchange two folders there is a moment without the name:
the old folder is beside it then, as `.NAME.0123456789abcdef.old`.)
"""

import contextlib
import ctypes
import errno
import fcntl
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
from typing import Any, NamedTuple

from specsamp.errors import UserError
from specsamp.utils import distributed

_PARTIAL = '.{}.{:016x}.partial'
_IS_PARTIAL = re.compile(r'\..+\.[0-9a-f]{16}\.partial')
_ASIDE = '.set-aside'
# Of Linux and macOS: two names are exchanged at once, or nothing happens.
_EXCHANGES = {'linux': ('renameat2', 2), 'darwin': ('renamex_np', 2)}
_AT_WORKING_FOLDER = -100
_MOUNTS = pathlib.Path('/proc/self/mountinfo')


def replace(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file; one that is there is replaced by a rename.

  Raises:
    OSError: it cannot be written; the old one is what it was.
  """
  content = content.encode() if isinstance(content, str) else content
  partial = path.with_name(_PARTIAL.format(path.name, secrets.randbits(64)))
  try:
    with partial.open('xb') as file:
      _claim(file.fileno())
      file.write(content)
    partial.rename(path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise


def replace_json(path: pathlib.Path, value: Any) -> None:
  """As `replace`, a value as JSON."""
  replace(path, json.dumps(value, indent=2) + '\n')


def check_replaceable(
  path, is_ours: Callable[[pathlib.Path], bool], keep=None
) -> None:
  """Refuses a goal that `replace_folder` must not replace; writes nothing.

  Args:
    path: a folder that is there or not.
    is_ours: whether a folder that is there holds nothing but what was written
      by the one that wants to replace it.
    keep: another folder that must stay, such as one that is read meanwhile;
      None is none.

  Raises:
    UserError: the path is no folder's, cannot be written, holds something else,
      or holds what is mounted or must stay: `keep`, the working folder, the
      home folder.
  """
  given = os.fspath(path)
  if not given.strip() or '\0' in given:
    raise UserError(f'folder: got {given!r}, expected a name')
  goal = pathlib.Path(os.path.realpath(given))
  for folder in (os.getcwd(), os.path.expanduser('~'), keep):
    stays = folder and pathlib.Path(os.path.realpath(folder))
    if stays and goal in (stays, *stays.parents):
      raise UserError(
        f'folder {given}: holds {stays}, which is in use, and is not replaced; '
        'name another one'
      )
  try:
    if _holds_mount(goal):
      raise UserError(f'folder {given}: a file system is mounted there')
    if goal.is_dir():
      if next(goal.iterdir(), None) is not None and not is_ours(goal):
        raise UserError(
          f'folder {given}: holds something else than was written here before, '
          'and is not replaced; name another one'
        )
    elif goal.exists():
      raise UserError(f'folder {given}: got a file, expected a folder')
    above = next(each for each in goal.parents if each.exists())
    if not above.is_dir():
      raise UserError(f'folder {given}: {above} is not a folder')
    if not os.access(above, os.W_OK | os.X_OK):
      raise UserError(f'folder {given}: {above} cannot be written')
  except OSError as error:
    raise UserError(f'folder {given}: {error.strerror}') from None


@contextlib.contextmanager
def replace_folder(
  path, is_ours: Callable[[pathlib.Path], bool], keep=None
) -> Iterator[pathlib.Path]:
  """A folder to write in; it takes the place of `path` when the block ends.

  If the block raises, what was there stays. Of several processes all must
  enter, only the first one makes and moves folders, and none is out before it
  is done. A run that is killed may leave the unfinished folder, hidden beside
  the goal.

  Args:
    path: of the goal.
    is_ours: see `check_replaceable`.
    keep: see `check_replaceable`.

  Raises:
    UserError: as `check_replaceable`.
  """
  goal = pathlib.Path(os.path.realpath(path))
  token = distributed.of_first(secrets.randbits(31))
  partial = goal.with_name(_PARTIAL.format(goal.name, token))
  with contextlib.ExitStack() as cleanup:

    def begin():
      check_replaceable(path, is_ours, keep)
      goal.parent.mkdir(parents=True, exist_ok=True)
      partial.mkdir()
      # In the end what was there, or what cannot go there.
      cleanup.callback(shutil.rmtree, partial, ignore_errors=True)
      descriptor = os.open(partial, os.O_RDONLY)
      cleanup.callback(os.close, descriptor)
      _claim(descriptor)

    def end():
      check_replaceable(path, is_ours, keep)  # much may have happened since
      _move_into_place(partial, goal)

    distributed.first_does(begin, f'folder {path}')
    yield partial
    distributed.first_does(end, f'folder {path}')


def _claim(descriptor: int) -> bool:
  """Whether no other process writes this; False if that cannot be known."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:  # another does, or the file system knows no locks
    return False
  return True


def _holds_mount(goal: pathlib.Path) -> bool:
  """Whether a file system, or a folder of one, is mounted there or below."""
  if not _MOUNTS.exists():
    return os.path.ismount(goal)
  for line in _MOUNTS.read_bytes().splitlines():
    # Blanks and the like stand there as \\040.
    name = re.sub(
      rb'\\(\d{3})', lambda m: bytes([int(m[1], 8)]), line.split(b' ')[4]
    )
    mount = pathlib.Path(os.fsdecode(name))
    if goal in (mount, *mount.parents):
      return True
  return False


def _move_into_place(partial: pathlib.Path, goal: pathlib.Path) -> None:
  """Renames; a folder that is there is then found under the partial's name."""
  if not goal.exists():
    partial.rename(goal)
    return
  if _exchange(partial, goal):
    return
  # A file system that cannot exchange names: for a moment there is no goal, but
  # whole folders beside it.
  old = partial.with_suffix('.old')
  goal.rename(old)
  try:
    partial.rename(goal)
  except BaseException:
    old.rename(goal)
    raise
  shutil.rmtree(old, ignore_errors=True)


def _exchange(one: pathlib.Path, other: pathlib.Path) -> bool:
  """Exchanges two names at once; False where the system cannot."""
  name, flag = _EXCHANGES.get(sys.platform, ('', 0))
  function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
  if function is None:
    return False
  paths = [os.fsencode(one), os.fsencode(other)]
  if sys.platform == 'linux':
    paths = [_AT_WORKING_FOLDER, paths[0], _AT_WORKING_FOLDER, paths[1]]
  if function(*paths, flag) == 0:
    return True
  code = ctypes.get_errno()
  if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
    return False
  raise OSError(code, os.strerror(code), str(other))


def remove_left_overs(folder: pathlib.Path) -> None:
  """Removes what was about to replace another, unless somebody writes it."""
  for path in folder.iterdir():
    if not is_left_over(path.name):
      continue
    with contextlib.suppress(OSError):
      descriptor = os.open(path, os.O_RDONLY)
      try:
        if _claim(descriptor):
          shutil.rmtree(path) if path.is_dir() else path.unlink()
      finally:
        os.close(descriptor)


def is_left_over(name: str) -> bool:
  """Whether a file or folder of this name was about to replace another."""
  return _IS_PARTIAL.fullmatch(name) is not None


def parse_json(text: str | bytes) -> Any:
  """The value; ValueError for whatever is none, however deep it is nested."""
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError('nested too deep') from None


def read_json(path) -> Any:
  """As `parse_json`, of a file in UTF-8.

  Raises:
    OSError: it cannot be read, or is a pipe or a device, which may not end.
    ValueError: it is no JSON.
  """
  check_regular(path)
  return parse_json(pathlib.Path(path).read_bytes().decode('utf-8-sig'))


def check_regular(path) -> None:
  """Raises OSError if a path is a folder, a pipe or a device."""
  if os.path.exists(path) and not os.path.isfile(path):
    raise OSError(errno.EINVAL, 'not a regular file', os.fspath(path))


def has_shape(value: Any, shape: Any) -> bool:
  """Whether a value of JSON is of this shape.

  Args:
    value: what was read.
    shape: a type, of which a float is any finite number; [shape], a list of
      such; {name: shape}, an object with such fields and maybe others; (shape,
      ..), any of them; or None.
  """
  if isinstance(shape, tuple):
    return any(has_shape(value, each) for each in shape)
  if isinstance(shape, list):
    return type(value) is list and all(has_shape(v, shape[0]) for v in value)
  if isinstance(shape, dict):
    return type(value) is dict and all(
      name in value and has_shape(value[name], each)
      for name, each in shape.items()
    )
  if type(value) is int and abs(value) >= 2**63:
    return False
  if shape is float:
    return type(value) in (int, float) and math.isfinite(value)
  return value is None if shape is None else type(value) is shape


class Lines(NamedTuple):
  """What a file of JSON lines holds.

  Attributes:
    path: of the file.
    kept: the values that are this run's own, in order.
    aside: (number from 1, line) of the others.
  """

  path: pathlib.Path
  kept: list[Any]
  aside: list[tuple[int, bytes]]

  def rewrite(self, values: Sequence[Any]) -> None:
    """Leaves these values in the file; the first process does.

    What was not this run's own goes to NAME.set-aside, and standard error tells
    so.
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
  """Reads a file of JSON lines that may have been cut off, or spoilt.

  Args:
    path: of a file that need not be there.
    is_own: whether a value is one that this run has written or would write.
    key: of such a value; a second one of a key is not this run's own.

  Raises:
    OSError: it cannot be read.
  """
  lines, keys = Lines(path, [], []), set()
  if not path.exists():
    return lines
  *whole, last = path.read_bytes().split(b'\n')
  for number, line in enumerate([*whole, last], start=1):
    try:
      value = parse_json(line.decode())
    except ValueError:
      # The last one may have been cut off while it was written.
      was_cut = number > len(whole) and line[:1] in (b'{', b'[')
      if line.strip() and not was_cut:
        lines.aside.append((number, line))
      continue
    if is_own(value) and key(value) not in keys:
      keys.add(key(value))
      lines.kept.append(value)
    else:
      lines.aside.append((number, line))
  return lines


def set_aside(path: pathlib.Path, why: str) -> None:
  """Gives a file that holds something else a name that nothing reads."""
  names = (f'{path.name}{_ASIDE}{i or ""}' for i in itertools.count())
  aside = next(a for a in map(path.with_name, names) if not a.exists())
  print(f'{path}: {why}; it is now {aside.name}', file=sys.stderr)
  path.rename(aside)
