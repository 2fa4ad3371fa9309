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
from specsamp.serving.detokenize import CompletionText, Delta, Vocabulary
from specsamp.serving.errors import ApiError
from specsamp.serving.metrics import Metrics
from specsamp.serving.requests import Request

_IDLE_SECONDS = 0.2  # until an idle engine checks if the server ends


class ChoiceDelta(NamedTuple):
  """New part of a choice.

  Attributes:
    index: number of the choice.
    delta: new text.
    block_efficiency: τ of the choice so far.
    finish_reason: reason of its end, None before.
  """

  index: int
  delta: Delta
  block_efficiency: float
  finish_reason: Literal['stop', 'length'] | None


@dataclasses.dataclass
class Choice:
  """Choice of a request in flight.

  Attributes:
    text: its text.
    rounds: number of its rounds so far.
    num_accepted: accepted draft tokens, also those behind a stop string.
    has_ended: True if it gets no more deltas.
  """

  text: CompletionText
  rounds: int = 0
  num_accepted: int = 0
  has_ended: bool = False


class ActiveRequest:
  """Request in flight, whose `deltas` are read once.

  Attributes:
    request: the request.
    choices: its choices.
    ids: ids of its prompts in the engine.
    num_unread: number of choices whose end is not read yet.
  """

  def __init__(self, request: Request, texts: Sequence[CompletionText]):
    self.request = request
    self.choices = [Choice(text) for text in texts]
    self.ids: list[int] = []
    self.num_unread = len(texts)
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
    """Adds a chunk. Returns True if a stop string now ends the choice.

    Args:
      index: number of the choice.
      chunk: chunk of the choice, whose rounds are counted already.
    """
    choice, completion = self.choices[index], chunk.completion
    if choice.has_ended:  # at a stop string, which the engine knows
      return False
    choice.text.add(chunk.tokens, chunk.num_accepted, chunk.logprobs)
    choice.num_accepted += chunk.num_accepted
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
  """Passes requests to an engine, within the limits of its queue.

  Attributes:
    rounds: upper bound on the rounds of a burst.
    is_draining: True if requests are no longer accepted.
    failure: exception that ended the engine's steps, None before.
  """

  def __init__(
    self, engine: Engine, vocabulary: Vocabulary, *, queue: int, slots: int,
    rounds: int, metrics: Metrics,
  ):  # fmt: skip
    """Takes over an engine. `running` starts its thread.

    Args:
      engine: idle engine.
      vocabulary: vocabulary of the target.
      queue: number of choices that may wait for a slot.
      slots: slots of the engine.
      rounds: upper bound on the rounds of a burst.
      metrics: metrics of the server.
    """
    self._engine = engine
    self._vocabulary = vocabulary
    self._max_choices = slots + queue
    self.rounds = rounds
    self._metrics = metrics
    # By id and sample of the engine: the request and the number of its choice.
    self._open: dict[tuple[int, int], tuple[ActiveRequest, int]] = {}
    self._unread: set[ActiveRequest] = set()
    self._ends = False
    self.is_draining = False
    self.failure: BaseException | None = None
    metrics.watch(lambda: engine.num_waiting, lambda: engine.num_active, slots)

  @property
  def num_open(self) -> int:
    """The number of choices that have not ended in the engine."""
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
      ApiError: the queue is full, the server ends, or the engine rejects the
        request.
    """
    self.check_open()
    # Completions that a client has not read are kept for it, and count.
    self._unread = {active for active in self._unread if active.num_unread}
    num_unread = sum(active.num_unread for active in self._unread)
    in_flight = max(self.num_open, num_unread)
    if in_flight + request.num_choices > self._max_choices:
      raise ApiError(
        f'the queue is full: got {request.num_choices} choices, {in_flight} '
        f'are in flight, of at most {self._max_choices}',
        status=429,
        code='queue_full',
      )
    stop_tokens = tuple(self._vocabulary.tokenizer.stop_ids)
    stop_tokens = () if request.ignore_eos else stop_tokens
    texts = [
      CompletionText(
        self._vocabulary,
        prompt,
        stop_tokens,
        request.stop,
        request.num_alternatives,
      )
      for prompt in request.prompts
      for _ in range(request.n)
    ]
    active = ActiveRequest(request, texts)
    try:
      for i, prompt in enumerate(request.prompts):
        first = i * request.n
        id_ = self._engine.submit(
          prompt,
          n=request.n,
          sampling=request.sampling,
          max_new_tokens=request.max_tokens,
          seed=request.seed + first,
          stop_tokens=stop_tokens,
        )
        active.ids.append(id_)
        for sample in range(request.n):
          self._open[id_, sample] = active, first + sample
    except UserError as error:
      self.cancel(active)
      if self._engine.is_closed:  # it has failed, and `failure` is not set yet
        raise self._unavailable() from None
      raise ApiError(str(error)) from None
    self._unread.add(active)
    return active

  def cancel(self, active: ActiveRequest) -> None:
    """Frees the slots of a request that has not ended."""
    active.fail(self._unavailable())
    self._unread.discard(active)
    for id_ in active.ids:
      self._engine.cancel(id_)

  async def drain(self) -> None:
    """Stops accepting requests, and waits for those in flight."""
    self.is_draining = True
    while self.num_open and self.failure is None:
      await asyncio.sleep(0.02)

  def give_up(self) -> None:
    """Cancels all requests in flight."""
    for active in {active for active, _ in self._open.values()}:
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
      choice = active.choices[index]
      rounds = self._num_rounds(choice, chunk)
      choice.rounds += rounds
      self._metrics.add_chunk(chunk, rounds)
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

  def _num_rounds(self, choice: Choice, chunk: Chunk) -> int:
    """Returns the number of rounds of a burst that belong to a choice."""
    completion = chunk.completion
    if completion and completion.stats:
      return int(completion.stats.rounds) - choice.rounds
    if self.rounds == 1:
      return min(len(chunk.tokens), 1)
    # Each round emits one token that is not drafted, and ends uncut.
    return len(chunk.tokens) - chunk.num_accepted

  def _fail(self, error: BaseException) -> None:
    self.failure = error
    for active in {active for active, _ in self._open.values()}:
      active.fail(ApiError('the server has failed', status=500))
    self._open.clear()
