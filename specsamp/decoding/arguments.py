"""The arguments of a call, checked: what decodes, and the rows it decodes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding import scoring
from specsamp.decoding.loop import Decoder
from specsamp.decoding.state import Prompts
from specsamp.drafting import checks
from specsamp.drafting.drafter import Drafter
from specsamp.drafting.no_drafter import NoDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding.rules import DATA
from specsamp.utils import user_modules
from specsamp.verification.verifier import Verifier

# A program is compiled for every power of two of prompt or text from here on.
_SMALLEST_BUCKET = 32
_STOPS = 8
_NO_STOP = -1


class Rows(NamedTuple):
  """Prompts and what is asked of each, on the host.

  Attributes:
    prompts: what the rows begin with; P is a bucket's.
    sampling: values per row, [B].
    stop_tokens: int32 [B, K], tokens that end each row; -1 is none.
  """

  prompts: Prompts
  sampling: SamplingParams
  stop_tokens: np.ndarray

  @classmethod
  def make(
    cls,
    model: LanguageModel,
    prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
    sampling: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    seed: int | Sequence[int] = 0,
    stop_tokens: Sequence[int] | None = None,
  ) -> 'Rows':
    """Takes these arguments of `generate`, and raises what that does."""
    if not isinstance(model, LanguageModel):
      raise UserError(
        f'model: got a {type(model).__name__}, expected what specsamp.load or '
        'specsamp.zoo.load returns'
      )
    rows = _tokenize(prompts, model.tokenizer)
    batch = len(rows)
    length = np.asarray([len(row) for row in rows], np.int32)
    budget = _per_row('max_new_tokens', max_new_tokens, batch, 1)
    _check_prompts(rows, model.config, length, budget)
    seeds = seeds_of(seed, batch)
    if stop_tokens is None:
      stop_tokens = model.tokenizer.stop_ids
    stops = _padded_stops(stop_tokens, model.config.vocab_size)
    sampling = SamplingParams() if sampling is None else sampling
    try:
      sampling.check()
      sampling = sampling.broadcast(batch)
    except ValueError as error:
      raise UserError(str(error)) from None
    prompt_slots, _ = slots(model, max(length), max(length + budget))
    padded = np.zeros((batch, prompt_slots), np.int32)
    for into, row in zip(padded, rows, strict=True):
      into[: len(row)] = row
    return cls(
      prompts=Prompts(padded, length, length + budget, seeds),
      sampling=sampling,
      stop_tokens=np.broadcast_to(stops, (batch, len(stops))),
    )

  def fill(self, extra: int) -> 'Rows':
    """With so many more that are done when they begin."""
    rows = jax.tree.map(
      lambda row: np.pad(row, [(0, extra)] + [(0, 0)] * (row.ndim - 1), 'edge'),
      self,
    )
    limit = np.pad(self.prompts.limit, (0, extra))
    return rows._replace(prompts=rows.prompts._replace(limit=limit))


def check_int(name: str, value, least: int, most: int = 2**31 - 1) -> None:
  """Raises `UserError` for what is no integer from `least` to `most`."""
  if type(value) is not int or not least <= value <= most:
    raise UserError(
      f'{name}: got {value!r}, expected an integer from {least} to {most}'
    )


def seeds_of(seed: int | Sequence[int], batch: int) -> np.ndarray:
  """Of each row, int32 [B]: `seed + i`, or what is given for it."""
  if np.ndim(seed) == 0:
    seed = [seed + i for i in range(batch)]
  return _per_row('seed', seed, batch, 0)


def parts(
  model: LanguageModel,
  drafter: Drafter | None,
  verifier: str | Verifier | None,
  batch: int,
  tree_attention: bool = True,
) -> tuple[Decoder, Drafter]:
  """What decodes, of these arguments of `generate`, whose errors it raises."""
  drafter = NoDrafter() if drafter is None else drafter
  if user_modules.is_own(drafter) or not isinstance(drafter, Drafter):
    checks.check_parts(drafter)
  drafter.check(model, batch)
  _check_size(model, drafter)
  if verifier is None:
    verifier = verification.default_name(drafter.law, drafter.tree)
  try:
    verifier = _checked(verifier, drafter, model.config.vocab_size)
  except ValueError as error:
    raise UserError(str(error)) from None
  scorer = scoring.tree_attention if tree_attention else scoring.replicated
  return Decoder(model.transformer, verifier, scorer), drafter


def _tokenize(prompts, tokenizer) -> list[Sequence[int]]:
  if isinstance(prompts, str):
    prompts = [prompts]
  if not len(prompts):
    raise UserError('prompts: got none, expected at least one')
  if isinstance(next(iter(prompts)), int | np.integer):
    prompts = [prompts]  # A flat list is the token ids of one prompt.
  for i, prompt in enumerate(prompts):
    if isinstance(prompt, str):
      continue
    try:
      ids = np.asarray(prompt)
    except ValueError:  # lists of several lengths
      ids = np.asarray(None)
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
  nodes = drafter.tree.with_extra(drafter.extra_tree).size
  if nodes > model.config.max_length:
    raise UserError(
      f'a round has {nodes} tokens, the target '
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


def num_rows(batch: int, mesh: Mesh | None) -> int:
  """Rows of the compiled programs for a batch, in whole shards.

  Up to 8 as many as there are; then 10, 12, 14, 16, 20, .., four in each
  octave: a few programs serve all sizes, and a quarter more rows is the most
  that one computes for nothing.
  """
  step = max(1, 1 << (batch - 1).bit_length() >> 3)
  shards = mesh.shape[DATA] if mesh else 1
  return -(-batch // math.lcm(step, shards)) * math.lcm(step, shards)


def capacity(num_slots: int, mesh: Mesh | None) -> int:
  """Slots of a cache, rounded up so that rows of slots stay aligned.

  XLA for GPUs sums over the slots in up to 16 parts of 8, and pads a cache that
  does not divide into these: a copy of it in every layer of every pass.
  """
  platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
  multiple = 128 if platform == 'gpu' else 16
  return -(-num_slots // multiple) * multiple


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
