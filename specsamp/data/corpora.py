"""Where text comes from, and which part of it no model may train on."""

import hashlib
import os
import pathlib
import sysconfig
from collections.abc import Iterable

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


def read_folder(root, pattern: str = '**/*.py') -> dict[str, str]:
  """Relative path -> text of the readable UTF-8 files, sorted by path.

  Args:
    root: folder.
    pattern: glob, relative to the folder.

  Raises:
    UserError: no such folder, a bad pattern, or no file that matches.
  """
  root = pathlib.Path(root)
  if not root.is_dir():
    raise UserError(f'corpus: {root} is not a folder')
  try:
    files = _texts(root, root.glob(pattern))
  except (ValueError, NotImplementedError) as error:
    raise UserError(f'corpus: bad pattern {pattern!r}: {error}') from None
  if not files:
    raise UserError(f'corpus: no files match {pattern} in {root}')
  return files


def python_library() -> dict[str, str]:
  """The standard library of the running Python, as `read_folder`."""
  return _texts(*_library())


def held_out_library() -> dict[str, str]:
  """Those files of `python_library` that no model may train on."""
  root, paths = _library()
  is_kept = lambda path: is_held_out(path.relative_to(root).as_posix())
  return _texts(root, filter(is_kept, paths))


def _library() -> tuple[pathlib.Path, list[pathlib.Path]]:
  root = pathlib.Path(sysconfig.get_paths()['stdlib'])
  paths = []
  for folder, subfolders, names in os.walk(root):
    # Not entered, where there may be more files than everywhere else.
    subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
    paths += [pathlib.Path(folder, n) for n in names if n.endswith('.py')]
  return root, paths


def _texts(root: pathlib.Path, paths: Iterable[pathlib.Path]) -> dict[str, str]:
  files = {}
  for path in sorted(paths):
    if path.is_file():
      try:
        text = path.read_text(encoding='utf-8')
      except (UnicodeDecodeError, OSError):
        continue
      files[path.relative_to(root).as_posix()] = text
  return files


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


_IN_A_ROW = 4  # lines
_TOO_LIKE = 0.1


def unlike(texts: Iterable[str], held_out: Iterable[str]) -> list[str]:
  """Those texts that are no copies of what is held out, nor mostly so.

  A copy has more than a tenth of its passages from held-out texts: four lines
  in a row, indentation and lines of a few letters aside.
  """
  kept_back = set().union(*map(_passages, held_out))

  def is_unlike(text):
    passages = _passages(text)
    return len(passages & kept_back) <= _TOO_LIKE * len(passages)

  return [text for text in texts if is_unlike(text)]


def _passages(text: str) -> set[tuple[str, ...]]:
  lines = [line.strip() for line in text.splitlines()]
  lines = [line for line in lines if len(line) > 20]
  return set(zip(*(lines[i:] for i in range(_IN_A_ROW)), strict=False))
