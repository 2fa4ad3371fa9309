"""A body as fields that are taken one by one, and none of them forgotten."""

import json
from typing import Any

from specsamp.serving.refusals import Refusal

# What clients send along that changes no text.
HARMLESS = (
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'parallel_tool_calls',
)
# What would change it, with the values that do not.
NEUTRAL = {
  'frequency_penalty': (0,),
  'presence_penalty': (0,),
  'repetition_penalty': (1,),
  'logit_bias': ({},),
  'echo': (False,),
  'suffix': ('',),
  'tools': ([],),
  'functions': ([],),
  'tool_choice': ('none', 'auto'),  # of no tools
  'function_call': ('none', 'auto'),
  'response_format': ({'type': 'text'},),
  'modalities': (['text'],),
}


def parse(content: bytes) -> dict[str, Any]:
  """The object of a body.

  Raises:
    Refusal: it is no JSON, or something else.
  """

  def no_number(name):
    raise ValueError(name)

  try:
    body = json.loads(content.decode(), parse_constant=no_number)
  except UnicodeDecodeError:
    raise Refusal('body: not UTF-8') from None
  except (ValueError, RecursionError):  # its message quotes the body
    raise Refusal('body: not JSON') from None
  if not isinstance(body, dict):
    raise Refusal(f'body: got {kind(body)}, expected an object')
  return body


class Fields:
  """An object whose fields are taken one by one; null is not there.

  Each method raises `Refusal` for a value that is none of its kind.
  """

  def __init__(self, values: dict[str, Any], prefix: str = ''):
    """Begins to read an object.

    Args:
      values: the object.
      prefix: of its fields in messages.
    """
    self._values = {k: v for k, v in values.items() if v is not None}
    self._prefix = prefix

  def take(self, name: str, default: Any = None) -> Any:
    return self._values.pop(name, default)

  def refuse(self, name: str, got: Any, expected: str):
    param = f'{self._prefix}{name}'
    got = json.dumps(got)
    got = got if len(got) < 80 else f'{got[:80]} ..'
    raise Refusal(f'{param}: got {got}, expected {expected}', param=param)

  def integer(self, name: str, default: int, least: int, most: int) -> int:
    value = self._values.pop(name, None)
    if value is None:
      return default
    if type(value) is not int or not least <= value <= most:
      self.refuse(name, value, f'an integer from {least} to {most}')
    return value

  def number(self, name: str, default: float) -> float:
    value = self._values.pop(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A float32 is what it becomes; NaN is no number either.
    if not is_number or not -1e30 < value < 1e30:
      self.refuse(name, value, 'a number')
    return float(value)

  def flag(self, name: str) -> bool:
    value = self._values.pop(name, False)
    if type(value) is not bool:
      self.refuse(name, value, 'true or false')
    return value

  def text(self, name: str, default: str) -> str:
    value = self._values.pop(name, default)
    if not isinstance(value, str):
      self.refuse(name, value, 'a text')
    return value

  def object(self, name: str) -> dict[str, Any]:
    value = self._values.pop(name, {})
    if not isinstance(value, dict):
      self.refuse(name, value, 'an object')
    return value

  def done(self) -> None:
    """Refuses what nobody took, but for what changes nothing."""
    for name, value in self._values.items():
      if name in NEUTRAL and not self._prefix:
        if value not in NEUTRAL[name]:
          neutral = json.dumps(NEUTRAL[name][0])
          self.refuse(name, value, f'{neutral}, for it is not supported')
      elif name not in HARMLESS or self._prefix:
        param = f'{self._prefix}{name}'[:80]
        raise Refusal(f'{param}: unknown, or not supported', param=param)


def kind(value: Any) -> str:
  """What kind of value it is, and nothing of what it holds."""
  kinds = {str: 'a text', list: 'a list', dict: 'an object', bool: 'a flag'}
  if value is None:
    return 'none'
  if value == []:
    return 'an empty list'
  return kinds.get(type(value), 'a number')
