"""Config dataclasses as schemas: the keys of a config, defaults and meanings.

The fields of a dataclass are the keys of a config file. Their types check the
values, and the `Attributes` of the docstring document them.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import ml_collections

from specsamp.errors import UserError, describe_unknown

_EXPECTED = {
  bool: 'true or false', int: 'an integer', float: 'a number', str: 'a string',
}  # fmt: skip

T = typing.TypeVar('T')


def documentation(schema: type) -> dict[str, str]:
  """Returns field -> text, from the `Attributes` of a dataclass's docstring.

  The documentation of a base class holds for its fields, too.
  """
  texts = {}
  for base in reversed(schema.__mro__):
    docstring = inspect.cleandoc(base.__doc__ or '')
    _, _, section = docstring.partition('\nAttributes:\n')
    section, _, _ = section.partition('\n\n')
    entries = re.findall(r'^  (\w+): (.*(?:\n {4}.*)*)', section, re.MULTILINE)
    texts |= {name: ' '.join(text.split()) for name, text in entries}
  return texts


def config_dict(schema: type, **values: Any) -> ml_collections.ConfigDict:
  """Returns a locked config of all keys: with these values, else defaults.

  Fields that are dicts take any key, so they are not locked.

  Args:
    schema: a dataclass. Fields that are dataclasses are nested configs.
    **values: plain values of some keys.

  Raises:
    UserError: a key is not in the schema, or one without a default is missing.
  """
  config = ml_collections.ConfigDict(_fill('config', schema, values)).lock()
  for name, hint in get_type_hints(schema).items():
    is_dict = isinstance(config[name], ml_collections.ConfigDict)
    if is_dict and get_origin(hint) is dict:
      config[name].unlock()
  return config


def _fill(what: str, schema: type, values: Mapping[str, Any]) -> dict[str, Any]:
  _check_keys(what, schema, values)
  hints = get_type_hints(schema)
  filled = {}
  for field in dataclasses.fields(schema):
    if field.name in values:
      value = values[field.name]
    elif field.default is not dataclasses.MISSING:
      value = field.default
    else:
      value = field.default_factory()
    if dataclasses.is_dataclass(value):
      value = dataclasses.asdict(value)
    elif dataclasses.is_dataclass(hints[field.name]):
      value = _fill(f'{what}: {field.name}', hints[field.name], value)
    filled[field.name] = value
  return filled


def describe(
  schema: type, values: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any, str]]:
  """Yields the name, value and documentation of every key.

  Args:
    schema: a dataclass.
    values: plain values of all keys.
    prefix: goes before each name; keys of nested dicts are `outer.inner`.
  """
  texts, hints = documentation(schema), get_type_hints(schema)
  for field in dataclasses.fields(schema):
    name, hint = f'{prefix}{field.name}', hints[field.name]
    value, text = values[field.name], texts.get(field.name, '')
    if get_origin(hint) is Literal:
      text = f'{text} One of {", ".join(filter(None, get_args(hint)))}.'
    yield name, value, text
    if dataclasses.is_dataclass(hint):
      yield from describe(hint, value, f'{name}.')


def read(schema: type[T], values: Mapping[str, Any], what: str = 'config') -> T:
  """Returns the dataclass of plain values, such as those of a ConfigDict.

  Args:
    schema: a dataclass.
    values: plain values by field. A list may stand for a tuple, and a dict for
      a dataclass.
    what: names the values in errors.

  Raises:
    UserError: a key is unknown or missing, or a value is invalid.
  """
  _check_keys(what, schema, values)
  hints = get_type_hints(schema)
  try:
    return schema(
      **{name: _typed(name, hints[name], values[name]) for name in values}
    )
  except (TypeError, ValueError) as error:
    raise UserError(f'{what}: {error}') from None


def _check_keys(what: str, schema: type, values: Any) -> None:
  """Raises `UserError` for values that do not have the keys of a dataclass."""
  if not isinstance(values, Mapping):
    raise UserError(f'{what}: got {values!r}, expected a dict of its keys')
  fields = {field.name: field for field in dataclasses.fields(schema)}
  for name in values:
    if name not in fields:
      raise UserError(describe_unknown(f'{what}: key', name, fields))
  for name, field in fields.items():
    defaults = {field.default, field.default_factory}
    if defaults == {dataclasses.MISSING} and name not in values:
      raise UserError(f'{what}: missing key {name!r}')


def _typed(name: str, hint: Any, value: Any) -> Any:
  """Returns a plain value as the type that a field declares."""
  kinds = get_args(hint)
  if dataclasses.is_dataclass(hint):
    return value if isinstance(value, hint) else read(hint, value, name)
  if get_origin(hint) is Literal:
    if value not in kinds:
      raise UserError(describe_unknown(name, value, filter(None, kinds)))
    return value
  if get_origin(hint) in (Union, types.UnionType):
    if value is None and type(None) in kinds:
      return None
    for kind in kinds:
      try:
        return _typed(name, kind, value)
      except UserError as error:
        if kind is not type(None):
          last_error = error
    raise last_error
  if get_origin(hint) is tuple and isinstance(value, list | tuple):
    if kinds[-1] is ...:
      kinds = kinds[:1] * len(value)
    if len(kinds) == len(value):
      return tuple(
        _typed(name, kind, item)
        for kind, item in zip(kinds, value, strict=True)
      )
  elif (
    type(value) is hint
    or (hint, type(value)) == (float, int)
    or (get_origin(hint) is dict and isinstance(value, Mapping))
  ):
    return value
  expected = _EXPECTED.get(hint, str(hint))
  raise UserError(f'{name}: got {value!r}, expected {expected}')
