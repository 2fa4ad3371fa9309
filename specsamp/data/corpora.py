"""Sources of text, and their held-out part that no model may train on."""

import hashlib
import os
import pathlib
import sysconfig
from collections.abc import Iterable

from specsamp.errors import UserError

# Folders of the standard library that are skipped: tests, other people's code
# and tables of data.
_SKIPPED = {
  *('site-packages', 'test', 'tests', 'idle_test', 'encodings', 'pydoc_data'),
  '__pycache__',
}
_PASSAGE = 4  # lines
_MAX_COPIED = 0.1  # of a text's passages


def is_held_out(name: str) -> bool:
  """Returns True for one file in ten, by a hash of its relative path.

  The result does not depend on other files, the machine or the library's
  version.
  """
  return hashlib.sha256(name.encode()).digest()[0] * 10 < 256


def read_folder(root, pattern: str = '**/*.py') -> dict[str, str]:
  """Returns the texts of UTF-8 files by relative path, sorted by path.

  `pattern` is a glob, relative to the folder.

  Raises:
    UserError: the folder does not exist, the pattern is invalid, or no file
      matches.
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
  """Returns the running Python's standard library; see `read_folder`."""
  return _texts(*_library())


def held_out_library() -> dict[str, str]:
  """Returns the held-out files of `python_library`."""
  root, paths = _library()
  is_kept = lambda path: is_held_out(path.relative_to(root).as_posix())
  return _texts(root, filter(is_kept, paths))


def _library() -> tuple[pathlib.Path, list[pathlib.Path]]:
  root = pathlib.Path(sysconfig.get_paths()['stdlib'])
  paths = []
  for folder, subfolders, names in os.walk(root):
    # Not entered: they may hold more files than all others.
    subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
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
  """Returns `read_folder` of a config's corpus, or `python_library` for ''."""
  return read_folder(corpus, pattern) if corpus else python_library()


def split(files: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
  """Returns the training files and the held-out files.

  Raises:
    UserError: one of the two sets is empty.
  """
  train = {k: v for k, v in files.items() if not is_held_out(k)}
  held_out = {k: v for k, v in files.items() if is_held_out(k)}
  if not train or not held_out:
    raise UserError(
      f'corpus: {len(train)} files to train on and {len(held_out)} held out; '
      'both must have at least one'
    )
  return train, held_out


def unlike(texts: Iterable[str], held_out: Iterable[str]) -> list[str]:
  """Returns the texts that do not copy held-out texts.

  A copy shares more than a tenth of its passages with held-out texts. A passage
  is four consecutive lines, without indentation and lines of a few letters.
  """
  held_out_passages = set().union(*map(_passages, held_out))

  def is_unlike(text):
    passages = _passages(text)
    return len(passages & held_out_passages) <= _MAX_COPIED * len(passages)

  return [text for text in texts if is_unlike(text)]


def _passages(text: str) -> set[tuple[str, ...]]:
  lines = [line.strip() for line in text.splitlines()]
  lines = [line for line in lines if len(line) > 20]
  return set(zip(*(lines[i:] for i in range(_PASSAGE)), strict=False))
