"""What an engine returns: completions, and chunks of them as they come."""

import dataclasses
from typing import Literal

import jax
import numpy as np

from specsamp.decoding.request import text_of
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
"""Why a text ended.

`stop`: at a stop token. `length`: its budget is spent. `cancelled`: somebody
asked for that. `nan`: the target's logits held one.
"""


@dataclasses.dataclass(frozen=True)
class Completion:
  """One text of a request, at its end.

  Attributes:
    id: of the request.
    index: which of its samples, from 0.
    prompt: its tokens.
    tokens: the output tokens, a stop token included.
    text: what they add to the prompt's text; special tokens are left out.
    finish_reason: why it ended.
    stats: its counts, see `Stats`, without the axis of rows; None if it was
      cancelled before it began.
    logprobs: of the output tokens, see `Logprobs`, without the axis of rows;
      None if the engine has none.
    prompt_logprobs: of the prompt's, NaN the first, `processed` being noise;
      None if the engine has none.
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
    """Returns one line of counts."""
    rounds = int(self.stats.rounds) if self.stats else 0
    return (
      f'Completion(id={self.id}, index={self.index}, {len(self.tokens)} tokens '
      f'in {rounds} rounds, τ {self.block_efficiency:.2f}, '
      f'{self.finish_reason})'
    )

  @property
  def num_accepted(self) -> int:
    """Drafted tokens that were accepted, those that were then cut included."""
    return int(self.stats.num_accepted_per_pos.sum()) if self.stats else 0

  @property
  def block_efficiency(self) -> float:
    """τ, see `state.block_efficiency`."""
    rounds = int(self.stats.rounds) if self.stats else 0
    return block_efficiency(self.num_accepted, rounds)


@dataclasses.dataclass(frozen=True)
class Chunk:
  """What one burst of rounds added to a text.

  Attributes:
    id: of the request.
    index: which of its samples.
    tokens: the new ones.
    num_accepted: drafted tokens that were accepted meanwhile; in bursts of one
      round those are the first of these.
    logprobs: as of a `Completion`.
    completion: the whole text, once it has ended; None before.
  """

  id: int
  index: int
  tokens: list[int]
  num_accepted: int
  logprobs: Logprobs | None = None
  completion: Completion | None = None


@dataclasses.dataclass
class Job:
  """A request on its way through an engine.

  Attributes:
    id: what `Engine.submit` returned.
    prompts: its prompt, as a batch of one on the host.
    sampling: values of one row, each [].
    stop_tokens: int32 [K].
    n: samples.
    num_waiting: how many of them wait for a slot.
    num_left: how many have not ended.
    row: the state after the prompt, while some wait.
    cancelled: those that are to go no further.
  """

  id: int
  prompts: Prompts
  sampling: SamplingParams
  stop_tokens: np.ndarray
  n: int
  num_waiting: int
  num_left: int
  row: DecodeState | None = None
  cancelled: set[int] = dataclasses.field(default_factory=set)

  @property
  def prompt(self) -> list[int]:
    return self.prompts.tokens[0, : self.prompts.length[0]].tolist()

  def waits_no_more(self) -> None:
    """One of its samples has a slot, or needs none."""
    self.num_waiting -= 1
    if not self.num_waiting:
      self.row = None


@dataclasses.dataclass
class Sample:
  """One of a request's texts on its way.

  Attributes:
    job: of which it is.
    index: which one.
    seed: of its draws.
    num_tokens: that were handed out.
    num_accepted: of them as of a `Chunk`.
  """

  job: Job
  index: int
  seed: int
  num_tokens: int = 0
  num_accepted: int = 0

  @property
  def is_cancelled(self) -> bool:
    return self.index in self.job.cancelled

  def chunk(
    self,
    model: LanguageModel,
    seen: DecodeState,
    slot: int,
    has_prompts: bool,
  ) -> Chunk:
    """What is new of it after a burst.

    Args:
      model: the target.
      seen: the batch's state on the host.
      slot: where in the batch it is.
      has_prompts: whether prompts have log-probabilities.
    """
    begin = int(self.job.prompts.length[0])
    start, end = begin + self.num_tokens, int(seen.length[slot])
    accepted = int(seen.stats.num_accepted_per_pos[slot].sum())
    num_new = accepted - self.num_accepted
    self.num_tokens, self.num_accepted = end - begin, accepted
    completion = None
    if self.is_cancelled or seen.done[slot]:
      completion = self._completed(model, seen, slot, has_prompts)
    return Chunk(
      id=self.job.id,
      index=self.index,
      tokens=seen.tokens[slot, start:end].tolist(),
      num_accepted=num_new,
      logprobs=_part(seen.logprobs, slot, start, end),
      completion=completion,
    )

  def never_begun(self) -> Chunk:
    """The end of one that was cancelled before it had a slot."""
    completion = Completion(
      id=self.job.id,
      index=self.index,
      prompt=self.job.prompt,
      tokens=[],
      text='',
      finish_reason='cancelled',
    )
    return Chunk(self.job.id, self.index, [], 0, completion=completion)

  def _completed(self, model, seen, slot, has_prompts) -> Completion:
    prompt, end = self.job.prompt, int(seen.length[slot])
    tokens = seen.tokens[slot, len(prompt) : end].tolist()
    stops = self.job.stop_tokens
    prompt_logprobs = None
    if has_prompts:
      prompt_logprobs = _part(seen.logprobs, slot, 0, len(prompt))
      prompt_logprobs.raw[0] = np.nan
    return Completion(
      id=self.job.id,
      index=self.index,
      prompt=prompt,
      tokens=tokens,
      text=text_of(model, prompt, tokens, stops),
      finish_reason=_reason(seen, slot, tokens, stops),
      stats=jax.tree.map(lambda rows: rows[slot].copy(), seen.stats),
      logprobs=_part(seen.logprobs, slot, len(prompt), end),
      prompt_logprobs=prompt_logprobs,
    )


def _reason(seen: DecodeState, slot: int, tokens, stops) -> FinishReason:
  if seen.broken[slot]:
    return 'nan'
  if not seen.done[slot]:
    return 'cancelled'
  return 'stop' if tokens and tokens[-1] in stops else 'length'


def _part(logprobs: Logprobs | None, slot: int, start: int, end: int):
  """Of some places of a row, copied; None of None."""
  return jax.tree.map(lambda rows: rows[slot, start:end].copy(), logprobs)
