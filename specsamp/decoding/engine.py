"""Requests that come and go through the rows of one compiled batch.

A batch of `generate` begins and ends together. Here a row whose text has ended
is given to the next request between two bursts of rounds: nothing is compiled
for that. As there, with a given drafter and verifier the output of a request
depends on its prompt, seed and sampling values, not on the other requests (but
for an adaptive draft length).
"""

import collections
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from specsamp.decoding import arguments
from specsamp.decoding.arguments import Rows
from specsamp.decoding.batch import Batch
from specsamp.decoding.completions import Chunk, Completion, Job, Sample
from specsamp.decoding.logprobs import Asked
from specsamp.decoding.state import DecodeState
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import float16
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding.rules import DATA
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_MOST_TOP = 64  # alternatives of a token: they are found one by one on a mesh


class Engine:
  """A queue of requests before a fixed number of slots.

  `submit`, `cancel` and `close` may be called from any thread; one thread at a
  time makes the engine's turns, through `step` or an iterator over it. Of
  several processes with one mesh each must make the same calls.
  """

  def __init__(
    self,
    model: LanguageModel,
    *,
    slots: int = 8,
    drafter: Drafter | None = None,
    verifier: str | Verifier | None = None,
    max_length: int | None = None,
    rounds: int = 16,
    logprobs: int | None = None,
    prompt_logprobs: bool = False,
  ):
    """Compiles nothing yet: see `compile`.

    Args:
      model: the target.
      slots: rows of the batch, requests that are decoded at once.
      drafter: what drafts. Its state has rows on the first axis of each array,
        but for scalars, and for what is `OfBatch` and stays from text to text
        (as of an `AdaptiveDrafter`, whose texts at temperatures above 0 depend
        on the other requests). A `reference` must be one text, for all
        requests.
      verifier: as of `generate`.
      max_length: of a prompt with its new tokens; by default the target's
        positions. Every pass reads as many slots of a cache.
      rounds: of a burst, at most, after which tokens are handed out. It ends
        sooner where a text ends for which another waits.
      logprobs: K, to have log-probabilities of all tokens, and those of the K
        most probable ones beside each; None is neither.
      prompt_logprobs: of the prompts' tokens too.

    Raises:
      UserError: a number out of range, and what `generate` raises of model,
        drafter and verifier.
    """
    positions = model.config.max_length
    max_length = positions if max_length is None else max_length
    shards = model.mesh.shape[DATA] if model.mesh else 1
    arguments.check_int('slots', slots, 1)
    arguments.check_int('rounds', rounds, 1)
    arguments.check_int('max_length', max_length, 2, positions)
    if logprobs is not None:
      most = min(_MOST_TOP, model.config.num_tokens)
      arguments.check_int('logprobs', logprobs, 0, most)
    elif prompt_logprobs:
      raise UserError('prompt_logprobs: got True, expected logprobs with them')
    if slots % shards:
      raise UserError(
        f'slots: got {slots}, expected a multiple of {shards}, the shards of '
        'the batch'
      )
    self._batch = Batch(
      model,
      drafter,
      verifier,
      slots,
      max_length,
      Asked(logprobs, prompt_logprobs),
    )
    self._rounds = rounds
    self._has_prompts = prompt_logprobs
    self._seen: DecodeState | None = None  # after the last burst
    self._in_slots: list[Sample | None] = [None] * slots
    self._queue: collections.deque[Sample] = collections.deque()
    self._jobs: dict[int, Job] = {}
    self._ids = itertools.count()
    self._is_closed = False
    self._has_cancelled = False  # any since the last turn
    self._work = threading.Condition()  # of these, queue and jobs
    self._turn = threading.RLock()  # of all else
    # What a turn brought that an iterator was left with: the next one's.
    self._untaken: collections.deque[Chunk] = collections.deque()

  def submit(
    self,
    prompt: str | Sequence[int],
    *,
    n: int = 1,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int | Sequence[int] = 0,
    stop_tokens: Sequence[int] | None = None,
  ) -> int:
    """Queues a request; returns its id.

    Args:
      prompt: a text, or token ids.
      n: samples, of which the prompt is prefilled once.
      sampling: temperature and truncation, scalars; None is temperature 1.
      max_new_tokens: at most so many.
      seed: sample i draws from `seed + i`; or one seed a sample.
      stop_tokens: as of `generate`.

    Raises:
      UserError: what `generate` raises of these, a prompt and budget beyond
        the engine's `max_length`, or an engine that is closed.
    """
    arguments.check_int('n', n, 1)
    rows = self._batch.rows([prompt], sampling, max_new_tokens, 0, stop_tokens)
    return self._enqueue(rows, [arguments.seeds_of(seed, n)])[0]

  def cancel(self, id: int, index: int | None = None) -> bool:
    """Ends a request in the next turn; whether it was under way.

    Args:
      id: of the request.
      index: of one of its samples, to end that alone.
    """
    with self._work:
      job = self._jobs.get(id)
      if job is not None:
        job.cancelled.update(range(job.n) if index is None else (index,))
        self._has_cancelled = True
        self._work.notify_all()
      return job is not None

  def step(self, wait: float = 0.0) -> list[Chunk]:
    """A turn: ends what was cancelled, fills slots, runs a burst of rounds.

    Args:
      wait: seconds to wait for a request where there is none.

    Returns:
      What the burst added to each text that was in a slot.
    """
    is_ready = lambda: self._jobs or self._untaken or self._is_closed
    with self._work:
      self._work.wait_for(is_ready, wait)
    with self._turn:
      try:
        chunks = [*self._untaken, *self._step()]
        self._untaken.clear()
        return chunks
      except BaseException:
        self.close()  # half a turn may have consumed the state
        raise

  def stream(self) -> Iterator[Chunk]:
    """Turns until nothing is left: chunks of all texts as they come."""
    while self._jobs or self._untaken:
      self._untaken.extend(self.step())
      while self._untaken:
        yield self._untaken.popleft()

  def results(self) -> Iterator[Completion]:
    """Turns until nothing is left: every text as it ends."""
    for chunk in self.stream():
      if chunk.completion:
        yield chunk.completion

  def generate(
    self,
    prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
    *,
    sampling: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    seed: int | Sequence[int] = 0,
    stop_tokens: Sequence[int] | None = None,
    n: int = 1,
  ) -> list[Completion]:
    """Completions of so many prompts as there are, in their order.

    The texts are those of `specsamp.generate`, whose arguments these are, of
    each prompt n times in a row: sample j of prompt i draws from
    `seed + n * i + j`, or from the prompt's own seed and j.

    Raises:
      UserError: of them as there, or requests under way that are none of these.
      FloatingPointError: the target's logits held a NaN.
    """
    self._check_idle('generate')
    arguments.check_int('n', n, 1)
    rows = self._batch.rows(
      prompts, sampling, max_new_tokens, seed, stop_tokens
    )
    seeds = [(own, n) for own in rows.prompts.seeds.tolist()]
    if np.ndim(seed) == 0:
      seeds = [(seed + n * i, n) for i in range(len(seeds))]
    ids = self._enqueue(rows, [arguments.seeds_of(*own) for own in seeds])
    found = {}
    with progress.bar(
      'decoding', total=n * len(ids), unit='seq', stays=False
    ) as bar:
      for completion in self.results():
        found[completion.id, completion.index] = completion
        bar.update()
    if self._is_closed:
      raise UserError('engine: was closed before all texts had ended')
    texts = [found[id, i] for id in ids for i in range(n)]
    broken = [i for i, each in enumerate(texts) if each.finish_reason == 'nan']
    if broken:
      raise FloatingPointError(
        f'the target gave NaN logits in rows {broken}'
        f'{float16.overflow_hint(self.model.config.dtype)}'
      )
    return texts

  def compile(self) -> None:
    """Compiles all that any request will need; of an idle engine only."""
    with self._turn:
      self._check_idle('compile')
      self._batch.compile()

  def update_params(
    self, target: Any = None, drafter: Any = None, stale: bool = False
  ) -> None:
    """Goes on with other weights, in the programs that are compiled.

    Texts stay the target's, whatever drafts; a drafter that was trained on the
    features of other weights has fewer of its tokens accepted.

    Args:
      target: the target's parameters, in a tree as they are; None leaves them.
      drafter: the drafter's own, of a draft model or a trained drafter, taken
        to be made for this target.
      stale: goes on with a drafter that was trained for other weights: see
        `is_stale`.

    Raises:
      UserError: another tree, shape or dtype, requests under way, or a drafter
        that was trained for other weights, without `stale`.
    """
    with self._turn:
      self._check_idle('update_params')
      self._batch.update_params(target, drafter, stale)

  def close(self) -> None:
    """Drops all requests and the batch; the engine takes no more."""
    with self._work:
      self._is_closed = True
      self._queue.clear()
      self._jobs.clear()
      self._work.notify_all()
    with self._turn:
      self._in_slots = [None] * len(self._in_slots)
      self._seen = None
      self._untaken.clear()
      self._batch.drop()

  def __enter__(self) -> 'Engine':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def model(self) -> LanguageModel:
    """The target, with the weights of now."""
    return self._batch.model

  @property
  def is_closed(self) -> bool:
    return self._is_closed

  @property
  def is_stale(self) -> bool:
    """Whether the drafter was trained for other weights of the target."""
    return self._batch.is_stale

  @property
  def num_waiting(self) -> int:
    """Texts that wait for a slot."""
    return len(self._queue)

  @property
  def num_active(self) -> int:
    """Texts that have one."""
    return sum(sample is not None for sample in self._in_slots)

  def _enqueue(self, rows: Rows, seeds: Iterable[np.ndarray]) -> list[int]:
    """A request for each row: its samples have these seeds."""
    ids = []
    with self._work:
      if self._is_closed:
        raise UserError('engine: got a request, and it is closed')
      for row, own in enumerate(seeds):
        job = Job(
          id=next(self._ids),
          prompts=self._batch.prompts(rows.prompts, row),
          sampling=jax.tree.map(lambda x, row=row: x[row], rows.sampling),
          stop_tokens=rows.stop_tokens[row],
          n=len(own),
          num_waiting=len(own),
          num_left=len(own),
        )
        self._jobs[job.id] = job
        self._queue += [
          Sample(job, i, seed) for i, seed in enumerate(own.tolist())
        ]
        ids.append(job.id)
      self._work.notify_all()
    return ids

  def _check_idle(self, what: str) -> None:
    if self._jobs:
      raise UserError(
        f'{what}: got {len(self._jobs)} requests under way, expected none'
      )

  def _step(self) -> list[Chunk]:
    chunks = self._end_cancelled()
    self._fill_slots()
    is_idle = [sample is None for sample in self._in_slots]
    if all(is_idle):
      return chunks
    # A text that ends ends the burst if another waits for its slot.
    most_done = sum(is_idle) if self._queue else len(is_idle) - 1
    self._seen = self._batch.burst(self._rounds, most_done, is_idle)
    for slot, sample in enumerate(self._in_slots):
      if sample is not None:
        chunks.append(self._chunk(sample, slot))
    return chunks

  def _end_cancelled(self) -> list[Chunk]:
    """The last chunks of texts that are to go no further."""
    with self._work:
      # Looking through a long queue in every turn would take longer than it.
      is_any, self._has_cancelled = self._has_cancelled, False
    if not is_any:
      return []
    chunks = [
      self._chunk(sample, slot)
      for slot, sample in enumerate(self._in_slots)
      if sample is not None and sample.is_cancelled
    ]
    with self._work:
      gone = [sample for sample in self._queue if sample.is_cancelled]
      left = [sample for sample in self._queue if not sample.is_cancelled]
      self._queue = collections.deque(left)
    for sample in gone:
      sample.job.waits_no_more()
      self._ended(sample)
    return chunks + [sample.never_begun() for sample in gone]

  def _fill_slots(self) -> None:
    for slot, sample in enumerate(self._in_slots):
      if sample is not None:
        continue
      with self._work:
        if not self._queue:
          return
        sample = self._queue.popleft()
      job = sample.job
      if job.row is None:
        job.row = self._batch.prefill(job.prompts)
      self._batch.put(job.row, slot, sample.seed, job.sampling, job.stop_tokens)
      job.waits_no_more()
      self._in_slots[slot] = sample

  def _chunk(self, sample: Sample, slot: int) -> Chunk:
    """What is new in a slot, which is given free where the text has ended."""
    chunk = sample.chunk(self._batch.model, self._seen, slot, self._has_prompts)
    if chunk.completion:
      self._in_slots[slot] = None
      self._ended(sample)
    return chunk

  def _ended(self, sample: Sample) -> None:
    with self._work:
      sample.job.num_left -= 1
      if not sample.job.num_left:
        self._jobs.pop(sample.job.id, None)
