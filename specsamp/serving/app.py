"""Routes of the server: from the bytes of a request to its response."""

import asyncio
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from specsamp.serving import metrics as metrics_lib
from specsamp.serving import requests, responses
from specsamp.serving.errors import ApiError
from specsamp.serving.hosts import HostCheck
from specsamp.serving.metrics import Metrics
from specsamp.serving.requests import Limits
from specsamp.serving.worker import ActiveRequest, Worker

_PAGE = pathlib.Path(__file__).with_name('page.html')
_BODY_SECONDS = 30  # for a client to send a body
_SEND_SECONDS = 60  # for a client to read an event
_HEADERS = {'cache-control': 'no-store', 'x-content-type-options': 'nosniff'}
# The page has its own script and style, and connects to this server only.
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
  "connect-src 'self'; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'"
)
_OUTCOMES = {429: 'full', 500: 'failed', 503: 'draining'}


def make(
  worker: Worker,
  limits: Limits,
  metrics: Metrics,
  max_body_bytes: int,
  names: frozenset[str] | None,
) -> Starlette:
  """Returns the application. Its lifespan is that of the engine's thread.

  Args:
    worker: runs the engine.
    limits: limits of a request.
    metrics: metrics of the server.
    max_body_bytes: upper bound on the body of a request.
    names: names of the server, see `hosts.allowed`; None for any.
  """
  models = responses.models(limits.model, int(time.time()))

  async def page(_) -> Response:
    headers = _HEADERS | {'content-security-policy': _POLICY}
    return Response(_PAGE.read_bytes(), media_type='text/html', headers=headers)

  async def health(_) -> Response:
    worker.check_open()
    return _json({'status': 'ok'})

  async def render_metrics(_) -> Response:
    headers = {'content-type': metrics_lib.CONTENT_TYPE}
    return Response(metrics.render(), headers=headers)

  async def list_models(_) -> Response:
    return _json(models)

  async def model(request: Request) -> Response:
    limits.check_model(request.path_params['name'])
    return _json(models['data'][0])

  @contextlib.asynccontextmanager
  async def lifespan(_):
    async with worker.running():
      yield

  complete = lambda is_chat: _Completions(
    is_chat, worker, limits, metrics, max_body_bytes
  )
  middleware = [Middleware(HostCheck, names=names, to_response=_error)]
  return Starlette(
    routes=[
      Route('/', page),
      Route('/health', health),
      Route('/metrics', render_metrics),
      Route('/v1/models', list_models),
      Route('/v1/models/{name:path}', model),
      Route('/v1/completions', complete(False), methods=['POST']),
      Route('/v1/chat/completions', complete(True), methods=['POST']),
    ],
    exception_handlers={
      HTTPException: _http_error,
      ApiError: lambda _, error: _error(error),
      Exception: lambda *_: _error(ApiError('internal error', status=500)),
    },
    middleware=[] if names is None else middleware,
    lifespan=lifespan,
  )


@dataclasses.dataclass
class _Completions:
  """ASGI application of the completions' routes, see `make`."""

  is_chat: bool
  worker: Worker
  limits: Limits
  metrics: Metrics
  max_body_bytes: int

  async def __call__(self, scope, receive, send) -> None:
    start, outcome = time.monotonic(), 'failed'
    try:
      await self._answer(Request(scope, receive), send)
      outcome = 'completed'
    except (ClientDisconnect, OSError):
      outcome = 'cancelled'
    except asyncio.CancelledError:
      outcome = 'cancelled'
      raise
    except ApiError as error:
      outcome = _OUTCOMES.get(error.status, 'refused')
      await _error(error)(scope, receive, send)
    finally:
      seconds = time.monotonic() - start
      self.metrics.add_request(scope['path'], outcome, seconds)

  async def _answer(self, http_request: Request, send) -> None:
    self.worker.check_open()  # before a body is read
    content = await _body(http_request, self.max_body_bytes)
    # In a thread, because a long prompt takes its time.
    request = await asyncio.to_thread(
      requests.parse, content, self.is_chat, self.limits
    )
    active = self.worker.submit(request)
    self.metrics.add_prompt(request.num_prompt_tokens)
    builder = responses.Builder(
      self.limits.model, active, has_marks=self.worker.rounds == 1
    )
    if request.stream:
      work = _stream(active, builder, send)
    else:
      work = _whole(active, builder)
    try:
      response = await _unless_disconnected(http_request.receive, work)
    finally:
      self.worker.cancel(active)
    if response is not None:
      await response(http_request.scope, http_request.receive, send)


