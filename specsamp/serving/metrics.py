"""Metrics of a server for Prometheus."""

import collections
import time
from collections.abc import Callable

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from specsamp.decoding.completions import Chunk
from specsamp.decoding.engine import Engine
from specsamp.decoding.state import block_efficiency

_WINDOW_SECONDS = 60.0  # of the rates


class Metrics:
  """Metrics of one server, in a registry that no other one shares.

  A request is completed, cancelled (the client disconnected), refused (the
  client's mistake), full, draining or failed.
  """

  def __init__(self, engine: Engine):
    registry = self.registry = prometheus_client.CollectorRegistry()

    def make(kind, name, about, labels=()):
      return kind(f'specsamp_{name}', about, labels, registry=registry)

    def gauge(name: str, about: str, value: Callable[[], float]) -> None:
      make(Gauge, name, about).set_function(value)

    self.requests = make(
      Counter, 'requests', 'Requests by outcome.', ('route', 'outcome')
    )
    self.seconds = make(Histogram, 'request_seconds', 'Duration of a request.')
    self.prompt_tokens = make(Counter, 'prompt_tokens', 'Tokens of prompts.')
    self._reused = make(
      Counter, 'reused_prompt_tokens', 'Tokens of prompts without a prefill.'
    )
    self._tokens = make(Counter, 'output_tokens', 'Emitted tokens.')
    self._accepted = make(Counter, 'accepted_tokens', 'Accepted draft tokens.')
    self._rounds = make(
      Counter, 'rounds', 'Rounds, one per choice and target pass.'
    )
    # (time, tokens, accepted draft tokens, rounds) of the last minute.
    self._recent: collections.deque[tuple] = collections.deque()
    gauge('tokens_per_second', 'Emitted, in the last minute.', self._per_second)
    gauge(
      'block_efficiency',
      'Tokens per round, in the last minute; NaN without rounds.',
      self._block_efficiency,
    )
    gauge(
      'queue_texts', 'Choices that wait for a slot.', lambda: engine.num_waiting
    )
    gauge('active_slots', 'Slots with a choice.', lambda: engine.num_active)
    gauge('slots', 'Choices that are decoded at once.', lambda: engine.slots)

  def add_chunk(self, chunk: Chunk) -> None:
    counts = len(chunk.tokens), chunk.num_accepted, chunk.rounds
    counters = self._tokens, self._accepted, self._rounds
    for counter, count in zip(counters, counts, strict=True):
      counter.inc(count)
    self._reused.inc(chunk.num_reused)
    self._recent.append((time.monotonic(), *counts))
    self._forget()

  def _forget(self) -> None:
    oldest = time.monotonic() - _WINDOW_SECONDS
    while self._recent and self._recent[0][0] < oldest:
      self._recent.popleft()

  def _per_second(self) -> float:
    self._forget()
    if not self._recent:
      return 0.0
    seconds = max(time.monotonic() - self._recent[0][0], 1.0)
    return sum(tokens for _, tokens, _, _ in self._recent) / seconds

  def _block_efficiency(self) -> float:
    self._forget()
    rounds = sum(rounds for *_, rounds in self._recent)
    accepted = sum(accepted for _, _, accepted, _ in self._recent)
    return block_efficiency(accepted, rounds)
