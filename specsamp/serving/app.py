"""Routes: from a request's bytes to a text, and what may go wrong between."""

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from specsamp.serving import answers, asked
from specsamp.serving import metrics as counts
from specsamp.serving.answers import Answer
from specsamp.serving.asked import Asked, Limits
from specsamp.serving.hosts import HostCheck
from specsamp.serving.metrics import Metrics
from specsamp.serving.refusals import Refusal
from specsamp.serving.worker import Ticket, Worker

_PAGE = pathlib.Path(__file__).with_name('page.html')
_BODY_SECONDS = 30  # until a body must have come
_SEND_SECONDS = 60  # that a client may take to read what was sent
_HEADERS = {'cache-control': 'no-store', 'x-content-type-options': 'nosniff'}
# The page's own script and style, and this server; nothing from elsewhere.
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
  "connect-src 'self'; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'"
)
_Result = TypeVar('_Result')


class _Gone(Exception):
  """The client has hung up."""


def make(
  worker: Worker,
  limits: Limits,
  metrics: Metrics,
  max_body_bytes: int,
  names: frozenset[str] | None,
) -> Starlette:
  """The application, whose lifespan is that of the engine's thread.

  Args:
    worker: makes the engine's turns.
    limits: of a request.
    metrics: what is told of requests.
    max_body_bytes: of a request.
    names: by which it may be called, see `hosts.allowed`; None is any.
  """
  server = _Server(worker, limits, metrics, max_body_bytes)

  @contextlib.asynccontextmanager
  async def lifespan(_):
    async with worker.running():
      yield

  return Starlette(
    routes=[
      Route('/', server.page),
      Route('/health', server.health),
      Route('/metrics', server.metrics),
      Route('/v1/models', server.models),
      Route('/v1/models/{name:path}', server.model),
      Route('/v1/completions', _Text(server, False), methods=['POST']),
      Route('/v1/chat/completions', _Text(server, True), methods=['POST']),
    ],
    exception_handlers={
      HTTPException: _not_found,
      Refusal: lambda _, refusal: _refused(refusal),
      Exception: lambda *_: _refused(Refusal('internal error', status=500)),
    },
    middleware=[
      Middleware(HostCheck, names=known, refuse=_refused)
      for known in (names,)
      if known is not None
    ],
    lifespan=lifespan,
  )


class _Server:
  """What answers without a token.

  Attributes: see `make`.
  """

  def __init__(self, worker, limits, metrics, max_body_bytes):
    self.worker: Worker = worker
    self.limits: Limits = limits
    self.counts: Metrics = metrics
    self.max_body_bytes: int = max_body_bytes
    self._created = int(time.time())

  async def page(self, _) -> Response:
    headers = _HEADERS | {'content-security-policy': _POLICY}
    return Response(_PAGE.read_bytes(), media_type='text/html', headers=headers)

  async def health(self, _) -> Response:
    self.worker.check_open()
    return _json({'status': 'ok'})

  async def metrics(self, _) -> Response:
    return Response(
      self.counts.render(), headers={'content-type': counts.CONTENT_TYPE}
    )

  async def models(self, _) -> Response:
    return _json(answers.models(self.limits.model, self._created))

  async def model(self, request: Request) -> Response:
    name = request.path_params['name']
    if name != self.limits.model:
      raise Refusal(
        f'model: got {name!r}, expected {self.limits.model!r}',
        status=404,
        param='model',
        code='model_not_found',
      )
    return _json(answers.models(name, self._created)['data'][0])


