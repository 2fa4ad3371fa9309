"""Errors in the form that OpenAI's clients read."""

from typing import Any

_TYPES = {404: 'not_found_error', 429: 'rate_limit_error'}
_MAX_LENGTH = 400  # characters of a message, which may quote the request


class ApiError(Exception):
  """Error that answers a request.

  Attributes:
    status: HTTP status.
    message: one line: what, got, expected.
    param: field of the request that is wrong, None for another error.
    code: identifier for programs, if there is one.
  """

  def __init__(
    self,
    message: str,
    status: int = 400,
    param: str | None = None,
    code: str | None = None,
  ):
    line = ' '.join(message.split())
    if len(line) > _MAX_LENGTH:
      line = f'{line[:_MAX_LENGTH]} ..'
    super().__init__(line)
    self.message = line
    self.status = status
    self.param = param
    self.code = code

  @property
  def body(self) -> dict[str, Any]:
    """JSON object of the response."""
    default = 'server_error' if self.status >= 500 else 'invalid_request_error'
    error = {
      'message': self.message,
      'type': _TYPES.get(self.status, default),
      'param': self.param,
      'code': self.code,
    }
    return {'error': error}
