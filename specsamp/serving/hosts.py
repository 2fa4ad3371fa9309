"""Check of the Host header, against DNS rebinding.

A web site can make its own name resolve to 127.0.0.1 after it is loaded. To a
browser this server is then part of that site, which may read its responses. The
Host header still has the site's name.
"""

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specsamp.serving.errors import ApiError


def allowed(host: str, names: Iterable[str] = ()) -> frozenset[str] | None:
  """Returns the names of a server, without ports; None for any name.

  Args:
    host: address to listen on. A server on a loopback address has the names of
      localhost. On another one it has any name, unless `names` lists them.
    names: further names.
  """
  names = set(names)
  try:
    is_loopback = ipaddress.ip_address(host).is_loopback
  except ValueError:
    is_loopback = host.lower() == 'localhost'
  if is_loopback:
    names |= {'localhost', '127.0.0.1', '::1'}
  elif not names:
    return None
  names = {name.lower().strip('[]') for name in {*names, host}}
  return frozenset(f'[{name}]' if ':' in name else name for name in names)


class HostCheck:
  """ASGI middleware that answers 421 to requests by another name.

  Starlette's `TrustedHostMiddleware` answers 400 in plain text instead.
  """

  def __init__(self, app: ASGIApp, names: frozenset[str], to_response):
    """Wraps an application.

    Args:
      app: the application.
      names: names of the server, see `allowed`.
      to_response: returns the response of an `ApiError`.
    """
    self._app = app
    self._names = names
    self._to_response = to_response

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    app = self._app
    if scope['type'] == 'http':
      hosts = Headers(scope=scope).getlist('host')
      # With two headers it is unclear which one a proxy has checked.
      host = hosts[0] if len(hosts) == 1 else ''
      match = re.fullmatch(r'(\[[^]]*\]|[^:]*)(:\d+)?', host)
      if not match or match[1].lower() not in self._names:
        message = f'Host: got {host!r}; --allow_hosts adds names of this server'
        error = ApiError(message, status=421, code='unknown_host')
        app = self._to_response(error)
    await app(scope, receive, send)
