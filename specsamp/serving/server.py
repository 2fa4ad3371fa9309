"""Process of the server: socket, signals, and a graceful shutdown."""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

import uvicorn
from starlette.applications import Starlette

from specsamp.errors import UserError
from specsamp.serving.worker import Worker

_LINGER_SECONDS = 10  # at the end, for responses to reach their clients


def listen(host: str, port: int) -> socket.socket:
  """Returns a listening socket; port 0 is any free port.

  Clients that connect wait until `run`.
  """
  if not 0 <= port < 2**16:
    raise UserError(f'--port: got {port}, expected 0 to 65535')
  try:
    is_v6 = ':' in host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    return socket.create_server(
      (host, port), family=family, dualstack_ipv6=is_v6
    )
  except (OSError, UnicodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'--host={host} --port={port}: {reason}') from None


def address(listener: socket.socket) -> str:
  """Returns the URL of a listening socket."""
  host, port = listener.getsockname()[:2]
  host = f'[{host}]' if ':' in host else host
  return f'http://{host}:{port}/'


def allowed_names(
  host: str, names: Iterable[str] = ()
) -> frozenset[str] | None:
  """Returns the host names of a server, without ports; None for any name.

  On a loopback address they include the names of localhost. On other addresses
  any name is allowed unless `names` lists some.
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


def run(app: Starlette, worker: Worker, listener: socket.socket) -> None:
  """Serves until SIGTERM or an interrupt, then completes requests in flight.

  A second signal cancels the requests in flight, and their clients get errors.

  Raises:
    BaseException: the exception that ended the engine's steps, if any.
  """
  with listener:
    Server(app, worker).run(sockets=[listener])
  if worker.failure is not None:
    raise worker.failure


class Server(uvicorn.Server):
  """HTTP server that refuses requests while it completes those in flight."""

  def __init__(self, app: Starlette, worker: Worker):
    config = uvicorn.Config(
      app,
      log_level='warning',
      access_log=False,
      server_header=False,
      lifespan='on',
      ws='none',
      timeout_graceful_shutdown=_LINGER_SECONDS,
    )
    super().__init__(config)
    self._worker = worker
    self._drain: asyncio.Task | None = None
    self._num_signals = 0

  def handle_exit(self, sig, frame) -> None:
    # uvicorn would close the socket at the first signal.
    self._num_signals += 1
    if self._num_signals > 2 or not self.started:
      self.should_exit = self.force_exit = True

  async def on_tick(self, counter: int) -> bool:
    # uvicorn calls it every tenth of a second.
    if self._num_signals and self._drain is None:
      self._drain = asyncio.ensure_future(self._worker.drain())
    if self._num_signals > 1:
      self._worker.give_up()
    is_drained = self._drain is not None and self._drain.done()
    if is_drained or self._worker.failure is not None:
      self.should_exit = True
    return await super().on_tick(counter)
