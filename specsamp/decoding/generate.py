"""Generation of completions: prefill, the compiled loop, streaming."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from specsamp.decoding.request import (
  Request,
  compile_programs,
  completion_text,
)
from specsamp.decoding.state import DecodeState, block_efficiency
from specsamp.drafting.drafter import Drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class Generation:
  """Result of `generate`, with a list entry or array row per prompt.

  Attributes:
    tokens: output tokens of each prompt, a stop token included.
    texts: text that they add to the prompt, without special tokens.
    rounds: int [B], passes of the target.
    num_drafted_per_round: depth of the draft in each round, a list per prompt.
    num_drafted_per_pos: int [B, γ], rounds that drafted a token of this depth.
    num_accepted_per_pos: int [B, γ], rounds that accepted a token of this
      depth. Tokens that a stop token or the budget then cut count.
    num_tried_per_rank: int [B, C], see `state.Stats`.
    num_accepted_per_rank: int [B, C], see `state.Stats`.
    prefill_seconds: wall time of the prompt pass, without compilation.
    decode_seconds: wall time of all rounds, without compilation.
    compile_seconds: wall time of compilation; 0 if an earlier call compiled.
  """

  tokens: list[list[int]]
  texts: list[str]
  rounds: np.ndarray
  num_drafted_per_round: list[list[int]]
  num_drafted_per_pos: np.ndarray
  num_accepted_per_pos: np.ndarray
  num_tried_per_rank: np.ndarray
  num_accepted_per_rank: np.ndarray
  prefill_seconds: float
  decode_seconds: float
  compile_seconds: float = 0.0

  def __repr__(self) -> str:
    count = sum(map(len, self.tokens))
    noun = 'completion' if len(self.tokens) == 1 else 'completions'
    ms = 1e3 * (self.prefill_seconds + self.decode_seconds) / max(count, 1)
    return (
      f'Generation({len(self.tokens)} {noun}, {count} tokens in '
      f'{self.rounds.sum()} rounds, τ {self.block_efficiency:.2f}, '
      f'{ms:.2f} ms a token)'
    )

  @property
  def acceptance_rate(self) -> float:
    """α, accepted over drafted tokens; NaN if nothing was drafted.

    Each depth of a tree counts as one drafted token.
    """
    drafted = self.num_drafted_per_pos.sum()
    accepted = self.num_accepted_per_pos.sum()
    return float(accepted / drafted) if drafted else float('nan')

  @property
  def block_efficiency(self) -> float:
    """Block efficiency τ of all rows together, see `state.block_efficiency`."""
    accepted = self.num_accepted_per_pos.sum()
    return float(block_efficiency(accepted, self.rounds.sum()))


@dataclasses.dataclass(frozen=True)
class Round:
  """Tokens that one round of `stream` added to each row.

  Attributes:
    tokens: B lists of tokens; empty for a row that was done.
    num_accepted: accepted draft tokens of each row, which come first in
      `tokens`. Tokens that a stop token or the budget then cut count.
  """

  tokens: list[list[int]]
  num_accepted: list[int]

  def __repr__(self) -> str:
    return (
      f'Round({len(self.tokens)} rows, {sum(map(len, self.tokens))} tokens, '
      f'{sum(self.num_accepted)} accepted draft tokens)'
    )


def generate(
  model: LanguageModel,
  prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
  *,
  drafter: Drafter | None = None,
  verifier: str | Verifier | None = None,
  sampling: SamplingParams | None = None,
  max_new_tokens: int | Sequence[int] = 128,
  seed: int | Sequence[int] = 0,
  stop_tokens: Sequence[int] | None = None,
  tree_attention: bool = True,
  prefill_chunk: int | None = None,
) -> Generation:
  """Continues prompts, distributed exactly as by the target alone.

  Greedy completions equal the target's up to near ties, because a pass over
  several tokens sums in another order. Programs are compiled once for each
  batch size (above 8 for the next of 10, 12, 14, 16, 20, ..), power of two of
  prompt length and power of two of total length. Other prompts, budgets, seeds,
  stop tokens or sampling values compile nothing.

  Args:
    model: the target.
    prompts: a text, the token ids of one, or a list of texts or of lists of
      token ids.
    drafter: proposes draft tokens, such as
      `specsamp.drafting.model_drafter(draft, 4)`; None is autoregressive
      sampling.
    verifier: a verifier or its name; None is
      `specsamp.verification.default_name` of the drafter's law and tree.
    sampling: temperature and truncation, scalars or one value per row; None is
      temperature 1.
    max_new_tokens: upper bound on the new tokens, one for all rows or one per
      row.
    seed: row i draws from `seed + i`; or one seed per row. For a given drafter
      and verifier a completion depends on its prompt, seed and sampling values,
      not on other rows. Near ties are an exception, because other rows may
      widen the target's passes. Another exception is an adaptive draft length,
      which all rows share.
    stop_tokens: tokens that end a row; None is the tokenizer's `stop_ids`.
      Programs are compiled for eight, or the next multiple of eight.
    tree_attention: True scores a tree as one sequence. False gives every path a
      row and a copy of the cache, to show the cost.
    prefill_chunk: prompt tokens of a row in one pass, at least 1. None is 512
      tokens of all rows (128 on CPUs), or fewer for long caches, but 64 of a
      row at least.

  Raises:
    UserError: an argument is invalid: for example a prompt and its budget
      exceed the target's positions, the verifier cannot correct the drafter, or
      the drafter is for another target.
    FloatingPointError: the target's logits had a NaN.
  """
  return complete(Request.make(**locals()))  # locals are the arguments


def stream(
  model: LanguageModel,
  prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
  *,
  drafter: Drafter | None = None,
  verifier: str | Verifier | None = None,
  sampling: SamplingParams | None = None,
  max_new_tokens: int | Sequence[int] = 128,
  seed: int | Sequence[int] = 0,
  stop_tokens: Sequence[int] | None = None,
  tree_attention: bool = True,
  prefill_chunk: int | None = None,
) -> Iterator[Round]:
  """Yields the tokens of `generate` round by round, with its arguments."""
  return rounds(Request.make(**locals()))  # locals are the arguments


def complete(request: Request) -> Generation:
  """Decodes a request to its end: see `generate`."""
  compile_seconds = compile_programs([request], runs=False)
  began = time.perf_counter()
  state = jax.block_until_ready(request.prefill())
  prefilled = time.perf_counter()
  state = jax.block_until_ready(request.decode(state))
  ended = time.perf_counter()
  host = request.fetch(state)
  tokens, texts = [], []
  starts = request.prompts.length[: request.batch]
  for row, start, end in zip(host.tokens, starts, host.length, strict=True):
    prompt, stops = row[:start].tolist(), request.inputs.stop_tokens
    tokens.append(row[start:end].tolist())
    texts.append(completion_text(request.model, prompt, tokens[-1], stops))
  depths = zip(host.stats.num_drafted_per_round, host.stats.rounds, strict=True)
  counts = dict(
    vars(host.stats),
    num_drafted_per_round=[row[:count].tolist() for row, count in depths],
  )
  return Generation(
    tokens=tokens,
    texts=texts,
    prefill_seconds=prefilled - began,
    decode_seconds=ended - prefilled,
    compile_seconds=compile_seconds,
    **counts,
  )


def rounds(
  request: Request, state: DecodeState | None = None
) -> Iterator[Round]:
  """Yields the rounds of a request one by one.

  Rounds begin after the prompts, or after `state`, which is consumed.
  """
  if state is None:
    compile_programs([request], runs=False)
    state = request.prefill()
  after = request.fetch(state)
  while not after.done.all():
    state = request.decode(state, rounds=1)
    before, after = after, request.fetch(state)
    spans = zip(after.tokens, before.length, after.length, strict=True)
    accepted = (
      after.stats.num_accepted_per_pos - before.stats.num_accepted_per_pos
    )
    yield Round(
      tokens=[row[start:end].tolist() for row, start, end in spans],
      num_accepted=accepted.sum(axis=1).tolist(),
    )
