"""Parts of a user's own by name: `my.module:Name`, on the command line too.

A name is of what makes the part: a class, or a function.
"""

import functools
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
  """Whether a text has the form `my.module:Name`."""
  return isinstance(text, str) and _IS_NAME.fullmatch(text) is not None


def make(what: str, name: str, **given: Any) -> Any:
  """What a user's own class or function of this name returns.

  Args:
    what: it makes, such as 'verifier', for messages.
    name: of the form `my.module:Name`; the current folder is importable, as
      with `python -m`.
    **given: what it is called with, in this order; their names are for
      messages.

  Raises:
    UserError: there is no such module or no such name in it, it is nothing to
      call, or it raised something, which is the error's cause.
  """
  part = _find(what, name)
  call = f'{name}({", ".join(given)})'
  if not callable(part):
    raise UserError(
      f'{what}: {name} is a {type(part).__name__}, expected a class or a '
      f'function: {call} is to make the {what}'
    )
  try:
    return part(*given.values())
  except UserError:
    raise
  except Exception as error:
    raise UserError(f'{what}: {call} failed: {describe(error)}') from error


def describe(error: BaseException) -> str:
  """An exception of a user's code in one line: type, message and place."""
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


def _find(what: str, name: str) -> Any:
  path, _, attribute = name.partition(':')
  here = os.getcwd()
  # Before the folder of the launcher, whose files have names as users' do.
  if sys.path[:1] not in ([''], [here]):
    sys.path.insert(0, here)
  try:
    module = importlib.import_module(path)
  except (Exception, SystemExit) as error:
    missing = getattr(error, 'name', None) or '.'
    if isinstance(error, ModuleNotFoundError) and f'{path}.'.startswith(
      f'{missing}.'
    ):
      raise UserError(
        f'{what}: no module {missing!r} for {name}, in {here} or where Python '
        'looks for others'
      ) from None
    raise UserError(
      f'{what}: importing {path} failed: {describe(error)}'
    ) from error
  if hasattr(module, attribute):
    return getattr(module, attribute)
  own = [
    key
    for key, value in vars(module).items()
    if getattr(value, '__module__', None) == path and not key.startswith('_')
  ]
  nothing = '' if own else 'what it defines, and it defines nothing'
  raise UserError(
    describe_unknown(f'{what}: name in {path}', attribute, own, nothing)
  )


def is_own(part: Any) -> bool:
  """Whether an object, a class or a function is none of this package's."""
  return _module_of(part).partition('.')[0] != __name__.partition('.')[0]


def source_digest(part: Any) -> str:
  """A few hex digits of the file in which a user has written a part.

  What was computed with it is another's when the file has changed.

  Args:
    part: an object, a class or a function.

  Returns:
    '' of parts of this package, and of those that are in no file.
  """
  return _digest_of(_module_of(part)) if is_own(part) else ''


def _module_of(part: Any) -> str:
  return (part if hasattr(part, '__qualname__') else type(part)).__module__


@functools.cache
def _digest_of(module: str) -> str:
  file = getattr(sys.modules.get(module), '__file__', None)
  if file is None or not pathlib.Path(file).is_file():
    return ''
  return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()[:16]
