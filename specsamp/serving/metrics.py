"""Metrics of a server for Prometheus."""

import collections
import time
from collections.abc import Callable

import prometheus_client

from specsamp.decoding.completions import Chunk
from specsamp.decoding.state import block_efficiency

_WINDOW_SECONDS = 60.0  # of the rates
CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


class Metrics:
  """Metrics of one server, in a registry that no other one shares."""

  def __init__(self):
    registry = self._registry = prometheus_client.CollectorRegistry()

    def counter(name, about, labels=()):
      name = f'specsamp_{name}'
      return prometheus_client.Counter(name, about, labels, registry=registry)

    self._requests = counter(
      'requests', 'Requests by outcome.', ('route', 'outcome')
    )
    self._prompt_tokens = counter('prompt_tokens', 'Tokens of prompts.')
    self._tokens = counter('output_tokens', 'Emitted tokens.')
    self._accepted = counter('accepted_tokens', 'Accepted draft tokens.')
    self._rounds = counter('rounds', 'Rounds, one per choice and target pass.')
    self._seconds = prometheus_client.Histogram(
      'specsamp_request_seconds',
      'Duration of a request.',
      registry=registry,
    )
    self._recent = collections.deque()  # (time, tokens, accepted, rounds)
    self._gauge(
      'tokens_per_second', 'Emitted, in the last minute.', self._per_second
    )
    self._gauge(
      'block_efficiency',
      'Tokens per round, in the last minute; NaN without rounds.',
      self._block_efficiency,
    )

  def _gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
    name = f'specsamp_{name}'
    gauge = prometheus_client.Gauge(name, about, registry=self._registry)
    gauge.set_function(value)

  def watch(
    self, waiting: Callable[[], int], active: Callable[[], int], slots: int
  ) -> None:
    """Shows an engine.

    Args:
      waiting: returns the choices in its queue.
      active: returns the choices in its slots.
      slots: number of its slots.
    """
    self._gauge('queue_texts', 'Choices that wait for a slot.', waiting)
    self._gauge('active_slots', 'Slots with a choice.', active)
    self._gauge('slots', 'Choices that are decoded at once.', lambda: slots)

  def add_chunk(self, chunk: Chunk, rounds: int) -> None:
    """Counts a chunk and its rounds."""
    num_tokens = len(chunk.tokens)
    self._tokens.inc(num_tokens)
    self._accepted.inc(chunk.num_accepted)
    self._rounds.inc(rounds)
    now = time.monotonic()
    self._recent.append((now, num_tokens, chunk.num_accepted, rounds))
    self._forget()

  def add_prompt(self, num_tokens: int) -> None:
    """Counts a prompt."""
    self._prompt_tokens.inc(num_tokens)

  def add_request(self, route: str, outcome: str, seconds: float) -> None:
    """Counts a request that has ended.

    Args:
      route: its path.
      outcome: completed, cancelled (the client disconnected), refused (the
        client's mistake), full, draining or failed.
      seconds: its duration.
    """
    self._requests.labels(route, outcome).inc()
    self._seconds.observe(seconds)

  def render(self) -> bytes:
    """Returns all metrics as text."""
    return prometheus_client.generate_latest(self._registry)

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
