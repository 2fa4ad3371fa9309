"""Thread that runs the steps of an engine, and the requests on their way to it.

Everything except the steps runs in the event loop, which receives the chunks of
a step together. Nothing here needs a lock.
"""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple

from specsamp.decoding.completions import Chunk
from specsamp.decoding.engine import Engine
from specsamp.decoding.state import block_efficiency
from specsamp.errors import UserError
from specsamp.serving.detokenize import CompletionText, Delta
from specsamp.serving.errors import ApiError
from specsamp.serving.metrics import Metrics
from specsamp.serving.requests import Request

_IDLE_SECONDS = 0.2  # until an idle engine checks if the server ends


class ChoiceDelta(NamedTuple):
  """New text of a choice, with its τ so far, and the reason of its end."""

  index: int
  delta: Delta
  block_efficiency: float
  finish_reason: Literal['stop', 'length'] | None


@dataclasses.dataclass
class Choice:
  """Choice of a request in flight.

  `num_accepted` includes draft tokens after a stop string.
  """

  text: CompletionText
  rounds: int = 0
  num_accepted: int = 0
  has_ended: bool = False


class ActiveRequest:
  """Request in flight, whose `deltas` are read once.

  The request has an id in the engine for each prompt. `num_unread` is the
  number of choices whose end is not read yet, `num_reused` that of tokens of
  its prompts that needed no prefill.
  """

  def __init__(self, request: Request):
    self.request = request
    self.choices: list[Choice] = []
    self.ids: list[int] = []
    self.num_unread = request.num_choices
    self.num_reused = 0
    self._deltas: asyncio.Queue[ChoiceDelta | ApiError] = asyncio.Queue()

  async def deltas(self) -> AsyncIterator[ChoiceDelta]:
    """Yields each delta as it comes, until all choices have ended.

    Raises:
      ApiError: the engine cannot continue the request.
    """
    while self.num_unread:
      delta = await self._deltas.get()
      if isinstance(delta, ApiError):
        raise delta
      self.num_unread -= delta.finish_reason is not None
      yield delta

  def add(self, index: int, chunk: Chunk) -> bool:
    """Adds a chunk. Returns True if a stop string now ends the choice."""
    choice, completion = self.choices[index], chunk.completion
    self.num_reused += chunk.num_reused
    if choice.has_ended:  # at a stop string, which the engine knows
      return False
    choice.text.add(chunk.tokens, chunk.num_accepted, chunk.logprobs)
    choice.num_accepted += chunk.num_accepted
    choice.rounds += chunk.rounds
    reason = completion.finish_reason if completion else None
    if choice.text.is_stopped:
      reason = 'stop'
    elif reason in ('nan', 'cancelled'):
      cause = 'gave NaN' if reason == 'nan' else 'was cancelled'
      self.fail(ApiError(f'the model {cause}', status=500))
      return False
    delta = choice.text.take(is_last=reason is not None)
    # The last characters may complete a stop string too.
    reason = 'stop' if choice.text.is_stopped else reason
    choice.has_ended = reason is not None
    tau = block_efficiency(choice.num_accepted, max(choice.rounds, 1))
    if delta.text or delta.logprobs or reason:
      self._deltas.put_nowait(ChoiceDelta(index, delta, tau, reason))
    return choice.text.is_stopped and not completion

  def fail(self, error: ApiError) -> None:
    """Ends all choices with an error."""
    for choice in self.choices:
      choice.has_ended = True
    self._deltas.put_nowait(error)


