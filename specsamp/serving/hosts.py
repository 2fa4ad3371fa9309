"""Check of the Host header, against DNS rebinding.

A web site can make its own name resolve to 127.0.0.1 after it is loaded. To a
browser this server is then part of that site, which may read its responses. The
Host header still has the site's name.
"""

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specsamp.serving.errors import ApiError

_LOCAL = ('localhost', '127.0.0.1', '[::1]')


def allowed(host: str, names: Iterable[str] = ()) -> frozenset[str] | None:
  """Returns the names of a server, without ports; None for any name.

  Args:
    host: address to listen on. A server on a loopback address has the names of
      localhost. On another one it has any name, unless `names` lists them.
    names: further names.
  """
  names = set(names)
  if _is_loopback(host):
    names.update(_LOCAL)
  elif not names:
    return None
  names = {name.lower() for name in {*names, host} - {''}}
  return frozenset(
    f'[{name}]' if ':' in name and not name.startswith('[') else name
    for name in names
  )


def _is_loopback(host: str) -> bool:
  try:
    return ipaddress.ip_address(host.strip('[]')).is_loopback
  except ValueError:
    return host.lower() == 'localhost'


class HostCheck:
  """ASGI middleware that answers 421 to requests by another name.

  Starlette's `TrustedHostMiddleware` answers 400 in plain text.
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
      if len(hosts) != 1 or _name(hosts[0]) not in self._names:
        app: Response = self._to_response(
          ApiError(
            f'Host: got {", ".join(hosts)!r}, expected a name of this server; '
            '--allow_hosts adds names',
            status=421,
            code='unknown_host',
          )
        )
    await app(scope, receive, send)


def _name(header: str) -> str | None:
  """Returns the name in a Host header, without its port."""
  match = re.fullmatch(r'(\[[^]]*\]|[^:]*)(:\d+)?', header)
  return match and match[1].lower()
