"""`UserError`, and the checks that raise it for wrong input."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
  """Mistake in the input. Its one-line message states the value and what fits.

  Launchers print the line and exit with code 2. Any other exception is a bug
  and keeps its traceback.
  """


def describe_unknown(
  what: str, got: Any, names: Iterable[str], others: str = ''
) -> str:
  """Returns the message for an unknown name, with the closest known name.

  Args:
    what: a noun for the name, such as 'verifier'.
    got: the unknown name.
    names: the known names.
    others: other values that are allowed, in words that follow the names.
  """
  names = list(names)
  folded = {name.casefold(): name for name in names}
  wanted = str(got).casefold()
  close = difflib.get_close_matches(wanted, folded, 1)
  if len(wanted) > 2:
    close += [name for name in folded if name.startswith(wanted)]
  hint = f'; did you mean {folded[close[0]]}?' if close else ''
  return (
    f'{what}: got {got!r}, expected one of {", ".join(names)}{others}{hint}'
  )


def check_name(
  what: str, got: Any, names: Iterable[str], others: str = ''
) -> None:
  """Checks that a name is known, with the arguments of `describe_unknown`.

  Raises:
    UserError: the name is unknown.
  """
  names = list(names)
  if got not in names:
    raise UserError(describe_unknown(what, got, names, others))


def check_range(
  config: Any,
  *names: str,
  min: float,
  max: float = 2**31 - 1,
  open_min: bool = False,
  open_max: bool = False,
  kind: type[int] | type[float] = float,
) -> None:
  """Checks that attributes of a config are numbers in a range.

  Args:
    config: an object with these attributes.
    *names: names of the attributes.
    min: lower bound.
    max: upper bound; by default the largest 32-bit integer.
    open_min: True if the lower bound itself is not allowed.
    open_max: True if the upper bound itself is not allowed.
    kind: int to allow only integers.

  Raises:
    UserError: a value is not a number, or not in the range; NaN never is.
  """
  for name in names:
    value = getattr(config, name)
    if type(value) not in (int, kind):
      expected = 'an integer' if kind is int else 'a number'
      raise UserError(f'{name}: got {value!r}, expected {expected}')
    if not (value > min if open_min else value >= min):
      bound = 'above' if open_min else 'at least'
      raise UserError(f'{name}: got {value!r}, expected {bound} {min}')
    if not (value < max if open_max else value <= max):
      bound = 'below' if open_max else 'at most'
      raise UserError(f'{name}: got {value!r}, expected {bound} {max}')
