"""The process that serves: a socket, signals, and an end that loses nothing."""

import asyncio
import contextlib
import socket

import uvicorn
from starlette.applications import Starlette

from specsamp.errors import UserError
from specsamp.serving.worker import Worker

_LINGER = 10  # seconds that answers may take to reach their clients at the end


def bind(host: str, port: int) -> socket.socket:
  """A socket that nobody else listens on yet.

  Args:
    host: a name or address of this machine.
    port: 0 takes any.

  Raises:
    UserError: it cannot be had.
  """
  if not 0 <= port < 2**16:
    raise UserError(f'--port: got {port}, expected 0 to 65535')
  try:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with contextlib.ExitStack() as stack:
      listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
      listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      listener.bind((host, port))
      stack.pop_all()
  except (OSError, UnicodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'--host={host} --port={port}: {reason}') from None
  return listener


def listen(listener: socket.socket) -> None:
  """Lets clients connect, who wait until they are served.

  Raises:
    UserError: another socket was bound there too, and listens.
  """
  try:
    listener.listen()
  except OSError as error:
    with listener:
      raise UserError(f'{address(listener)}: {error.strerror}') from None


def address(listener: socket.socket) -> str:
  """Where a browser finds it."""
  host, port = listener.getsockname()[:2]
  host = f'[{host}]' if ':' in host else host
  return f'http://{host}:{port}/'


def run(app: Starlette, worker: Worker, listener: socket.socket) -> None:
  """Serves until SIGTERM or an interrupt, and ends what was begun before then.

  A second signal gives up what is under way, and tells its clients.

  Raises:
    BaseException: what ended the engine's turns, if anything did.
  """
  config = uvicorn.Config(
    app,
    log_level='warning',
    access_log=False,
    server_header=False,
    lifespan='on',
    ws='none',
    timeout_graceful_shutdown=_LINGER,
  )
  server = Server(config, worker)
  with listener:
    server.run(sockets=[listener])
  if worker.failure is not None:
    raise worker.failure


class Server(uvicorn.Server):
  """One that refuses requests while it ends those under way."""

  def __init__(self, config: uvicorn.Config, worker: Worker):
    super().__init__(config)
    self._worker = worker
    self._drain: asyncio.Task | None = None
    self._num_signals = 0

  def handle_exit(self, sig, frame) -> None:
    # The first ones are not the library's, which would close the socket.
    self._num_signals += 1
    if self._num_signals > 2 or not self.started:
      self.should_exit = self.force_exit = True

  async def on_tick(self, counter: int) -> bool:
    # Every tenth of a second.
    if self._num_signals and self._drain is None:
      self._drain = asyncio.ensure_future(self._worker.drain())
    if self._num_signals > 1:
      self._worker.give_up()
    is_drained = self._drain is not None and self._drain.done()
    if is_drained or self._worker.failure is not None:
      self.should_exit = True
    return await super().on_tick(counter)
