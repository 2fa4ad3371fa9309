"""A call of `generate`, checked, as the compiled programs take it."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from specsamp import progress, user_modules, verification
from specsamp.decoding import programs, scoring
from specsamp.decoding.loop import Decoder, Inputs
from specsamp.decoding.state import DecodeState, Prompts
from specsamp.drafting import checks
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
class Request:
  """The checked arguments of one call, as the compiled programs take them.

  Arrays have a row for each prompt, and then as many that are done as fill the
  programs' batch.

  Attributes:
    model: the target.
    decoder: what the programs are compiled for.
    inputs: what they read in every round.
    prompts: what they begin with.
    capacity: slots of the caches.
    batch: prompts.
  """

  model: LanguageModel
  decoder: Decoder
  inputs: Inputs
  prompts: Prompts
  capacity: int
  batch: int

  @classmethod
  def make(
    cls,
    model: LanguageModel,
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    drafter: Drafter | None = None,
    verifier: str | Verifier = 'token',
    sampling: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    seed: int | Sequence[int] = 0,
    stop_tokens: Sequence[int] | None = None,
    tree_attention: bool = True,
  ) -> 'Request':
    """Takes the arguments of `generate`, and raises what that does."""
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
    if user_modules.is_own(drafter) or not isinstance(drafter, Drafter):
      checks.check_parts(drafter)
    drafter.check(model, batch)
    _check_size(model, drafter)
    sampling = SamplingParams() if sampling is None else sampling
    try:
      sampling.check()
      sampling = sampling.broadcast(batch)
      verifier = _checked(verifier, drafter, model.config.vocab_size)
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
    return cls(
      model=model,
      decoder=Decoder(
        model.transformer,
        verifier,
        scoring.tree_attention if tree_attention else scoring.replicated,
      ),
      inputs=Inputs(
        model.params,
        drafter,
        jax.tree.map(fill, sampling),
        _padded_stops(stop_tokens, model.config.vocab_size),
      ),
      prompts=Prompts(
        tokens=fill(padded),
        length=fill(prompt_len),
        limit=np.pad(limit, (0, extra)),
        seeds=fill(seeds),
      ),
      # The last round may start just before the limit.
      capacity=_capacity(text_slots + _nodes(drafter), model.mesh),
      batch=batch,
    )

  @functools.cached_property
  def program_key(self):
    """Equal for requests that run the same programs."""
    # What else fixes what is compiled, of all that is not the same anyway.
    others = (self.prompts.tokens, self.inputs.drafter, self.inputs.stop_tokens)
    leaves, structure = jax.tree.flatten(others)
    types = tuple(map(jax.typeof, leaves))  # a drafter may hold a plain number
    return self.decoder, self.capacity, (structure, types, self.model.mesh)

  @functools.cached_property
  def programs(self) -> programs.Programs:
    return programs.of(*self.program_key)

  @property
  def is_compiled(self) -> bool:
    return programs.are_kept(*self.program_key)

  def compile(self) -> None:
    """Compiles the programs, unless they are, and runs a round of them."""
    jax.block_until_ready(self.decode(self.prefill(), rounds=1))

  def prefill(self) -> DecodeState:
    """The state before the first round."""
    with meshes.use(self.model.mesh):
      return self.programs.prefill(self.inputs, self.prompts)

  def decode(self, state: DecodeState, rounds: int = _ALL) -> DecodeState:
    """After so many rounds, or all that it takes; consumes `state`.

    How many is a value of the one program: another compiles nothing.
    """
    with meshes.use(self.model.mesh):
      return self.programs.decode(self.inputs, state, np.int32(rounds))

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
    if tokens and tokens[-1] in self.inputs.stop_tokens:
      tokens = tokens[:-1]
    return self.model.tokenizer.decode(tokens, prompt)


def compile_programs(requests: Iterable[Request], stays: bool = True) -> None:
  """Compiles those that are not compiled yet, and shows how far it is.

  Args:
    requests: of which some may run the same programs.
    stays: see `progress.bar`.
  """
  cold = {
    request.program_key: request
    for request in requests
    if not request.is_compiled
  }
  for request in progress.bar(
    'compiling', cold.values(), unit='program', stays=stays
  ):
    request.compile()


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


def _checked(
  verifier: str | Verifier, drafter: Drafter, vocab_size: int
) -> Verifier:
  """The verifier, if it corrects what the drafter drafts; else `ValueError`."""
  if isinstance(verifier, str):
    verifier = verification.make(verifier)
  if not user_modules.is_own(verifier):
    verification.check_law(verifier, drafter.law, drafter.tree)
    return verifier
  verification.check_parts(verifier)
  verification.check_sums(verifier, drafter.law, drafter.tree, vocab_size)
  for size in drafter.passes[:-1]:
    part = drafter.tree.first(size)
    verification.check_sums(verifier, drafter.law, part, vocab_size)
  return verifier


def _check_size(model: LanguageModel, drafter: Drafter) -> None:
  # A cache holds the text and one draft: no draft is to be the larger part.
  if _nodes(drafter) > model.config.max_length:
    raise UserError(
      f'a round has {_nodes(drafter)} tokens, the target '
      f'{model.config.max_length} positions; expected no more tokens'
    )


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


def _capacity(num_slots: int, mesh: Mesh | None) -> int:
  """Slots of a cache, rounded up so that rows of slots stay aligned.

  XLA for GPUs sums over the slots in up to 16 parts of 8, and pads a cache that
  does not divide into these: a copy of it in every layer of every pass.
  """
  platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
  multiple = 128 if platform == 'gpu' else 16
  return -(-num_slots // multiple) * multiple


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
