"""Counts of what is served, as Prometheus reads them."""

import collections
import time
from collections.abc import Callable

import prometheus_client

from specsamp.decoding.completions import Chunk
from specsamp.decoding.state import block_efficiency

_WINDOW = 60.0  # seconds that rates are of
CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


class Metrics:
  """Counters of one server, in a registry of its own."""

  def __init__(self):
    registry = self._registry = prometheus_client.CollectorRegistry()

    def counter(name, about, labels=()):
      return prometheus_client.Counter(
        f'specsamp_{name}', about, labels, registry=registry
      )

    def gauge(name, about, value):
      prometheus_client.Gauge(
        f'specsamp_{name}', about, registry=registry
      ).set_function(value)

    self._gauge = gauge
    self._requests = counter(
      'requests', 'Requests by outcome.', ('route', 'outcome')
    )
    self._prompt_tokens = counter('prompt_tokens', 'Tokens of prompts.')
    self._tokens = counter('output_tokens', 'Emitted tokens.')
    self._accepted = counter('accepted_tokens', 'Drafted tokens accepted.')
    self._rounds = counter('rounds', 'Rounds of texts: passes of the target.')
    self._seconds = prometheus_client.Histogram(
      'specsamp_request_seconds', 'From a request to its end.',
      registry=registry,
    )  # fmt: skip
    self._recent = collections.deque()  # (time, tokens, accepted, rounds)
    gauge(
      'tokens_per_second', 'Emitted, over the last minute.', self._per_second
    )
    gauge(
      'block_efficiency',
      'Tokens a round, over the last minute; NaN of none.',
      self._block_efficiency,
    )

  def watch(
    self,
    waiting: Callable[[], int],
    active: Callable[[], int],
    slots: int,
  ) -> None:
    """Shows an engine.

    Args:
      waiting: texts in its queue.
      active: texts in its slots.
      slots: how many there are.
    """
    self._gauge('queue_texts', 'Texts that wait for a slot.', waiting)
    self._gauge('active_slots', 'Slots with a text.', active)
    self._gauge('slots', 'Texts that are decoded at once.', lambda: slots)

  def add_chunk(self, chunk: Chunk, rounds: int) -> None:
    self._tokens.inc(len(chunk.tokens))
    self._accepted.inc(chunk.num_accepted)
    self._rounds.inc(rounds)
    counts = (len(chunk.tokens), chunk.num_accepted, rounds)
    self._recent.append((time.monotonic(), *counts))
    self._forget()

  def add_prompt(self, num_tokens: int) -> None:
    self._prompt_tokens.inc(num_tokens)

  def add_request(self, route: str, outcome: str, seconds: float) -> None:
    """One that has ended.

    Args:
      route: its path.
      outcome: completed, cancelled (the client hung up), refused (a mistake of
        the client's), full, draining or failed.
      seconds: since it came.
    """
    self._requests.labels(route, outcome).inc()
    self._seconds.observe(seconds)

  def render(self) -> bytes:
    return prometheus_client.generate_latest(self._registry)

  def _forget(self) -> None:
    oldest = time.monotonic() - _WINDOW
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
