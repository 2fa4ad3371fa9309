"""Finds the folder of a model or drafter, locally or at the hub."""

import difflib
import os
import pathlib
from typing import Any

from specsamp.checkpoints.huggingface import hub
from specsamp.errors import UserError
from specsamp.models import published
from specsamp.utils import distributed, files

CONFIG = 'config.json'


def find(what: str, name) -> pathlib.Path:
  """Returns the local folder of a name, or the cached one of the hub.

  A local folder takes precedence. A name that begins with an existing folder,
  or with the folder where configs keep models, is a path and never a name of
  the hub. All processes of a run must call this.

  Args:
    what: 'model', 'drafter' or 'target', for errors.
    name: a path, or `org/name` or `org/name@revision` of the hub.

  Raises:
    UserError: there is no such folder; the message says what to do.
  """
  path = pathlib.Path(name)
  repository, hint = hub.parse(name), ''
  if repository and path.parts[0] != published.FOLDER:
    # The first process decides, so that none waits for another at the hub.
    if not distributed.of_first(int(pathlib.Path(path.parts[0]).is_dir())):
      return hub.snapshot(what, repository)
    hint = f', and not a name of the hub, as {path.parts[0]} is a folder here'
  if not path.is_dir():
    hint = _hint(path) or hint
    raise UserError(f'{what} {os.fspath(name)}: no such folder{hint}')
  return path


def is_path(name: str) -> bool:
  """Returns True if a name is a path rather than a single word."""
  return len(pathlib.Path(name).parts) > 1 or pathlib.Path(name).is_dir()


def read_config(what: str, folder: pathlib.Path) -> dict[str, Any]:
  """Returns the values of a folder's config.json.

  Raises:
    UserError: the file is missing or not a JSON object.
  """
  file = folder / CONFIG
  with files.reading(f'{what} {file}'):
    values = files.read_json(file)
    if not isinstance(values, dict):
      raise ValueError('expected a JSON object')
  return values


def _hint(path: pathlib.Path) -> str:
  if command := published.command(path):
    return f'; {command} fetches it'
  if path.parent.is_dir():
    names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    if close := difflib.get_close_matches(path.name, names, 1):
      return f'; did you mean {path.with_name(close[0])}?'
  return ''
