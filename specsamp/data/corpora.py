"""Where text comes from, and which part of it no model may train on."""

import hashlib
import pathlib
import sysconfig
from collections.abc import Collection

from specsamp.errors import UserError

# Of the standard library: tests, bundled third parties, tables of data.
_LEFT_OUT = (
  'site-packages',
  'test',
  'tests',
  'idle_test',
  'encodings',
  'pydoc_data',
  '__pycache__',
)


def is_held_out(name: str) -> bool:
  """One file in ten, by a hash of its relative path.

  A file keeps its side whatever else is in the folder, on every machine and in
  every version of the library.
  """
  return hashlib.sha256(name.encode()).digest()[0] * 10 < 256


def read_folder(
  root, pattern: str = '**/*.py', leave_out: Collection[str] = ()
) -> dict[str, str]:
  """Relative path -> text of the readable UTF-8 files, sorted by path.

  Args:
    root: folder.
    pattern: glob, relative to the folder.
    leave_out: names of files and subfolders that are passed over.

  Raises:
    UserError: no such folder, a bad pattern, or no file that matches.
  """
  root = pathlib.Path(root)
  if not root.is_dir():
    raise UserError(f'corpus: {root} is not a folder')
  try:
    paths = sorted(root.glob(pattern))
  except (ValueError, NotImplementedError) as error:
    raise UserError(f'corpus: bad pattern {pattern!r}: {error}') from None
  files = {}
  for path in paths:
    name = path.relative_to(root)
    if not set(name.parts).intersection(leave_out) and path.is_file():
      try:
        files[name.as_posix()] = path.read_text(encoding='utf-8')
      except (UnicodeDecodeError, OSError):
        continue
  if not files:
    raise UserError(f'corpus: no files match {pattern} in {root}')
  return files


def python_library() -> dict[str, str]:
  """The standard library of the running Python."""
  return read_folder(sysconfig.get_paths()['stdlib'], leave_out=_LEFT_OUT)


def read(corpus: str, pattern: str) -> dict[str, str]:
  """The corpus of a config, as `read_folder`; '' is `python_library`."""
  return read_folder(corpus, pattern) if corpus else python_library()


def split(files: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
  """(training, held out); raises `UserError` if either has no file."""
  train = {k: v for k, v in files.items() if not is_held_out(k)}
  held_out = {k: v for k, v in files.items() if is_held_out(k)}
  if not train or not held_out:
    raise UserError(
      f'corpus: {len(train)} files to train on and {len(held_out)} held out; '
      'both must have at least one'
    )
  return train, held_out
