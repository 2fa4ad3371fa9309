"""The thread that makes an engine's turns, and requests on their way to it.

All but the turns happens in the event loop: a turn's chunks are handed over to
it together, so that nothing here needs a lock.
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
from specsamp.serving.asked import Asked
from specsamp.serving.metrics import Metrics
from specsamp.serving.refusals import Refusal
from specsamp.serving.texts import Piece, Text, Vocabulary

_WAIT = 0.2  # seconds until an idle engine looks whether it is to end


class Part(NamedTuple):
  """What is new of a choice.

  Attributes:
    index: which choice.
    piece: its text.
    block_efficiency: τ of it so far.
    finish_reason: why it ended; None if it goes on.
  """

  index: int
  piece: Piece
  block_efficiency: float
  finish_reason: Literal['stop', 'length'] | None


class Ticket:
  """A request under way: iterate over `parts` once.

  Attributes:
    asked: what it is.
    texts: of its choices.
    num_unread: of them, those whose end nobody has taken yet.
  """

  def __init__(self, asked: Asked, texts: Sequence[Text]):
    self.asked = asked
    self.texts = texts
    self.ids: list[int] = []  # of the engine's requests
    self.num_unread = len(texts)
    self._ended = [False] * len(texts)
    self._counts = [[0, 0] for _ in texts]  # rounds, accepted
    self._parts: asyncio.Queue[Part | Refusal] = asyncio.Queue()

  async def parts(self) -> AsyncIterator[Part]:
    """Each as it comes, until all choices have ended.

    Raises:
      Refusal: the engine cannot go on with it.
    """
    while self.num_unread:
      part = await self._parts.get()
      if isinstance(part, Refusal):
        raise part
      self.num_unread -= part.finish_reason is not None
      yield part

  @property
  def num_tokens(self) -> int:
    return sum(text.num_tokens for text in self.texts)

  @property
  def num_accepted(self) -> int:
    return sum(text.num_accepted for text in self.texts)

  def take(self, index: int, chunk: Chunk, rounds: int) -> bool:
    """Goes on by a chunk; whether a stop string now ends the choice.

    Args:
      index: of the choice.
      chunk: of it.
      rounds: that made it.
    """
    if self._ended[index]:  # at a stop string; the engine knows by now
      return False
    text, ended = self.texts[index], chunk.completion
    text.add(chunk.tokens, chunk.num_accepted, chunk.logprobs)
    counts = self._counts[index]
    counts[0] += rounds
    counts[1] += chunk.num_accepted
    reason = None
    if text.is_stopped:
      reason = 'stop'
    elif ended and ended.finish_reason in ('nan', 'cancelled'):
      what = 'gave NaN' if ended.finish_reason == 'nan' else 'was cancelled'
      self.fail(Refusal(f'the model {what}', status=500))
      return False
    elif ended:
      reason = ended.finish_reason
    piece = text.take(is_last=reason is not None)
    # A flush may complete a stop string too.
    reason = 'stop' if text.is_stopped else reason
    self._ended[index] = reason is not None
    tau = block_efficiency(counts[1], max(counts[0], 1))
    if piece.text or piece.logprobs or reason:
      self._parts.put_nowait(Part(index, piece, tau, reason))
    return text.is_stopped and not ended

  def fail(self, refusal: Refusal) -> None:
    self._ended = [True] * len(self.texts)
    self._parts.put_nowait(refusal)


@dataclasses.dataclass
class _Place:
  """Where the chunks of an engine's text go."""

  ticket: Ticket
  index: int  # of the choice
  rounds: int = 0  # so far


