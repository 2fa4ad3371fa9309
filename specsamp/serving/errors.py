"""Errors in the form that OpenAI's clients read."""

from typing import Any

from starlette.exceptions import HTTPException

_TYPES = {404: 'not_found_error', 429: 'rate_limit_error'}
_MAX_LENGTH = 400  # characters of a message, which may quote the request


class ApiError(HTTPException):
  """Error that answers a request; its `detail` is one line.

  Attributes:
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
    headers = {'retry-after': '1'} if status in (429, 503) else None
    super().__init__(status, line, headers)
    self.param = param
    self.code = code


def body_of(error: HTTPException) -> dict[str, Any]:
  """Returns the JSON object of an error, also of starlette's 404 and 405."""
  status = error.status_code
  default = 'server_error' if status >= 500 else 'invalid_request_error'
  fields = {
    'message': error.detail,
    'type': _TYPES.get(status, default),
    'param': getattr(error, 'param', None),
    'code': getattr(error, 'code', None),
  }
  return {'error': fields}
