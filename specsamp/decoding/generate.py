"""From text to text: prefill, the compiled loop, streaming."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from specsamp.decoding.request import Request, compile_programs
from specsamp.decoding.state import DecodeState, block_efficiency
from specsamp.drafting.drafter import Drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class Generation:
  """What `generate` returns, a list entry or array row per prompt.

  Attributes:
    tokens: the output tokens of each prompt, a stop token included.
    texts: what they add to the prompt's text; special tokens are left out.
    rounds: int [B], target passes.
    num_drafted_per_round: how deep each of them drafted, a list a prompt.
    num_drafted_per_pos: int [B, γ], rounds that drafted a token of this depth.
    num_accepted_per_pos: int [B, γ], rounds that accepted one of this depth,
      tokens that a stop token or the budget then cut included.
    num_tried_per_rank: int [B, C], times that a candidate of this rank was on
      offer.
    num_accepted_per_rank: int [B, C], times that the one of this rank was
      accepted.
    prefill_seconds: wall time of the prompt pass, without compilation.
    decode_seconds: wall time of all rounds, without compilation.
    compile_seconds: wall time of compiling the programs; 0 if an earlier call
      has compiled them.
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
    """Returns one line of counts."""
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
    """Accepted over drafted tokens, α; NaN if nothing was drafted.

    Of a tree every depth counts as one drafted token.
    """
    drafted = self.num_drafted_per_pos.sum()
    return (
      float(self.num_accepted_per_pos.sum() / drafted)
      if drafted
      else float('nan')
    )

  @property
  def block_efficiency(self) -> float:
    """τ of all rows together, see `state.block_efficiency`."""
    accepted = self.num_accepted_per_pos.sum()
    return float(block_efficiency(accepted, self.rounds.sum()))


@dataclasses.dataclass(frozen=True)
class Round:
  """What one round of `stream` added to each row.

  Attributes:
    tokens: B lists of tokens; empty for a row that was done.
    num_accepted: accepted draft tokens, those that a stop token or the budget
      then cut included. The others are the first of `tokens`.
  """

  tokens: list[list[int]]
  num_accepted: list[int]

  def __repr__(self) -> str:
    """Returns one line of counts."""
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
) -> Generation:
  """Continues prompts, distributed exactly as by the target alone.

  Greedy text is the target's own but for near ties: passes over more tokens
  than one add up in another order. Programs are compiled once for a batch
  size (above 8 for the next of 10, 12, 14, 16, 20, ..), a power of two of
  prompt length and one of total length; other prompts, budgets, seeds, stop
  tokens or sampling values compile nothing.

  Args:
    model: the target.
    prompts: a text, the token ids of one, or a list of texts or of lists of
      token ids.
    drafter: what drafts, such as `specsamp.drafting.model_drafter(draft, 4)`;
      None is autoregressive sampling.
    verifier: a name of `specsamp.verification.make`, or a verifier; None is
      `specsamp.verification.default_name` of the drafter's law and tree.
    sampling: temperature and truncation, scalars or one value per row; None is
      temperature 1.
    max_new_tokens: at most so many, of all rows or of each.
    seed: row i draws from `seed + i`; or one seed per row. With a given drafter
      and verifier a row's text depends on its prompt, seed and sampling values,
      not on the other rows: but for near ties, since others may widen the
      target's passes, and for an adaptive draft length, which all rows share.
    stop_tokens: tokens that end a text; the tokenizer's `stop_ids` if left
      out. Programs are compiled for eight, or as many times eight as it takes.
    tree_attention: score a tree as one sequence; False gives every path a row
      and a copy of the cache instead, to show what this costs.

  Raises:
    UserError: no prompt, a prompt and budget beyond the target's positions,
      sampling values, seeds or stop tokens out of range, an unknown verifier
      or one that cannot correct the drafter, a tree with more nodes than the
      target has positions, or a drafter for another target.
    FloatingPointError: the target's logits held a NaN.
  """
  request = Request.make(
    model, prompts, drafter, verifier, sampling, max_new_tokens, seed,
    stop_tokens, tree_attention,
  )  # fmt: skip
  return complete(request)


def complete(request: Request) -> Generation:
  """Decodes a request to its end.

  Raises:
    FloatingPointError: the target's logits held a NaN.
  """
  compile_seconds = compile_programs([request], runs=False)
  began = time.perf_counter()
  state = jax.block_until_ready(request.prefill())
  prefilled = time.perf_counter()
  state = jax.block_until_ready(request.decode(state))
  ended = time.perf_counter()
  seen = request.fetch(state)
  rows = [
    (row[:start].tolist(), row[start:end].tolist())
    for row, start, end in zip(
      seen.tokens,
      request.prompts.length[: request.batch],
      seen.length,
      strict=True,
    )
  ]
  return Generation(
    tokens=[tokens for _, tokens in rows],
    texts=[request.text(prompt, tokens) for prompt, tokens in rows],
    rounds=seen.stats.rounds,
    num_drafted_per_round=[
      depths[:rounds].tolist()
      for depths, rounds in zip(
        seen.stats.num_drafted_per_round, seen.stats.rounds, strict=True
      )
    ],
    num_drafted_per_pos=seen.stats.num_drafted_per_pos,
    num_accepted_per_pos=seen.stats.num_accepted_per_pos,
    num_tried_per_rank=seen.stats.num_tried_per_rank,
    num_accepted_per_rank=seen.stats.num_accepted_per_rank,
    prefill_seconds=prefilled - began,
    decode_seconds=ended - prefilled,
    compile_seconds=compile_seconds,
  )


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
) -> Iterator[Round]:
  """The same text as `generate`, a `Round` at a time. Arguments: `generate`."""
  request = Request.make(
    model, prompts, drafter, verifier, sampling, max_new_tokens, seed,
    stop_tokens, tree_attention,
  )  # fmt: skip
  return _rounds(request)


def _rounds(request: Request) -> Iterator[Round]:
  compile_programs([request], runs=False)
  yield from rounds(request, request.prefill())


def rounds(request: Request, state: DecodeState) -> Iterator[Round]:
  """Yields the rounds of a request from a state on, which is consumed."""
  seen = request.fetch(state)
  while not seen.done.all():
    state = request.decode(state, rounds=1)
    before, seen = seen, request.fetch(state)
    tokens = [
      row[start:end].tolist()
      for row, start, end in zip(
        seen.tokens, before.length, seen.length, strict=True
      )
    ]
    accepted = (
      seen.stats.num_accepted_per_pos - before.stats.num_accepted_per_pos
    ).sum(axis=1)
    yield Round(tokens, accepted.tolist())
