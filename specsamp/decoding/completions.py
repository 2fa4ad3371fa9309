"""Completions of an engine's requests, and chunks of unfinished ones."""

import dataclasses
from typing import Literal

import jax
import numpy as np

from specsamp.decoding.request import completion_text
from specsamp.decoding.state import (
  DecodeState,
  Logprobs,
  Prompts,
  Stats,
  block_efficiency,
)
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

FinishReason = Literal['stop', 'length', 'cancelled', 'nan']
"""Reason why a completion ended.

`stop`: a stop token. `length`: its budget. `cancelled`: `Engine.cancel`. `nan`:
the target's logits had a NaN.
"""


@dataclasses.dataclass(frozen=True)
class Completion:
  """Finished sample of a request.

  Attributes:
    id: the request's id.
    index: number of the sample, from 0.
    prompt: tokens of the prompt.
    tokens: output tokens, a stop token included.
    text: text that they add to the prompt, without special tokens.
    finish_reason: why it ended.
    stats: see `Stats`, without the axis of rows; None if it was cancelled in
      the queue.
    logprobs: log-probabilities of the output tokens, without the axis of rows;
      None if the engine records none.
    prompt_logprobs: those of the prompt, NaN for its first token, with noise in
      `processed`; None if the engine records none.
  """

  id: int
  index: int
  prompt: list[int]
  tokens: list[int]
  text: str
  finish_reason: FinishReason
  stats: Stats | None = None
  logprobs: Logprobs | None = None
  prompt_logprobs: Logprobs | None = None

  def __repr__(self) -> str:
    rounds = int(self.stats.rounds) if self.stats else 0
    return (
      f'Completion(id={self.id}, index={self.index}, {len(self.tokens)} tokens '
      f'in {rounds} rounds, τ {self.block_efficiency:.2f}, '
      f'{self.finish_reason})'
    )

  @property
  def num_accepted(self) -> int:
    """Accepted draft tokens, including those that were then cut."""
    return int(self.stats.num_accepted_per_pos.sum()) if self.stats else 0

  @property
  def block_efficiency(self) -> float:
    """Block efficiency τ, see `state.block_efficiency`."""
    rounds = int(self.stats.rounds) if self.stats else 0
    return block_efficiency(self.num_accepted, rounds)


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Tokens that one burst of rounds added to a sample.

  Attributes:
    id: the request's id.
    index: number of the sample.
    tokens: new tokens.
    num_accepted: accepted draft tokens of the burst. If it has one round, they
      are the first of `tokens`.
    logprobs: log-probabilities of the new tokens, as in a `Completion`.
    completion: the finished sample; None until it ends.
    rounds: rounds of the burst in which the sample was not done.
    num_reused: tokens of the prompt whose cache entries an earlier text had, in
      the first chunk of the sample that was prefilled.
  """

  id: int
  index: int
  tokens: list[int]
  num_accepted: int
  logprobs: Logprobs | None = None
  completion: Completion | None = None
  rounds: int = 0
  num_reused: int = 0


@dataclasses.dataclass(eq=False)
class PendingRequest:
  """Request in an engine, with samples in the queue or in slots.

  Attributes:
    prompts: its prompt, as a batch of one on the host.
    sampling: values of one row, each [].
    stop_tokens: int32 [K].
    samples: samples that have not ended.
    row: state after the prompt, kept while samples wait.
  """

  id: int
  prompts: Prompts
  sampling: SamplingParams
  stop_tokens: np.ndarray
  samples: list['PendingSample'] = dataclasses.field(default_factory=list)
  row: DecodeState | None = None

  @property
  def prompt(self) -> list[int]:
    return self.prompts.tokens[0, : self.prompts.length[0]].tolist()


@dataclasses.dataclass(eq=False)
class PendingSample:
  """Sample in an engine's queue or in a slot.

  `num_tokens`, `num_accepted` and `rounds` count earlier chunks. `num_reused`
  is that of the next chunk.
  """

  request: PendingRequest
  index: int
  seed: int
  is_cancelled: bool = False
  num_tokens: int = 0
  num_accepted: int = 0
  rounds: int = 0
  num_reused: int = 0

  def next_chunk(
    self,
    model: LanguageModel,
    host: DecodeState,
    slot: int,
    has_prompt_logprobs: bool,
  ) -> Chunk:
    """Returns the chunk of a burst, with the batch's state on the host."""
    begin = int(self.request.prompts.length[0])
    start, end = begin + self.num_tokens, int(host.length[slot])
    num_accepted = int(host.stats.num_accepted_per_pos[slot].sum())
    rounds = int(host.stats.rounds[slot])
    completion = None
    if self.is_cancelled or host.done[slot]:
      completion = self._completion(model, host, slot, has_prompt_logprobs)
    chunk = Chunk(
      id=self.request.id,
      index=self.index,
      tokens=host.tokens[slot, start:end].tolist(),
      num_accepted=num_accepted - self.num_accepted,
      logprobs=_span(host.logprobs, slot, start, end),
      completion=completion,
      rounds=rounds - self.rounds,
      num_reused=self.num_reused,
    )
    self.num_reused = 0
    self.num_tokens = end - begin
    self.num_accepted, self.rounds = num_accepted, rounds
    return chunk

  def cancelled_chunk(self) -> Chunk:
    """Returns the chunk of a sample that was cancelled in the queue."""
    id, index = self.request.id, self.index
    completion = Completion(id, index, self.request.prompt, [], '', 'cancelled')
    return Chunk(id, index, [], 0, completion=completion)

  def _completion(
    self, model, host: DecodeState, slot: int, has_prompt_logprobs: bool
  ) -> Completion:
    prompt, end = self.request.prompt, int(host.length[slot])
    tokens = host.tokens[slot, len(prompt) : end].tolist()
    stops = self.request.stop_tokens
    if host.broken[slot]:
      reason = 'nan'
    elif not host.done[slot]:
      reason = 'cancelled'
    else:
      reason = 'stop' if tokens and tokens[-1] in stops else 'length'
    prompt_logprobs = None
    if has_prompt_logprobs:
      prompt_logprobs = _span(host.logprobs, slot, 0, len(prompt))
      prompt_logprobs.raw[0] = np.nan
    return Completion(
      id=self.request.id,
      index=self.index,
      prompt=prompt,
      tokens=tokens,
      text=completion_text(model, prompt, tokens, stops),
      finish_reason=reason,
      stats=jax.tree.map(lambda rows: rows[slot].copy(), host.stats),
      logprobs=_span(host.logprobs, slot, len(prompt), end),
      prompt_logprobs=prompt_logprobs,
    )


def _span(logprobs: Logprobs | None, slot: int, start: int, end: int):
  """Returns a copy of a span of a row, or None without log-probabilities."""
  return jax.tree.map(lambda rows: rows[slot, start:end].copy(), logprobs)
