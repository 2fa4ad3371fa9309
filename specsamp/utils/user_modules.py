"""User-defined classes and functions by name: `my.module:Name`."""

import hashlib
import importlib
import os
import pathlib
import re
import sys
import traceback
from typing import Any

from specsamp.errors import UserError, describe_unknown

FORM = 'my.module:Name'
_IS_NAME = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*')


def is_name(text: str) -> bool:
  """Returns True for a text of the form `my.module:Name`."""
  return isinstance(text, str) and _IS_NAME.fullmatch(text) is not None


def make(what: str, name: str, **arguments: Any) -> Any:
  """Calls a user-defined class or function and returns its result.

  Args:
    what: kind of the result for messages, such as 'verifier'.
    name: `my.module:Name`; modules in the current folder can be imported, as
      with `python -m`.
    **arguments: positional arguments in this order; messages use their names.

  Raises:
    UserError: the module or the name does not exist, it is not callable, or the
      call raised an exception, which is the error's cause.
  """
  factory = _import(what, name)
  call = f'{name}({", ".join(arguments)})'
  if not callable(factory):
    raise UserError(
      f'{what}: {name} is a {type(factory).__name__}, expected a class or a '
      f'function, so that {call} returns the {what}'
    )
  try:
    return factory(*arguments.values())
  except UserError:
    raise
  except Exception as error:
    raise UserError(f'{what}: {call} failed: {describe(error)}') from error


def describe(error: BaseException) -> str:
  """Describes an exception of user code in one line: type, message, place."""
  text = ' '.join(f'{type(error).__name__}: {error}'.split())
  if isinstance(error, SyntaxError):  # its message has the place
    return text
  frames = traceback.extract_tb(error.__traceback__)
  places = [
    f'{frame.filename}:{frame.lineno}'
    for frame in frames
    if not frame.filename.startswith('<')
    and frame.filename not in (__file__, importlib.__file__)
  ]
  return f'{text} ({places[-1]})' if places else text


def _import(what: str, name: str) -> Any:
  path, _, attribute = name.partition(':')
  folder = os.getcwd()
  # Before the launcher's folder, which may hold files of the same names.
  if sys.path[:1] not in ([''], [folder]):
    sys.path.insert(0, folder)
  try:
    module = importlib.import_module(path)
  except (Exception, SystemExit) as error:
    missing = getattr(error, 'name', None) or '.'
    if isinstance(error, ModuleNotFoundError) and f'{path}.'.startswith(
      f'{missing}.'
    ):
      raise UserError(
        f'{what}: no module {missing!r} for {name} in {folder} or on the '
        'Python path'
      ) from None
    raise UserError(
      f'{what}: importing {path} failed: {describe(error)}'
    ) from error
  if hasattr(module, attribute):
    return getattr(module, attribute)
  names = [
    key
    for key, value in vars(module).items()
    if getattr(value, '__module__', None) == path and not key.startswith('_')
  ]
  nothing = '' if names else 'its definitions, but it has none'
  raise UserError(
    describe_unknown(f'{what}: name in {path}', attribute, names, nothing)
  )


def is_own(part: Any) -> bool:
  """Returns True if an object, class or function is user-defined."""
  return _module_of(part).partition('.')[0] != __name__.partition('.')[0]


def source_digest(part: Any) -> str:
  """Returns hex digits that identify the file which defines a user's part.

  Results that were computed with the part are invalid once the file changes.

  Args:
    part: an object, class or function.

  Returns:
    16 digits; '' for parts of this package and for parts without a file.
  """
  file = getattr(sys.modules.get(_module_of(part)), '__file__', None)
  if file is None or not is_own(part):
    return ''
  return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()[:16]


def _module_of(part: Any) -> str:
  return (part if hasattr(part, '__qualname__') else type(part)).__module__
