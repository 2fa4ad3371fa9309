"""Checks of the arguments of a decoding call. Each argument is checked once."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from flax import struct
from jax.sharding import Mesh

from specsamp import verification
from specsamp.decoding import loop, scoring
from specsamp.decoding.loop import Decoder
from specsamp.decoding.state import Prompts
from specsamp.drafting import checks
from specsamp.drafting.drafter import Drafter, NoDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding.rules import DATA
from specsamp.utils import user_modules
from specsamp.verification.verifier import Verifier

# A program is compiled for each power of two of tokens, from this one.
_MIN_SLOTS = 32
_STOPS = 8  # and for each multiple of this number of stop tokens
_NO_STOP = -1


@struct.dataclass
class HostRows:
  """Rows of a batch, checked and on the host.

  Attributes:
    prompts: prompts, padded to the width that programs are compiled for.
    sampling: values per row, [B].
    stop_tokens: int32 [B, K], tokens that end each row; -1 is padding.
  """

  prompts: Prompts
  sampling: SamplingParams
  stop_tokens: np.ndarray

  def with_done(self, extra: int) -> 'HostRows':
    """Returns the rows, followed by `extra` padding rows that are done."""

    def pad(row):
      return np.pad(row, [(0, extra)] + [(0, 0)] * (row.ndim - 1), 'edge')

    rows = jax.tree.map(pad, self)
    limit = np.pad(self.prompts.limit, (0, extra))
    return rows.replace(prompts=rows.prompts.replace(limit=limit))


def check_rows(
  model: LanguageModel,
  prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
  *,
  sampling: SamplingParams | None = None,
  max_new_tokens: int | Sequence[int] = 128,
  seed: int | Sequence[int] = 0,
  stop_tokens: Sequence[int] | None = None,
) -> HostRows:
  """Returns checked rows; `specsamp.generate` documents the arguments."""
  if not isinstance(model, LanguageModel):
    raise UserError(
      f'model: got a {type(model).__name__}, expected the result of '
      'specsamp.load or specsamp.zoo.load'
    )
  rows = _token_ids(prompts, model.tokenizer)
  batch, config = len(rows), model.config
  length = np.asarray([len(row) for row in rows], np.int32)
  budget = _per_row('max_new_tokens', max_new_tokens, batch, 1)
  for i, row in enumerate(rows):
    if not len(row):
      raise UserError(f'prompt {i} has no token, expected at least one')
    if min(row) < 0 or max(row) >= config.num_tokens:
      raise UserError(
        f'prompt {i} has tokens from {min(row)} to {max(row)}, expected 0 to '
        f'{config.num_tokens - 1}'
      )
    if budget[i] > config.max_length - length[i]:
      raise UserError(
        f'prompt {i} has {length[i]} tokens, which with {budget[i]} new ones '
        f'exceeds the {config.max_length} positions of the target'
      )
  if stop_tokens is None:
    stop_tokens = model.tokenizer.stop_ids
  stops = _padded_stops(stop_tokens, config.vocab_size)
  sampling = SamplingParams() if sampling is None else sampling
  try:
    sampling.check()
    sampling = sampling.broadcast(batch)
  except ValueError as error:
    raise UserError(str(error)) from None
  tokens = np.zeros((batch, slots(model, max(length))), np.int32)
  for into, row in zip(tokens, rows, strict=True):
    into[: len(row)] = row
  return HostRows(
    prompts=Prompts(tokens, length, length + budget, row_seeds(seed, batch)),
    sampling=sampling,
    stop_tokens=np.broadcast_to(stops, (batch, len(stops))),
  )


def row_seeds(seed: int | Sequence[int], batch: int) -> np.ndarray:
  """Returns a seed for each row, int32 [B]: the given one, or seed + row."""
  if np.ndim(seed) == 0:
    seed = [seed + i for i in range(batch)]
  return _per_row('seed', seed, batch, 0)


def make_decoder(
  model: LanguageModel,
  drafter: Drafter | None,
  verifier: str | Verifier | None,
  batch: int,
  tree_attention: bool = True,
  prefill_chunk: int | None = None,
) -> tuple[Decoder, Drafter]:
  """Returns the decoder and drafter of a call of `specsamp.generate`."""
  if prefill_chunk is not None:
    check_int('prefill_chunk', prefill_chunk, 1, model.config.max_length)
  drafter = NoDrafter() if drafter is None else drafter
  if user_modules.is_own(drafter) or not isinstance(drafter, Drafter):
    checks.check_parts(drafter)
  drafter.check(model, batch)
  law, tree = drafter.law, drafter.tree
  # A cache holds the text and one draft, which must not be the larger part.
  nodes = tree.with_extra(drafter.extra_tree).size
  if nodes > model.config.max_length:
    raise UserError(
      f'a round has {nodes} tokens, the target {model.config.max_length} '
      'positions; expected no more tokens'
    )
  if verifier is None:
    verifier = verification.default_name(law, tree)
  try:
    if isinstance(verifier, str):
      verifier = verification.make(verifier)
    if user_modules.is_own(verifier):
      verification.check_parts(verifier)
      for size in drafter.passes:
        part = tree if size == tree.size else tree.first(size)
        verification.check_sums(verifier, law, part, model.config.vocab_size)
    else:
      verification.check_law(verifier, law, tree)
  except ValueError as error:
    raise UserError(str(error)) from None
  scorer = scoring.tree_attention if tree_attention else scoring.replicated
  is_cpu = _platform(model.mesh) == 'cpu'
  return Decoder(
    model.transformer,
    verifier,
    scorer,
    prefill_chunk,
    loop.CPU_TOKENS if is_cpu else loop.ACCELERATOR_TOKENS,
  ), drafter


def check_int(name: str, value, least: int, largest: int = 2**31 - 1) -> None:
  """Raises `UserError` unless a value is an integer in this range."""
  if type(value) is not int or not least <= value <= largest:
    raise UserError(
      f'{name}: got {value!r}, expected an integer from {least} to {largest}'
    )


def slots(model: LanguageModel, length: int) -> int:
  """Returns the compiled width for the longest prompt or sequence.

  It is the next power of two, or the target's positions if these are fewer.
  """
  bucket = max(_MIN_SLOTS, 1 << (int(length) - 1).bit_length())
  return min(bucket, model.config.max_length)


def num_rows(batch: int, mesh: Mesh | None) -> int:
  """Returns the batch size that programs are compiled for, in whole shards.

  It is the batch size up to 8, then the next of 10, 12, 14, 16, 20, .., so few
  programs serve all sizes, with at most a quarter more rows than needed.
  """
  step = max(1, 1 << (batch - 1).bit_length() >> 3)
  shards = mesh.shape[DATA] if mesh else 1
  return -(-batch // math.lcm(step, shards)) * math.lcm(step, shards)


def capacity(num_slots: int, mesh: Mesh | None) -> int:
  """Returns the slots of a cache, rounded up so that rows stay aligned.

  XLA for GPUs sums over the slots in up to 16 parts of 8. A cache that does not
  divide into these is padded, which copies it in every layer of every pass.
  """
  multiple = 128 if _platform(mesh) == 'gpu' else 16
  return -(-num_slots // multiple) * multiple


def _platform(mesh: Mesh | None) -> str:
  return mesh.devices.flat[0].platform if mesh else jax.default_backend()


def _token_ids(prompts, tokenizer) -> list[Sequence[int]]:
  """Returns the token ids of each prompt."""
  if isinstance(prompts, str):
    prompts = [prompts]
  if not len(prompts):
    raise UserError('prompts: got an empty list, expected at least one prompt')
  if isinstance(next(iter(prompts)), int | np.integer):
    prompts = [prompts]  # a flat list is the token ids of one prompt
  rows = []
  for i, prompt in enumerate(prompts):
    if isinstance(prompt, str):
      rows.append(tokenizer.encode(prompt))
      continue
    try:
      ids = np.asarray(prompt)
    except ValueError:  # lists of several lengths
      ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in 'iu'):
      raise UserError(
        f'prompt {i}: got {prompt!r}, expected a text or a list of token ids'
      )
    rows.append(prompt)
  return rows


def _padded_stops(stop_tokens, vocab_size: int) -> np.ndarray:
  """Returns the stop tokens, int32 [K]; K is 8 or a multiple."""
  stop_tokens = np.asarray(stop_tokens).reshape(-1)
  # A tokenizer without an end of sequence has -1, which stops nothing.
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


def _per_row(name: str, value, batch: int, least: int) -> np.ndarray:
  """Returns an integer option as int32 [B]."""
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