async def _whole(active: ActiveRequest, builder: responses.Builder) -> Response:
  deltas = [delta async for delta in active.deltas()]
  return _json(builder.whole(deltas))


async def _stream(
  active: ActiveRequest, builder: responses.Builder, send
) -> None:
  """Sends events as they come."""

  async def write(data: bytes, more: bool = True) -> None:
    body = b'data: ' + data + b'\n\n'
    message = {'type': 'http.response.body', 'body': body, 'more_body': more}
    try:
      async with asyncio.timeout(_SEND_SECONDS):
        await send(message)
    except TimeoutError:
      raise ClientDisconnect from None

  headers = _HEADERS | {'content-type': 'text/event-stream; charset=utf-8'}
  raw = [(name.encode(), value.encode()) for name, value in headers.items()]
  await send({'type': 'http.response.start', 'status': 200, 'headers': raw})
  for chunk in builder.opening():
    await write(responses.dumps(chunk))
  try:
    async for delta in active.deltas():
      await write(responses.dumps(builder.chunk(delta)))
    if active.request.stream_options.include_usage:
      await write(responses.dumps(builder.usage_chunk()))
  except ApiError as error:  # the status is sent already
    await write(responses.dumps(error.body))
  await write(b'[DONE]', more=False)


async def _unless_disconnected(
  receive: Callable[[], Awaitable[Any]], work: Awaitable[Response | None]
) -> Response | None:
  """Returns the result of work, which is cancelled if the client disconnects.

  Raises:
    ClientDisconnect: the client has disconnected.
  """

  async def wait_for_disconnect():
    while (await receive())['type'] != 'http.disconnect':
      pass
    raise ClientDisconnect

  tasks = list(map(asyncio.ensure_future, (work, wait_for_disconnect())))
  try:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return tasks[0].result() if tasks[0].done() else tasks[1].result()
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(request: Request, max_bytes: int) -> bytes:
  """Reads the body of a request.

  Raises:
    ApiError: the body is not JSON, is too long, or does not come in time.
    ClientDisconnect: the client has disconnected.
  """
  kind = request.headers.get('content-type', '').partition(';')[0].strip()
  # A browser sends this type for another site only with our permission.
  if kind.lower() != 'application/json':
    raise ApiError(
      f'content-type: got {kind!r}, expected application/json', status=415
    )
  content = bytearray()
  try:
    async with asyncio.timeout(_BODY_SECONDS):
      async for chunk in request.stream():
        content += chunk
        if len(content) > max_bytes:
          raise ApiError(f'body: expected at most {max_bytes} bytes', 413)
  except TimeoutError:
    raise ApiError('body: did not come in time', status=408) from None
  return bytes(content)


def _json(value: Any, status: int = 200) -> Response:
  return Response(
    responses.dumps(value), status, _HEADERS, media_type='application/json'
  )


def _error(error: ApiError) -> Response:
  response = _json(error.body, error.status)
  if error.status in (429, 503):
    response.headers['retry-after'] = '1'
  return response


async def _http_error(_, error: HTTPException) -> Response:
  """Returns the response of starlette's errors, such as 404 and 405."""
  response = _error(ApiError(str(error.detail), status=error.status_code))
  response.headers.update(error.headers or {})
  return response
