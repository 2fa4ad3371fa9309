"""Engine: requests pass through the rows of one compiled batch.

Between two bursts of rounds, the row of a finished sample is given to the next
request; nothing is compiled for that. The output of a request does not depend
on other requests, unless the draft length is adaptive.
"""

import collections
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from specsamp.decoding import arguments
from specsamp.decoding.arguments import HostRows
from specsamp.decoding.batch import SlotBatch
from specsamp.decoding.completions import (
  Chunk,
  Completion,
  PendingRequest,
  PendingSample,
)
from specsamp.decoding.logprobs import LogprobOptions
from specsamp.decoding.request import check_broken
from specsamp.decoding.state import DecodeState
from specsamp.drafting.drafter import Drafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding.rules import DATA
from specsamp.utils import progress
from specsamp.verification.verifier import Verifier

_MAX_TOP = 64  # alternatives of a token; a mesh finds them one by one


class Engine:
  """Queue of requests for a fixed number of slots.

  `submit`, `cancel` and `close` may be called from any thread. One thread at a
  time runs the engine, by `step` or an iterator over it. If several processes
  share a mesh, each must make the same calls. `slots`, `max_length`, `rounds`,
  `logprobs` and `is_closed` are attributes.
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
    prefill_chunk: int | None = None,
    reuse_prefixes: bool = True,
  ):
    """Makes an engine, without compiling anything: see `compile`.

    Args:
      model: the target.
      slots: rows of the batch, samples that are decoded at once.
      drafter: proposes draft tokens. The `reference` of an n-gram drafter must
        be one text, for all requests.
      verifier: see `specsamp.generate`.
      max_length: upper bound on the tokens of a prompt with its new ones; None
        is the target's positions. Every pass reads this number of cache slots.
      rounds: upper bound on the rounds of a burst, after which new tokens are
        returned. A burst ends early if a sample ends and another one waits.
      logprobs: K, to record log-probabilities of all tokens and of the K most
        probable ones at each position; None records none.
      prompt_logprobs: True to record those of prompts too.
      prefill_chunk: see `specsamp.generate`.
      reuse_prefixes: True to prefill only the rest of a prompt that begins like
        a text in a slot. An idle slot keeps its last text.

    Raises:
      UserError: an argument is invalid.
    """
    positions = model.config.max_length
    max_length = positions if max_length is None else max_length
    shards = model.mesh.shape[DATA] if model.mesh else 1
    arguments.check_int('slots', slots, 1)
    arguments.check_int('rounds', rounds, 1)
    arguments.check_int('max_length', max_length, 2, positions)
    if logprobs is not None:
      max_top = min(_MAX_TOP, model.config.num_tokens)
      arguments.check_int('logprobs', logprobs, 0, max_top)
    elif prompt_logprobs:
      raise UserError('prompt_logprobs: got True, but logprobs is None')
    if type(reuse_prefixes) is not bool:
      raise UserError(
        f'reuse_prefixes: got {reuse_prefixes!r}, expected True or False'
      )
    if slots % shards:
      raise UserError(
        f'slots: got {slots}, expected a multiple of {shards}, the shards of '
        'the batch'
      )
    self._batch = SlotBatch(
      model,
      drafter,
      verifier,
      slots,
      max_length,
      None if logprobs is None else LogprobOptions(logprobs, prompt_logprobs),
      prefill_chunk,
      reuse_prefixes,
    )
    self.slots = slots
    self.max_length = max_length
    self.rounds = rounds
    self.logprobs = logprobs
    self._has_prompt_logprobs = prompt_logprobs
    self._ids = itertools.count()
    self._queue: collections.deque[PendingSample] = collections.deque()
    self._requests: dict[int, PendingRequest] = {}
    # Chunks that no caller has yet, some of an abandoned iterator.
    self._chunks: collections.deque[Chunk] = collections.deque()
    self.is_closed = False
    self._lock = threading.Condition()  # of all of the above
    self._in_slots: list[PendingSample | None] = [None] * slots
    self._host: DecodeState | None = None  # after the last burst
    self._step_lock = threading.RLock()  # of the slots and the batch

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
    """Queues a request of n samples, which share a prefill; returns its id.

    Sample i draws from `seed + i`, or from entry i of a list of seeds. The
    other arguments are those of `specsamp.generate`, for one prompt.

    Raises:
      UserError: an argument is invalid, or the engine is closed.
    """
    arguments.check_int('n', n, 1)
    rows = self._batch.rows(
      [prompt],
      sampling=sampling,
      max_new_tokens=max_new_tokens,
      stop_tokens=stop_tokens,
    )
    return self._enqueue(rows, [arguments.row_seeds(seed, n)])[0]

  def cancel(self, id: int, index: int | None = None) -> bool:
    """Ends a request, or its sample `index`, in the next step.

    Returns False if the request has ended already.
    """
    with self._lock:
      request = self._requests.get(id)
      if request is None:
        return False
      for sample in request.samples:
        sample.is_cancelled |= index in (None, sample.index)
      # Here and not in a step, which must not search through a long queue.
      queue, self._queue = self._queue, collections.deque()
      for sample in queue:
        if sample.is_cancelled:
          self._chunks.append(sample.cancelled_chunk())
          self._end(sample)
        else:
          self._queue.append(sample)
      self._lock.notify_all()
      return True

  def step(self, wait: float = 0.0) -> list[Chunk]:
    """Ends cancelled samples, fills slots and runs a burst of rounds.

    An idle engine first waits up to `wait` seconds for a request. Returns a
    chunk for each sample that was in a slot or was cancelled.
    """
    has_work = lambda: self._requests or self._chunks or self.is_closed
    with self._lock:
      self._lock.wait_for(has_work, wait)
    with self._step_lock:
      try:
        self._step()
      except BaseException:
        self.close()  # half a step may have consumed the state
        raise
    with self._lock:
      chunks = list(self._chunks)
      self._chunks.clear()
    return chunks

  def stream(self) -> Iterator[Chunk]:
    """Runs until all requests have ended; yields their chunks."""
    while self._requests or self._chunks:
      self._chunks.extend(self.step())
      while self._chunks:
        yield self._chunks.popleft()

  def results(self) -> Iterator[Completion]:
    """Runs until all requests have ended; yields their completions."""
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
    """Returns n completions of each prompt, in the order of the prompts.

    The arguments and tokens are those of `specsamp.generate`. Sample j of
    prompt i draws from `seed + n * i + j`, or from the prompt's seed plus j.

    Raises:
      UserError: an argument is invalid, or the engine has other requests in
        flight.
      FloatingPointError: the target's logits had a NaN.
    """
    self._check_idle('generate')
    arguments.check_int('n', n, 1)
    rows = self._batch.rows(
      prompts,
      sampling=sampling,
      max_new_tokens=max_new_tokens,
      seed=seed,
      stop_tokens=stop_tokens,
    )
    first_seeds = rows.prompts.seeds.tolist()
    if np.ndim(seed) == 0:
      first_seeds = [seed + n * i for i in range(len(first_seeds))]
    seeds = [arguments.row_seeds(first, n) for first in first_seeds]
    ids = self._enqueue(rows, seeds)
    completions = {}
    with progress.bar(
      'decoding', total=n * len(ids), unit='seq', stays=False
    ) as bar:
      for completion in self.results():
        completions[completion.id, completion.index] = completion
        bar.update()
    if self.is_closed:
      raise UserError('engine was closed before all requests had ended')
    ordered = [completions[id, i] for id in ids for i in range(n)]
    check_broken([c.finish_reason == 'nan' for c in ordered], self.model)
    return ordered

  def compile(self) -> None:
    """Compiles the programs of all requests; the engine must be idle."""
    with self._step_lock:
      self._check_idle('compile')
      self._batch.compile()

  def update_params(
    self, target: Any = None, drafter: Any = None, stale: bool = False
  ) -> None:
    """Replaces parameters; compiles nothing.

    Args:
      target: the target's parameters, in a tree like the present ones; None
        keeps the present ones.
      drafter: parameters of a draft model or trained drafter for this target;
        None keeps the present ones, except for a draft made of the target's
        weights (`of_target` of `model_drafter`), which is made again.
      stale: True allows a drafter that was trained for other weights. It costs
        accepted tokens, and does not change the output's distribution.

    Raises:
      UserError: a tree, shape or dtype differs, the engine has requests in
        flight, or the drafter is stale without `stale`.
    """
    with self._step_lock:
      self._check_idle('update_params')
      self._batch.update_params(target, drafter, stale)

  def close(self) -> None:
    """Drops all requests and the batch. A closed engine takes no requests."""
    with self._lock:
      self.is_closed = True
      self._queue.clear()
      self._requests.clear()
      self._chunks.clear()
      self._lock.notify_all()
    with self._step_lock:
      self._in_slots = [None] * len(self._in_slots)
      self._host = None
      self._batch.drop()

  def __enter__(self) -> 'Engine':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def model(self) -> LanguageModel:
    """The target, with its present weights."""
    return self._batch.model

  @property
  def is_stale(self) -> bool:
    """True if the drafter was trained for other weights of the target."""
    return self._batch.is_stale

  @property
  def num_waiting(self) -> int:
    """Number of samples that wait for a slot."""
    return len(self._queue)

  @property
  def num_active(self) -> int:
    """Number of samples in slots."""
    return sum(sample is not None for sample in self._in_slots)

  def _enqueue(self, rows: HostRows, seeds: Iterable[np.ndarray]) -> list[int]:
    """Queues a request for each row, with a sample for each of its seeds."""
    ids = []
    with self._lock:
      if self.is_closed:
        raise UserError('engine is closed')
      for row, row_seeds in enumerate(seeds):
        request = PendingRequest(
          id=next(self._ids),
          prompts=self._batch.one_prompt(rows.prompts, row),
          sampling=jax.tree.map(lambda x, row=row: x[row], rows.sampling),
          stop_tokens=rows.stop_tokens[row],
        )
        request.samples += [
          PendingSample(request, i, seed)
          for i, seed in enumerate(row_seeds.tolist())
        ]
        self._requests[request.id] = request
        self._queue += request.samples
        ids.append(request.id)
      self._lock.notify_all()
    return ids

  def _check_idle(self, call: str) -> None:
    if self._requests:
      raise UserError(
        f'{call}: got {len(self._requests)} requests in flight, expected an '
        'idle engine'
      )

  def _step(self) -> None:
    for slot, sample in enumerate(self._in_slots):
      if sample is not None and sample.is_cancelled:
        self._add_chunk(sample, slot)
    self._fill_slots()
    is_idle = [sample is None for sample in self._in_slots]
    if all(is_idle):
      return
    # If another sample waits for a slot, the first one to end ends the burst.
    max_done = sum(is_idle) if self._queue else len(is_idle) - 1
    self._host = self._batch.burst(self.rounds, max_done, is_idle)
    for slot, sample in enumerate(self._in_slots):
      if sample is not None:
        self._add_chunk(sample, slot)

  def _fill_slots(self) -> None:
    idle = [i for i, sample in enumerate(self._in_slots) if sample is None]
    while idle:
      with self._lock:
        if not self._queue:
          return
        sample = self._queue.popleft()
        is_last = not self._queue or self._queue[0].request != sample.request
      request = sample.request
      if request.row is None:
        prefix = self._batch.prefix_of(request.prompts)
        if prefix is None:
          request.row = self._batch.prefill(request.prompts)
        else:
          request.row = self._batch.resume(request.prompts, prefix)
          sample.num_reused = prefix.length
      slot = self._batch.choose_slot(request.prompts, idle)
      self._batch.insert(
        request.row,
        slot,
        sample.seed,
        request.sampling,
        request.stop_tokens,
      )
      if is_last:
        request.row = None
      self._in_slots[slot] = sample
      idle.remove(slot)

  def _add_chunk(self, sample: PendingSample, slot: int) -> None:
    """Adds the chunk of a slot, and frees the slot if the sample has ended."""
    chunk = sample.next_chunk(
      self._batch.model, self._host, slot, self._has_prompt_logprobs
    )
    self._chunks.append(chunk)
    if chunk.completion:
      self._in_slots[slot] = None
      with self._lock:
        self._end(sample)

  def _end(self, sample: PendingSample) -> None:
    """Removes a sample that has ended from its request."""
    request = sample.request
    request.samples.remove(sample)
    if not request.samples:
      self._requests.pop(request.id, None)
