"""What a user did wrong, as opposed to what this code does wrong."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class UserError(ValueError):
  """A mistake in the input: one line that names what, got and expected.

  Launchers print the line and exit with code 2; every other exception is a
  bug and keeps its traceback.
  """


def unknown(what: str, got: Any, names: Iterable[str], others: str = '') -> str:
  """The message of a name that there is not, with the one that was meant.

  Args:
    what: it is the name of, such as 'verifier'.
    got: the name.
    names: those that there are.
    others: what else may be given, behind the names.

  Returns:
    One line: what, got, expected, and the closest name if one is close.
  """
  names = list(names)
  folded = {name.casefold(): name for name in names}
  wanted = str(got).casefold()
  close = difflib.get_close_matches(wanted, folded, 1)
  if len(wanted) > 2:
    close += [name for name in folded if name.startswith(wanted)]
  meant = f'; did you mean {folded[close[0]]}?' if close else ''
  return (
    f'{what}: got {got!r}, expected one of {", ".join(names)}{others}{meant}'
  )


def check_name(
  what: str, got: Any, names: Iterable[str], others: str = ''
) -> None:
  """Raises the `UserError` of `unknown` where `got` is none of the names."""
  names = list(names)
  if got not in names:
    raise UserError(unknown(what, got, names, others))


def check_fields(what: str, values: Any, kind: type) -> None:
  """Refuses plain values that name other fields than a dataclass has.

  Args:
    what: they are, such as 'method'.
    values: by the fields' names.
    kind: the dataclass.

  Raises:
    UserError: they are no dict, name what is no field, or lack one without a
      default.
  """
  if not isinstance(values, Mapping):
    raise UserError(f'{what}: got {values!r}, expected a dict of its keys')
  fields = dataclasses.fields(kind)
  for name in values:
    check_name(f'key of a {what}', name, (field.name for field in fields))
  for field in fields:
    defaults = {field.default, field.default_factory}
    if defaults == {dataclasses.MISSING} and field.name not in values:
      raise UserError(f'{what}: got {dict(values)}, which has no {field.name}')


def check_scalars(name: str, values: Iterable[Any]) -> None:
  """Raises `UserError` where there is none, or one of them is no number."""
  values = list(values)
  if not values:
    raise UserError(f'{name}: got none, expected at least one')
  for value in values:
    if type(value) not in (int, float):
      raise UserError(f'{name}: got {value!r}, expected numbers')


def check_range(
  config,
  *names: str,
  least: float,
  most: float = 2**31 - 1,
  open_least: bool = False,
  open_most: bool = False,
  kind: type[int] | type[float] = float,
) -> None:
  """Refuses numbers of a config that lie out of a range, NaN among them.

  Args:
    config: has an attribute of each name.
    *names: of numbers.
    least: the smallest one.
    most: the largest one; by default what 32 bits hold.
    open_least: the smallest one itself is out of the range.
    open_most: the largest one itself is.
    kind: int for whole numbers only.

  Raises:
    UserError: the first number that is, and what was expected.
  """
  for name in names:
    value = getattr(config, name)
    if type(value) not in (int, kind):
      what = 'an integer' if kind is int else 'a number'
      raise UserError(f'{name}: got {value!r}, expected {what}')
    if not (value > least if open_least else value >= least):
      low = 'above' if open_least else 'at least'
      raise UserError(f'{name}: got {value!r}, expected {low} {least}')
    if not (value < most if open_most else value <= most):
      high = 'below' if open_most else 'at most'
      raise UserError(f'{name}: got {value!r}, expected {high} {most}')
