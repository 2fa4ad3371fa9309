"""What a client is told that asked for what there is not."""

from typing import Any

_TYPES = {429: 'rate_limit_error', 404: 'not_found_error'}
_LONGEST = 400  # characters of a message, which may quote what was sent


class Refusal(Exception):
  """A request that gets an error body in place of a text.

  Attributes:
    status: of HTTP.
    message: one line: what, got, expected.
    param: the field that is wrong, if it is one.
    code: a word for programs, if there is one.
  """

  def __init__(
    self,
    message: str,
    status: int = 400,
    param: str | None = None,
    code: str | None = None,
  ):
    line = ' '.join(message.split())
    if len(line) > _LONGEST:
      line = f'{line[:_LONGEST]} ..'
    super().__init__(line)
    self.message = line
    self.status = status
    self.param = param
    self.code = code

  @property
  def body(self) -> dict[str, Any]:
    """As OpenAI's clients read it."""
    default = 'server_error' if self.status >= 500 else 'invalid_request_error'
    error = {
      'message': self.message,
      'type': _TYPES.get(self.status, default),
      'param': self.param,
      'code': self.code,
    }
    return {'error': error}
