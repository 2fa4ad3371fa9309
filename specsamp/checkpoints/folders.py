"""Where a model or a drafter lies: in a folder here, or at the hub."""

import difflib
import os
import pathlib

from specsamp.checkpoints.huggingface import hub
from specsamp.errors import UserError
from specsamp.models import published
from specsamp.utils import distributed


def find(what: str, name) -> pathlib.Path:
  """The folder of this name, or the hub's in its cache.

  A folder that is here goes before the hub. A name that begins with a folder
  that is here, or with the one that configs keep models in, is a path and never
  the hub's. Of several processes all must call this.

  Args:
    what: the folder holds, model or drafter, for errors.
    name: a path, or `org/name` or `org/name@revision` of the hub.

  Raises:
    UserError: there is neither; and what to do.
  """
  path = pathlib.Path(name)
  repository, hint = hub.parse(name), ''
  if repository and path.parts[0] != published.FOLDER:
    # As the first process has it: none waits for another at the hub.
    if not distributed.of_first(int(pathlib.Path(path.parts[0]).is_dir())):
      return hub.snapshot(what, repository)
    hint = f', and as {path.parts[0]} is a folder here no name of the hub'
  if not path.is_dir():
    hint = _hint(path) or hint
    raise UserError(f'{what} {os.fspath(name)}: no such folder{hint}')
  return path


def is_path(name: str) -> bool:
  """Whether a name is that of a folder rather than a word."""
  return len(pathlib.Path(name).parts) > 1 or pathlib.Path(name).is_dir()


def _hint(path: pathlib.Path) -> str:
  """What may help with a folder that is not there."""
  if command := published.command(path):
    return f'; {command} fetches it'
  if path.parent.is_dir():
    names = [each.name for each in path.parent.iterdir() if each.is_dir()]
    if close := difflib.get_close_matches(path.name, names, 1):
      return f'; did you mean {path.with_name(close[0])}?'
  return ''
