"""By which names a server may be called.

A page of elsewhere can have its own name resolve to 127.0.0.1 once it is loaded
(DNS rebinding): to a browser this server is then a part of that site, which may
read what it answers. The name stays in the Host header, and gives it away.
"""

import ipaddress
from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specsamp.serving.refusals import Refusal

_LOCAL = ('localhost', '127.0.0.1', '[::1]')


def allowed(host: str, names: Iterable[str] = ()) -> frozenset[str] | None:
  """Those of a server, without ports; None is any.

  Args:
    host: where it listens. At an address of this machine alone it has that and
      the names of localhost; at one that others reach, any.
    names: others that it has, which then are all that it has beside its own.
  """
  own = {_written(host)} if host else set()
  if _is_local(host):
    own.update(_LOCAL)
  elif not (names := list(names)):
    return None
  return frozenset(own | set(map(_written, names)))


class HostCheck:
  """ASGI middleware: refuses what calls the server by another name, by 421."""

  def __init__(self, app: ASGIApp, names: frozenset[str], refuse):
    """Wraps an application.

    Args:
      app: what answers.
      names: see `allowed`.
      refuse: (refusal) -> response.
    """
    self._app = app
    self._names = names
    self._refuse = refuse

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    found = [value for name, value in scope['headers'] if name == b'host']
    # Of two it would be unclear which one somebody before this has read.
    if len(found) == 1 and _name(found[0].decode('latin-1')) in self._names:
      await self._app(scope, receive, send)
      return
    got = found[0].decode('latin-1') if found else 'none'
    refusal = Refusal(
      f'Host: got {got!r}, expected a name of this server; --allow_hosts has '
      'it take others',
      status=421,
      code='unknown_host',
    )
    response: Response = self._refuse(refusal)
    await response(scope, receive, send)


def _name(header: str) -> str:
  """Of a Host header, without its port."""
  name, colon, port = header.rpartition(':')
  has_port = colon and port.isdigit() and (name[-1:] == ']' or ':' not in name)
  return (name if has_port else header).lower()


def _written(host: str) -> str:
  """As it stands in a header: an IPv6 address in brackets."""
  host = host.lower()
  return f'[{host}]' if ':' in host and not host.startswith('[') else host


def _is_local(host: str) -> bool:
  try:
    return ipaddress.ip_address(host.strip('[]')).is_loopback
  except ValueError:
    return host.lower() == 'localhost'