class Worker:
  """Link between requests and an engine, within the limits of its queue.

  Attributes:
    metrics: metrics of the server.
    is_draining: True if requests are no longer accepted.
    failure: exception that ended the engine's steps, None before.
  """

  def __init__(self, engine: Engine, queue: int):
    """Wraps an idle engine, where `queue` choices may wait for a slot."""
    self._engine = engine
    self._max_choices = engine.slots + queue
    self.metrics = Metrics(engine)
    # By id and sample of the engine: the request and the number of its choice.
    self._open: dict[tuple[int, int], tuple[ActiveRequest, int]] = {}
    self._active: set[ActiveRequest] = set()  # whose clients wait
    self._ends = False
    self.is_draining = False
    self.failure: BaseException | None = None

  @property
  def num_open(self) -> int:
    return len(self._open)

  @contextlib.asynccontextmanager
  async def running(self) -> AsyncIterator[None]:
    """Runs the thread of the engine's steps."""
    loop = asyncio.get_running_loop()
    thread = threading.Thread(
      target=self._run_steps, args=(loop,), name='engine', daemon=True
    )
    thread.start()
    try:
      yield
    finally:
      self._ends = True
      await asyncio.to_thread(thread.join)
      self._engine.close()

  def check_open(self) -> None:
    """Raises `ApiError` if requests are not accepted."""
    if self.is_draining or self.failure is not None:
      raise self._unavailable()

  def _unavailable(self) -> ApiError:
    state = 'is shutting down' if self.is_draining else 'has failed'
    return ApiError(f'the server {state}', status=503, code='unavailable')

  def submit(self, request: Request) -> ActiveRequest:
    """Queues a request.

    Raises:
      ApiError: the queue is full, the server ends, or a prompt is invalid.
    """
    self.check_open()
    # Completions that a client has not read are kept for it, and count.
    in_flight = sum(active.num_unread for active in self._active)
    if in_flight + request.num_choices > self._max_choices:
      raise ApiError(
        f'the queue is full: got {request.num_choices} choices, {in_flight} '
        f'are in flight, of at most {self._max_choices}',
        status=429,
        code='queue_full',
      )
    tokenizer = self._engine.model.tokenizer
    stop_tokens = () if request.ignore_eos else tuple(tokenizer.stop_ids)
    active = ActiveRequest(request)
    self._active.add(active)
    try:
      for prompt in request.prompts:
        id_ = self._engine.submit(
          prompt,
          n=request.n,
          sampling=request.sampling,
          max_new_tokens=request.max_tokens,
          seed=request.seed + len(active.choices),
          stop_tokens=stop_tokens,
        )
        active.ids.append(id_)
        for sample in range(request.n):
          self._open[id_, sample] = active, len(active.choices)
          text = CompletionText(
            tokenizer,
            prompt,
            stop_tokens,
            request.stop,
            request.num_alternatives,
          )
          active.choices.append(Choice(text))
    except UserError as error:
      self.cancel(active)
      if self._engine.is_closed:  # it has failed, and `failure` is not set yet
        raise self._unavailable() from None
      raise ApiError(str(error), param=request.prompt_field) from None
    self.metrics.prompt_tokens.inc(request.num_prompt_tokens)
    return active

  def cancel(self, active: ActiveRequest) -> None:
    """Frees the slots of a request that has not ended."""
    active.fail(self._unavailable())
    self._active.discard(active)
    for id_ in active.ids:
      self._engine.cancel(id_)

  async def drain(self) -> None:
    """Stops accepting requests, and waits for those in flight."""
    self.is_draining = True
    while self._open and self.failure is None:
      await asyncio.sleep(0.02)

  def give_up(self) -> None:
    """Cancels all requests in flight."""
    for active in tuple(self._active):
      self.cancel(active)

  def _run_steps(self, loop: asyncio.AbstractEventLoop) -> None:
    try:
      while not self._ends:
        chunks = self._engine.step(_IDLE_SECONDS)
        if chunks:
          loop.call_soon_threadsafe(self._deliver, chunks)
    except BaseException as error:
      with contextlib.suppress(RuntimeError):  # the loop has ended too
        loop.call_soon_threadsafe(self._fail, error)

  def _deliver(self, chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
      active, index = self._open[chunk.id, chunk.index]
      self.metrics.add_chunk(chunk)
      try:
        is_stopped = active.add(index, chunk)
      except Exception as error:  # of the tokenizer, for this request only
        active.fail(ApiError('internal error', status=500))
        self.cancel(active)
        asyncio.get_running_loop().call_exception_handler(
          {'message': 'tokens could not be decoded', 'exception': error}
        )
      else:
        if is_stopped:
          self._engine.cancel(chunk.id, chunk.index)
      if chunk.completion:
        del self._open[chunk.id, chunk.index]

  def _fail(self, error: BaseException) -> None:
    self.failure = error
    for active in self._active:
      active.fail(ApiError('the server has failed', status=500))
    self._open.clear()