class Worker:
  """Requests to an engine, as many as there is room for.

  Attributes:
    rounds: of a burst, at most.
    is_draining: whether no more are taken.
    failure: what ended the engine's turns; None while all is well.
  """

  def __init__(
    self, engine: Engine, vocabulary: Vocabulary, *, queue: int, slots: int,
    rounds: int, metrics: Metrics,
  ):  # fmt: skip
    """Starts nothing yet: see `running`.

    Args:
      engine: an idle one, which this takes over.
      vocabulary: the target's.
      queue: texts that may wait for a slot.
      slots: of the engine.
      rounds: of its bursts.
      metrics: what is told of it.
    """
    self._engine = engine
    self._vocabulary = vocabulary
    self._queue = queue
    self._slots = slots
    self.rounds = rounds
    self._metrics = metrics
    self._places: dict[tuple[int, int], _Place] = {}
    self._unread: set[Ticket] = set()
    self._ends = False
    self.is_draining = False
    self.failure: BaseException | None = None
    metrics.watch(lambda: engine.num_waiting, lambda: engine.num_active, slots)

  @property
  def num_open(self) -> int:
    """Texts that have not ended in the engine."""
    return len(self._places)

  @contextlib.asynccontextmanager
  async def running(self) -> AsyncIterator[None]:
    """Has a thread make the turns, in this event loop's time."""
    loop = asyncio.get_running_loop()
    thread = threading.Thread(
      target=self._turns, args=(loop,), name='engine', daemon=True
    )
    thread.start()
    try:
      yield
    finally:
      self._ends = True
      await asyncio.to_thread(thread.join)
      self._engine.close()

  def check_open(self) -> None:
    """Raises `Refusal` if no request is taken."""
    if self.is_draining or self.failure is not None:
      raise self._unavailable()

  def _unavailable(self) -> Refusal:
    what = 'is shutting down' if self.is_draining else 'has failed'
    return Refusal(f'the server {what}', status=503, code='unavailable')

  def submit(self, asked: Asked) -> Ticket:
    """Queues a request.

    Raises:
      Refusal: the queue is full, the server ends, or the engine refuses it.
    """
    self.check_open()
    # What a client does not read is kept for it, and counts.
    self._unread = {ticket for ticket in self._unread if ticket.num_unread}
    unread = sum(ticket.num_unread for ticket in self._unread)
    under_way = max(self.num_open, unread)
    if under_way + asked.num_texts > self._slots + self._queue:
      raise Refusal(
        f'the queue is full: got {asked.num_texts} texts, {under_way} are '
        f'under way, of at most {self._slots + self._queue}',
        status=429,
        code='queue_full',
      )
    tokenizer = self._vocabulary.tokenizer
    stop_tokens = () if asked.ignores_eos else tuple(tokenizer.stop_ids)
    ticket = Ticket(
      asked,
      [
        Text(
          self._vocabulary, prompt, stop_tokens, asked.stops, asked.top_logprobs
        )
        for prompt in asked.prompts
        for _ in range(asked.n)
      ],
    )
    n = asked.n
    try:
      for first, prompt in zip(
        range(0, asked.num_texts, n), asked.prompts, strict=True
      ):
        id = self._engine.submit(
          prompt,
          n=n,
          sampling=asked.sampling,
          max_new_tokens=asked.max_tokens,
          seed=asked.seed + first,
          stop_tokens=stop_tokens,
        )
        ticket.ids.append(id)
        for i in range(n):
          self._places[id, i] = _Place(ticket, first + i)
    except UserError as error:
      self.cancel(ticket)
      if self._engine.is_closed:  # by an error of which no word has come yet
        raise self._unavailable() from None
      raise Refusal(str(error)) from None
    self._unread.add(ticket)
    return ticket

  def cancel(self, ticket: Ticket) -> None:
    """Frees what a request holds; nothing if it has ended."""
    ticket.fail(self._unavailable())
    self._unread.discard(ticket)
    for id in ticket.ids:
      self._engine.cancel(id)

  async def drain(self) -> None:
    """Takes no more requests, and waits for those under way."""
    self.is_draining = True
    while self.num_open and self.failure is None:
      await asyncio.sleep(0.02)

  def give_up(self) -> None:
    """Cancels all that is under way."""
    for ticket in {place.ticket for place in self._places.values()}:
      self.cancel(ticket)

  def _turns(self, loop: asyncio.AbstractEventLoop) -> None:
    try:
      while not self._ends:
        chunks = self._engine.step(_WAIT)
        if chunks:
          loop.call_soon_threadsafe(self._deliver, chunks)
    except BaseException as error:
      with contextlib.suppress(RuntimeError):  # the loop has ended too
        loop.call_soon_threadsafe(self._fail, error)

  def _deliver(self, chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
      place = self._places[chunk.id, chunk.index]
      rounds = self._num_rounds(place, chunk)
      self._metrics.add_chunk(chunk, rounds)
      try:
        is_stopped = place.ticket.take(place.index, chunk, rounds)
      except Exception as error:  # of a tokenizer, and of this request alone
        place.ticket.fail(Refusal('internal error', status=500))
        self.cancel(place.ticket)
        self._tell(error)
      else:
        if is_stopped:
          self._engine.cancel(chunk.id, chunk.index)
      if chunk.completion:
        del self._places[chunk.id, chunk.index]

  def _tell(self, error: Exception) -> None:
    context = {'message': 'a text could not be made', 'exception': error}
    asyncio.get_running_loop().call_exception_handler(context)

  def _num_rounds(self, place: _Place, chunk: Chunk) -> int:
    """Of the burst, those of the text."""
    ended = chunk.completion
    if ended and ended.stats:
      rounds = int(ended.stats.rounds) - place.rounds
    elif self.rounds == 1:
      rounds = min(len(chunk.tokens), 1)
    else:  # each emits one token of its own, and none is cut before the end
      rounds = len(chunk.tokens) - chunk.num_accepted
    place.rounds += rounds
    return rounds

  def _fail(self, error: BaseException) -> None:
    self.failure = error
    for ticket in {place.ticket for place in self._places.values()}:
      ticket.fail(Refusal('the server has failed', status=500))
    self._places.clear()
