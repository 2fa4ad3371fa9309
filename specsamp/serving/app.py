"""Routes of the server: from the bytes of a request to its response."""

import asyncio
import contextlib
import dataclasses
import pathlib
import re
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import prometheus_client
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specsamp.serving import requests, responses
from specsamp.serving.errors import ApiError, body_of
from specsamp.serving.requests import Limits
from specsamp.serving.worker import ActiveRequest, Worker

_PAGE = pathlib.Path(__file__).with_name('page.html')
_HEADERS = {'cache-control': 'no-store', 'x-content-type-options': 'nosniff'}
# The page contains its script and style, and connects to this server only.
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
  "connect-src 'self'; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'"
)
_OUTCOMES = {429: 'full', 500: 'failed', 503: 'draining'}


def make(
  worker: Worker,
  limits: Limits,
  max_body_bytes: int,
  names: frozenset[str] | None,
) -> Starlette:
  """Returns the application. Its lifespan is that of the engine's thread.

  It answers to the host `names`, see `server.allowed_names`; None for any.
  """
  model = {'id': limits.model, 'object': 'model', 'created': int(time.time())}
  models = {'object': 'list', 'data': [model | {'owned_by': 'specsamp'}]}

  async def page(_) -> Response:
    headers = _HEADERS | {'content-security-policy': _POLICY}
    return Response(_PAGE.read_bytes(), media_type='text/html', headers=headers)

  async def health(_) -> Response:
    worker.check_open()
    return _json({'status': 'ok'})

  async def metrics(_) -> Response:
    text = prometheus_client.generate_latest(worker.metrics.registry)
    return Response(text, media_type='text/plain; version=0.0.4')

  async def list_models(_) -> Response:
    return _json(models)

  @contextlib.asynccontextmanager
  async def lifespan(_):
    async with worker.running():
      yield

  complete = lambda is_chat: _Completions(
    is_chat, worker, limits, max_body_bytes
  )
  is_checked = names is not None
  return Starlette(
    routes=[
      Route('/', page),
      Route('/health', health),
      Route('/metrics', metrics),
      Route('/v1/models', list_models),
      Route('/v1/completions', complete(False), methods=['POST']),
      Route('/v1/chat/completions', complete(True), methods=['POST']),
    ],
    exception_handlers={
      HTTPException: lambda _, error: _error(error),
      Exception: lambda *_: _error(ApiError('internal error', status=500)),
    },
    middleware=[Middleware(check_host, names=names)] if is_checked else [],
    lifespan=lifespan,
  )


def check_host(app: ASGIApp, names: frozenset[str]) -> ASGIApp:
  """Returns an application that answers 421 to requests for other hosts.

  The check stops DNS rebinding: a web site can make its name resolve to
  127.0.0.1 after it is loaded. A browser then lets that site read this server's
  responses. The Host header still has the site's name.

  Starlette's `TrustedHostMiddleware` answers 400, and knows no IPv6.
  """

  async def checked(scope: Scope, receive: Receive, send: Send) -> None:
    inner = app
    if scope['type'] == 'http':
      hosts = Headers(scope=scope).getlist('host')
      # With two headers it is unclear which one a proxy has checked.
      host = hosts[0] if len(hosts) == 1 else ''
      match = re.fullmatch(r'(\[[^]]*\]|[^:]*)(:\d+)?', host)
      if not match or match[1].lower() not in names:
        message = f'Host: got {host!r}; --allow_hosts adds names of this server'
        inner = _error(ApiError(message, status=421, code='unknown_host'))
    await inner(scope, receive, send)

  return checked


@dataclasses.dataclass
class _Completions:
  """ASGI application of the completions' routes, see `make`."""

  is_chat: bool
  worker: Worker
  limits: Limits
  max_body_bytes: int

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    metrics, outcome = self.worker.metrics, 'failed'
    with metrics.seconds.time():
      try:
        await self._answer(Request(scope, receive), send)
        outcome = 'completed'
      except ClientDisconnect:
        outcome = 'cancelled'
      except ApiError as error:
        outcome = _OUTCOMES.get(error.status_code, 'refused')
        raise
      finally:
        metrics.requests.labels(scope['path'], outcome).inc()

  async def _answer(self, http_request: Request, send: Send) -> None:
    self.worker.check_open()  # before a body is read
    content = await _body(http_request, self.max_body_bytes)
    # In a thread, because a long prompt takes its time.
    request = await asyncio.to_thread(
      requests.parse, content, self.is_chat, self.limits
    )
    active = self.worker.submit(request)
    builder = responses.Builder(
      self.limits.model, active, has_marks=self.limits.engine.rounds == 1
    )

    async def respond():
      if request.stream:
        events, kind = _events(active, builder), 'text/event-stream'
        response = StreamingResponse(events, 200, _HEADERS, kind)
        await response.stream_response(send)
      else:
        response = _json(builder.whole([x async for x in active.deltas()]))
        await response(http_request.scope, http_request.receive, send)

    try:
      await _unless_disconnected(http_request.receive, respond())
    finally:
      self.worker.cancel(active)


async def _events(
  active: ActiveRequest, builder: responses.Builder
) -> AsyncIterator[bytes]:
  event = lambda value: b'data: ' + responses.dumps(value) + b'\n\n'
  for chunk in builder.opening():
    yield event(chunk)
  try:
    async for delta in active.deltas():
      yield event(builder.chunk(delta))
    if active.request.stream_options.include_usage:
      yield event(builder.usage_chunk())
  except ApiError as error:  # the status is sent already
    yield event(body_of(error))
  yield b'data: [DONE]\n\n'


async def _unless_disconnected(receive: Receive, work: Awaitable[None]) -> None:
  """Does the work; raises `ClientDisconnect` if the client disconnects."""

  async def wait_for_disconnect():
    while (await receive())['type'] != 'http.disconnect':
      pass
    raise ClientDisconnect

  tasks = list(map(asyncio.ensure_future, (work, wait_for_disconnect())))
  try:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    (tasks[0] if tasks[0].done() else tasks[1]).result()
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(request: Request, max_bytes: int) -> bytes:
  """Reads the body of a request, JSON of at most `max_bytes`."""
  kind = request.headers.get('content-type', '').partition(';')[0].strip()
  # A browser sends this type for another site only with our permission.
  if kind.lower() != 'application/json':
    raise ApiError(
      f'content-type: got {kind!r}, expected application/json', status=415
    )
  content = bytearray()
  async for chunk in request.stream():
    content += chunk
    if len(content) > max_bytes:
      raise ApiError(f'body: expected at most {max_bytes} bytes', 413)
  return bytes(content)


def _json(value: Any, status: int = 200) -> Response:
  return Response(
    responses.dumps(value), status, _HEADERS, media_type='application/json'
  )


def _error(error: HTTPException) -> Response:
  response = _json(body_of(error), error.status_code)
  response.headers.update(error.headers or {})
  return response