class _Text:
  """The route of completions, or of a chat's; an ASGI application."""

  def __init__(self, server: _Server, is_chat: bool):
    self._server = server
    self._is_chat = is_chat

  async def __call__(self, scope, receive, send) -> None:
    began, outcome = time.monotonic(), 'failed'
    try:
      await self._answer(Request(scope, receive), send)
      outcome = 'completed'
    except (_Gone, ClientDisconnect, OSError, asyncio.CancelledError) as error:
      outcome = 'cancelled'
      if isinstance(error, asyncio.CancelledError):
        raise
    except Refusal as refusal:
      named = {429: 'full', 503: 'draining'}
      outcome = named.get(refusal.status, 'refused')
      if refusal.status == 500:
        outcome = 'failed'
      await _refused(refusal)(scope, receive, send)
    finally:
      seconds = time.monotonic() - began
      self._server.counts.add_request(scope['path'], outcome, seconds)

  async def _answer(self, request: Request, send) -> None:
    worker = self._server.worker
    worker.check_open()  # before a body is read
    content = await _body(request, self._server.max_body_bytes)
    # Not in the event loop: a long prompt takes its time.
    wanted: Asked = await asyncio.to_thread(
      asked.read, content, self._is_chat, self._server.limits
    )
    ticket = worker.submit(wanted)
    self._server.counts.add_prompt(wanted.num_prompt_tokens)
    name = self._server.limits.model
    answer = Answer(name, ticket, worker.rounds == 1)
    if wanted.streams:
      work = _stream(ticket, answer, send)
    else:
      work = _whole(ticket, answer)
    try:
      found = await _until_gone(request.receive, work)
    finally:
      worker.cancel(ticket)
    if found is not None:
      await found(request.scope, request.receive, send)


async def _whole(ticket: Ticket, answer: Answer) -> Response:
  parts = [part async for part in ticket.parts()]
  return _json(answer.whole(parts))


async def _stream(ticket: Ticket, answer: Answer, send) -> None:
  """Sends events as they come."""
  event = lambda value: b'data: ' + answers.dumps(value) + b'\n\n'

  async def write(content: bytes, more: bool = True) -> None:
    part = {'type': 'http.response.body', 'body': content, 'more_body': more}
    try:
      async with asyncio.timeout(_SEND_SECONDS):
        await send(part)
    except TimeoutError:  # its slots are for those who read
      raise _Gone from None

  headers = _HEADERS | {'content-type': 'text/event-stream; charset=utf-8'}
  await send(
    {
      'type': 'http.response.start',
      'status': 200,
      'headers': [(k.encode(), v.encode()) for k, v in headers.items()],
    }
  )
  for chunk in answer.opening():
    await write(event(chunk))
  try:
    async for part in ticket.parts():
      await write(event(answer.chunk(part)))
    if ticket.asked.includes_usage:
      await write(event(answer.counts()))
  except Refusal as refusal:  # it is too late for a status
    await write(event(refusal.body))
  await write(b'data: [DONE]\n\n', more=False)


async def _until_gone(
  receive: Callable[[], Awaitable[Any]], work: Awaitable[_Result]
) -> _Result:
  """What work returns, unless the client hangs up before.

  Raises:
    _Gone: it did; the work is cancelled.
  """

  async def gone():
    while (await receive())['type'] != 'http.disconnect':
      pass

  tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
  try:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if tasks[0].done():
      return tasks[0].result()
    raise _Gone
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(request: Request, most: int) -> bytes:
  """The body of a request.

  Raises:
    Refusal: no JSON, too long, or it does not come.
    ClientDisconnect: the client has hung up.
  """
  kind = request.headers.get('content-type', '').partition(';')[0].strip()
  # A page of elsewhere that has a browser send one must ask for leave first.
  if kind.lower() != 'application/json':
    raise Refusal(
      f'content-type: got {kind!r}, expected application/json', status=415
    )

  async def read(chunks: AsyncIterator[bytes]) -> bytes:
    found, size = [], 0
    async for chunk in chunks:
      size += len(chunk)
      if size > most:
        raise Refusal(f'body: expected at most {most} bytes', status=413)
      found.append(chunk)
    return b''.join(found)

  length = request.headers.get('content-length', '')
  if length.isdigit() and len(length) < 20 and int(length) > most:
    raise Refusal(
      f'body: got {length} bytes, expected at most {most}', status=413
    )
  try:
    return await asyncio.wait_for(read(request.stream()), _BODY_SECONDS)
  except TimeoutError:
    raise Refusal('body: did not come', status=408) from None


def _json(value: Any, status: int = 200) -> Response:
  return Response(
    answers.dumps(value), status, _HEADERS, media_type='application/json'
  )


def _refused(refusal: Refusal) -> Response:
  response = _json(refusal.body, refusal.status)
  if refusal.status in (429, 503):
    response.headers['retry-after'] = '1'
  return response


async def _not_found(_, error: HTTPException) -> Response:
  message = str(error.detail) or 'not found'
  response = _json(Refusal(message, status=error.status_code).body)
  response.status_code = error.status_code
  response.headers.update(error.headers or {})
  return response
