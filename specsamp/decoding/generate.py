"""From text to text: bucketed prefill, the compiled loop, streaming."""

import dataclasses
import functools
import inspect
import math
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding import programs, scoring
from specsamp.decoding.scoring import Scorer
from specsamp.decoding.state import DecodeState
from specsamp.drafting.drafter import Drafter
from specsamp.drafting.no_drafter import NoDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes
from specsamp.sharding.rules import DATA
from specsamp.verification.verifier import Verifier

# A program is compiled for every power of two of prompt or text from here on.
_SMALLEST_BUCKET = 32
_STOPS = 8
_NO_STOP = -1
_ALL = 2**31 - 1  # rounds


@dataclasses.dataclass(frozen=True)
class Generation:
  """What `generate` returns, a list entry or array row per prompt.

  Attributes:
    tokens: the output tokens of each prompt, a stop token included.
    texts: what they add to the prompt's text; special tokens are left out.
    rounds: int [B], target passes.
    num_drafted_per_pos: int [B, γ], rounds that drafted a token of this depth.
    num_accepted_per_pos: int [B, γ], rounds that accepted one of this depth,
      tokens that a stop token or the budget then cut included.
    num_tried_per_rank: int [B, C], times that a candidate of this rank was on
      offer.
    num_accepted_per_rank: int [B, C], times that the one of this rank was
      accepted.
    prefill_seconds: wall time of the prompt pass.
    decode_seconds: wall time of all rounds.
  """

  tokens: list[list[int]]
  texts: list[str]
  rounds: np.ndarray
  num_drafted_per_pos: np.ndarray
  num_accepted_per_pos: np.ndarray
  num_tried_per_rank: np.ndarray
  num_accepted_per_rank: np.ndarray
  prefill_seconds: float
  decode_seconds: float

  @property
  def acceptance_rate(self) -> float:
    """α: accepted over drafted tokens; NaN if nothing was drafted.

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
    """τ: tokens a round, the bonus or residual token included."""
    return float(1 + self.num_accepted_per_pos.sum() / self.rounds.sum())


@dataclasses.dataclass(frozen=True)
class Round:
  """What one round of `stream` added to each row.

  Attributes:
    tokens: B lists of tokens; empty for a row that was done.
    num_accepted: how many of them, from the front, the drafter proposed.
  """

  tokens: list[list[int]]
  num_accepted: list[int]


def generate(
  model: LanguageModel,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  *,
  drafter: Drafter | None = None,
  verifier: str | Verifier = 'token',
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
    prompts: a text, texts, or lists of token ids.
    drafter: what drafts, `specsamp.drafting.model_drafter(draft, 4)` for
      one; None is autoregressive sampling.
    verifier: a name of `specsamp.verification.make`, or a verifier.
    sampling: temperature and cuts, scalars or one value a row.
    max_new_tokens: a budget, or one a row.
    seed: row i draws from `seed + i`; or one seed a row. A row's text depends
      on its prompt, its seed and its sampling values alone, again but for near
      ties: others of its batch may widen the target's passes.
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
  job = Job.make(
    model, prompts, drafter, verifier, sampling, max_new_tokens, seed,
    stop_tokens, tree_attention,
  )  # fmt: skip
  began = time.perf_counter()
  state = jax.block_until_ready(job.prefill())
  prefilled = time.perf_counter()
  state = jax.block_until_ready(job.decode(state))
  ended = time.perf_counter()
  seen = job.fetch(state)
  rows = [
    (row[:start].tolist(), row[start:end].tolist())
    for row, start, end in zip(
      seen.tokens, job.prompt_len[: job.batch], seen.length, strict=True
    )
  ]
  return Generation(
    tokens=[tokens for _, tokens in rows],
    texts=[job.text(prompt, tokens) for prompt, tokens in rows],
    rounds=seen.stats.rounds,
    num_drafted_per_pos=seen.stats.num_drafted_per_pos,
    num_accepted_per_pos=seen.stats.num_accepted_per_pos,
    num_tried_per_rank=seen.stats.num_tried_per_rank,
    num_accepted_per_rank=seen.stats.num_accepted_per_rank,
    prefill_seconds=prefilled - began,
    decode_seconds=ended - prefilled,
  )


def stream(
  model: LanguageModel,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  *,
  drafter: Drafter | None = None,
  verifier: str | Verifier = 'token',
  sampling: SamplingParams | None = None,
  max_new_tokens: int | Sequence[int] = 128,
  seed: int | Sequence[int] = 0,
  stop_tokens: Sequence[int] | None = None,
  tree_attention: bool = True,
) -> Iterator[Round]:
  """The same text as `generate`, a `Round` at a time. Arguments: `generate`."""
  job = Job.make(
    model, prompts, drafter, verifier, sampling, max_new_tokens, seed,
    stop_tokens, tree_attention,
  )  # fmt: skip
  return _rounds(job)


def check(model: LanguageModel, prompts, **arguments) -> None:
  """Raises what `generate` would of these arguments, and does nothing else."""
  parameters = inspect.signature(generate).parameters.values()
  defaults = {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY}
  Job.make(model, prompts, **(defaults | arguments))


def _rounds(job: 'Job') -> Iterator[Round]:
  state = job.prefill()
  seen = job.fetch(state)
  while not seen.done.all():
    state = job.decode(state, rounds=1)
    before, seen = seen, job.fetch(state)
    tokens = [
      row[start:end].tolist()
      for row, start, end in zip(
        seen.tokens, before.length, seen.length, strict=True
      )
    ]
    accepted = (
      seen.stats.num_accepted_per_pos - before.stats.num_accepted_per_pos
    ).sum(axis=1)
    yield Round(
      tokens,
      [min(len(new), int(n)) for new, n in zip(tokens, accepted, strict=True)],
    )


@dataclasses.dataclass(frozen=True)
class Job:
  """The checked arguments of one call, as the compiled programs take them.

  `make` takes those of `generate`, and raises what that does. Arrays have a row
  for each prompt, and then as many that are done as fill the programs' batch.
  """

  model: LanguageModel
  drafter: Drafter
  verifier: Verifier
  scorer: Scorer
  sampling: SamplingParams
  stop_tokens: np.ndarray
  prompts: np.ndarray
  prompt_len: np.ndarray
  limit: np.ndarray
  seeds: np.ndarray
  capacity: int
  batch: int

  @classmethod
  def make(
    cls, model, prompts, drafter, verifier, sampling, max_new_tokens, seed,
    stop_tokens, tree_attention,
  ):  # fmt: skip
    rows = _tokenize(prompts, model.tokenizer)
    batch = len(rows)
    prompt_len = np.asarray([len(row) for row in rows], np.int32)
    budget = _per_row('max_new_tokens', max_new_tokens, batch, 1)
    _check_prompts(rows, model.config, prompt_len, budget)
    limit = prompt_len + budget
    if np.ndim(seed) == 0:
      seed = [seed + i for i in range(batch)]
    seeds = _per_row('seed', seed, batch, 0)
    if stop_tokens is None:
      stop_tokens = model.tokenizer.stop_ids
    drafter = NoDrafter() if drafter is None else drafter
    drafter.check(model, batch)
    # A cache holds the text and one draft: no draft is to be the larger part.
    if _nodes(drafter) > model.config.max_length:
      raise UserError(
        f'a round has {_nodes(drafter)} tokens, the target '
        f'{model.config.max_length} positions; expected no more tokens'
      )
    sampling = SamplingParams() if sampling is None else sampling
    try:
      sampling.check()
      sampling = sampling.broadcast(batch)
      if isinstance(verifier, str):
        verifier = verification.make(verifier)
      verification.check_law(verifier, drafter.law, drafter.tree)
      if type(verifier) not in verification.VERIFIERS.values():
        verification.check_sums(
          verifier, drafter.law, drafter.tree, model.config.vocab_size
        )
    except ValueError as error:
      raise UserError(str(error)) from None
    prompt_slots, text_slots = slots(model, max(prompt_len), max(limit))
    padded = np.zeros((batch, prompt_slots), np.int32)
    for into, row in zip(padded, rows, strict=True):
      into[: len(row)] = row
    # Rows that are done when they begin fill a batch.
    extra = _num_rows(batch, model.mesh) - batch
    fill = lambda rows: np.pad(
      rows, [(0, extra)] + [(0, 0)] * (rows.ndim - 1), 'edge'
    )
    limit = np.pad(limit, (0, extra))
    return cls(
      model=model,
      drafter=drafter,
      verifier=verifier,
      scorer=scoring.tree_attention if tree_attention else scoring.replicated,
      sampling=jax.tree.map(fill, sampling),
      stop_tokens=_padded_stops(stop_tokens, model.config.vocab_size),
      prompts=fill(padded),
      prompt_len=fill(prompt_len),
      limit=limit,
      seeds=fill(seeds),
      capacity=_capacity(text_slots, drafter),
      batch=batch,
    )

  @property
  def args(self):
    return self.model.params, self.drafter, self.sampling, self.stop_tokens

  @property
  def prefill_args(self):
    return (
      self.model.params, self.drafter, self.prompts, self.prompt_len,
      self.limit, self.seeds,
    )  # fmt: skip

  @functools.cached_property
  def programs(self) -> programs.Programs:
    return programs.of(
      self.model.transformer,
      self.verifier,
      self.scorer,
      self.capacity,
      # What else fixes what is compiled, of all that is not the same anyway.
      (self.prompts.shape, jax.tree.structure(self.drafter), self.model.mesh),
    )

  def prefill(self) -> DecodeState:
    """The state before the first round."""
    with meshes.use(self.model.mesh):
      return self.programs.prefill(*self.prefill_args)

  def decode(self, state: DecodeState, rounds: int = _ALL) -> DecodeState:
    """After so many rounds, or all that it takes; consumes `state`.

    How many is a value of the one program: another compiles nothing.
    """
    with meshes.use(self.model.mesh):
      return self.programs.decode(*self.args, state, np.int32(rounds))

  def fetch(self, state: DecodeState) -> DecodeState:
    """What there is to see of the prompts' rows, on the host.

    Raises:
      FloatingPointError: the target's logits held a NaN.
    """
    seen = meshes.fetch(
      state.replace(cache=None, drafter=None, keys=None, limit=None)
    )
    seen = jax.tree.map(lambda rows: rows[: self.batch], seen)
    rows = np.flatnonzero(seen.broken).tolist()
    if rows:
      raise FloatingPointError(f'the target gave NaN logits in rows {rows}')
    return seen

  def text(self, prompt: list[int], tokens: list[int]) -> str:
    if tokens and tokens[-1] in self.stop_tokens:
      tokens = tokens[:-1]
    return self.model.tokenizer.decode(tokens, prompt)


def _tokenize(prompts, tokenizer) -> list[Sequence[int]]:
  if isinstance(prompts, str):
    prompts = [prompts]
  if not len(prompts):
    raise UserError('prompts: got none, expected at least one')
  for i, prompt in enumerate(prompts):
    if isinstance(prompt, str):
      continue
    ids = np.asarray(prompt)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in 'iu'):
      raise UserError(
        f'prompt {i}: got {prompt!r}, expected a text or a list of token ids'
      )
  return [
    tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    for prompt in prompts
  ]


def _padded_stops(stop_tokens, vocab_size: int) -> np.ndarray:
  """Int32 [8] or a multiple, so that other stop tokens don't recompile."""
  stop_tokens = np.asarray(stop_tokens).reshape(-1)
  # -1, the eos of a tokenizer without one, stops nothing.
  if len(stop_tokens) and (
    stop_tokens.dtype.kind not in 'iu'
    or stop_tokens.min() < _NO_STOP
    or stop_tokens.max() >= vocab_size
  ):
    raise UserError(
      f'stop_tokens: got {stop_tokens.tolist()}, expected each below '
      f'{vocab_size}'
    )
  size = max(1, -(-len(stop_tokens) // _STOPS)) * _STOPS
  stops = np.full(size, _NO_STOP, np.int32)
  stops[: len(stop_tokens)] = stop_tokens
  return stops


def slots(model: LanguageModel, prompt_len: int, limit: int):
  """Slots of the compiled programs for a batch: (of the prompts, of the texts).

  Both are the next power of two, but not beyond the target's positions.

  Args:
    model: the target.
    prompt_len: tokens of the longest prompt.
    limit: tokens of the longest prompt with its budget.
  """
  bucket = lambda n: max(_SMALLEST_BUCKET, 1 << (int(n) - 1).bit_length())
  return tuple(
    min(bucket(n), model.config.max_length) for n in (prompt_len, limit)
  )


def _num_rows(batch: int, mesh: Mesh | None) -> int:
  """Rows of the compiled programs for a batch, in whole shards.

  Up to 8 as many as there are; then 10, 12, 14, 16, 20, .., four in each
  octave: a few programs serve all sizes, and a quarter more rows is the most
  that one computes for nothing.
  """
  step = max(1, 1 << (batch - 1).bit_length() >> 3)
  shards = mesh.shape[DATA] if mesh else 1
  return -(-batch // math.lcm(step, shards)) * math.lcm(step, shards)


def _capacity(text_slots: int, drafter: Drafter) -> int:
  """Slots of a cache: the last round may start just before the limit.

  Rounded up so that rows of slots stay aligned.
  """
  return -(-(text_slots + _nodes(drafter)) // 16) * 16


def _nodes(drafter: Drafter) -> int:
  """Tokens of a target pass: those of the draft, and of its extra tree."""
  return drafter.tree.with_extra(drafter.extra_tree).size


def _per_row(name: str, value, batch: int, least: int) -> np.ndarray:
  values = np.asarray(value)
  if values.dtype.kind not in 'iu' or values.shape not in ((), (batch,)):
    raise UserError(
      f'{name}: got {value!r}, expected an integer or one for each of {batch} '
      'prompts'
    )
  if values.min() < least or values.max() >= 2**31:
    raise UserError(
      f'{name}: got {value!r}, expected at least {least} and below 2**31'
    )
  return np.broadcast_to(values, (batch,)).astype(np.int32)


def _check_prompts(rows, config, prompt_len, budget) -> None:
  for i, row in enumerate(rows):
    if not len(row):
      raise UserError(f'prompt {i} has no token, expected at least one')
    if min(row) < 0 or max(row) >= config.num_tokens:
      raise UserError(
        f'prompt {i} has tokens from {min(row)} to {max(row)}, expected 0 to '
        f'{config.num_tokens - 1}'
      )
    if budget[i] > config.max_length - prompt_len[i]:
      raise UserError(
        f'prompt {i} has {prompt_len[i]} tokens, which with '
        f'{budget[i]} new ones exceeds the {config.max_length} positions of '
        'the target'
      )
