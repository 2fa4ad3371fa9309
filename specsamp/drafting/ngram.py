"""n-gram drafting: what followed the last tokens when they stood there before.

Prompt lookup (Saxena 2023) and LLMA (Yang et al. 2304.04487), which looks in a
reference text, are one search: in a row's own prompt and output, in a text
given for each row, and in a datastore that all rows share.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import branches
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.drafter import Drafter, root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.utils import flow

# Two that are no token, nor each other: what parts documents, and what stands
# before a row's first token.
_BETWEEN, _NONE = -1, -2

_LONGEST = 64  # tokens of an n-gram; a search is compiled for each of them


class Source(NamedTuple):
  """Texts to look in.

  Attributes:
    tokens: int32 [G, T], one row for each row of the batch, or one for all.
    room: int32 [G, T], how many tokens of the same document follow each.
  """

  tokens: jax.Array
  room: jax.Array


@struct.dataclass
class NgramDrafter(Drafter):
  """Proposes the continuations of the longest matches, a branch for each.

  A match is a place where the row's last n tokens stand, followed by at least
  one more. Of n_max down to n_min tokens the longest match wins, of several
  the one with the longest continuation (up to the depth of the draft), of
  several again one at random. Where there is none the round has no draft.

  A round compares n_max times all tokens that a row looks in, on the device.
  Of a text no longer than the target's context that costs little beside the
  target's pass; a datastore costs every row of the batch its length.

  Attributes:
    reference: a text for each row, or None.
    datastore: documents that all rows share, or None.
    tree: whose branches part at the root, static.
    n_max: tokens of the longest match that is looked for, static.
    n_min: of the shortest, static.
  """

  reference: Source | None
  datastore: Source | None
  tree: TokenTree = struct.field(pytree_node=False)
  n_max: int = struct.field(pytree_node=False)
  n_min: int = struct.field(pytree_node=False)
  law: ClassVar[Law] = 'deterministic'

  def check(self, target: LanguageModel, batch: int) -> None:
    if self.reference and len(self.reference.tokens) != batch:
      raise UserError(
        f'reference: got {len(self.reference.tokens)} texts for a batch of '
        f'{batch} prompts'
      )
    for name in ('reference', 'datastore'):
      source = getattr(self, name)
      if source and source.tokens.max() >= target.config.vocab_size:
        raise UserError(
          f'{name}: got token {source.tokens.max()}, the target has '
          f'{target.config.vocab_size}'
        )

  @property
  def passes(self) -> tuple[int, ...]:
    return 1, self.tree.size

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    back_j = np.arange(1, self.n_max + 1, dtype=np.int32)
    back_bj = length_b[:, None] - back_j[None, :]
    tail_bj = jnp.where(
      back_bj < 0,
      _NONE,
      jnp.take_along_axis(tokens_bs, jnp.maximum(back_bj, 0), axis=1),
    )
    at_s = jnp.arange(tokens_bs.shape[1], dtype=jnp.int32)
    text = Source(tokens_bs, length_b[:, None] - 1 - at_s[None, :])
    tokens_bt, room_bt = _side_by_side(text, self.reference, self.datastore)

    score_bt = self._score(tokens_bt, room_bt, tail_bj)

    def drawn(_):
      own_b = draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)
      return draw.uniforms(own_b, self.tree.width)

    # Random bits would be most of what a round without a match costs.
    uniform_bc2 = flow.cond_in_place(
      (score_bt > 0).any(),
      drawn,
      jnp.zeros((len(length_b), self.tree.width, 2), jnp.float32),
    )
    place_bc, found_bc = branches.choose(
      score_bt, jnp.roll(tokens_bt, -1, axis=1), uniform_bc2
    )
    step_11g = np.arange(self.tree.depth, dtype=np.int32)[None, None, :]
    next_bcg = place_bc[:, :, None] + 1 + step_11g
    room_bc = jnp.take_along_axis(room_bt, place_bc, axis=1)
    draft = branches.draft_of(
      self.tree,
      root_of(tokens_bs, length_b),
      jnp.take_along_axis(tokens_bt[:, None], next_bcg, axis=2, mode='clip'),
      found_bc[:, :, None] & (step_11g < room_bc[:, :, None]),
    )
    return draft, state

  def _score(self, tokens_bt, room_bt, tail_bj):
    """Of a match that ends at each place, [B, T]; 0 where there is none."""
    depth = self.tree.depth
    matched_bt, same_bt = 0, True
    for j in range(self.n_max):
      before_bt = jnp.pad(tokens_bt, ((0, 0), (j, 0)), constant_values=_BETWEEN)
      same_bt &= before_bt[:, : tokens_bt.shape[1]] == tail_bj[:, j, None]
      matched_bt += same_bt.astype(jnp.int32)
    length_bt = jnp.minimum(room_bt, depth)
    is_match_bt = (matched_bt >= self.n_min) & (length_bt > 0)
    return jnp.where(is_match_bt, matched_bt * (depth + 1) + length_bt, 0)


def ngram_drafter(
  shape: int | TokenTree = 10,
  n_max: int = 3,
  n_min: int = 1,
  reference: Sequence[Sequence[int]] | None = None,
  datastore: Sequence[Sequence[int]] | None = None,
) -> NgramDrafter:
  """A drafter that looks up the row's last tokens in what stands before them.

  Its law is deterministic: verify it by `naive`.

  Args:
    shape: a draft length, or a tree whose branches part at the root, one for
      each of several matches.
    n_max: tokens of the longest match that is looked for.
    n_min: of the shortest.
    reference: token ids of a text for each row of the batch, to look in beside
      its own. No text that was sampled after the same prompt from the same
      seed: it would tell the random bits that the verdict takes. Other seeds
      are independent of it, and `gumbel` emits that text again.
    datastore: token ids of documents that all rows look in.

  Raises:
    UserError: a shape, n or text that there cannot be.
  """
  are_integers = type(n_max) is int and type(n_min) is int
  if not (are_integers and 1 <= n_min <= n_max <= _LONGEST):
    raise UserError(
      f'n-grams: got n_max {n_max!r} and n_min {n_min!r}, expected integers '
      f'of at least 1 and at most {_LONGEST}, n_min not above n_max'
    )
  if reference is not None:
    reference = _source([[_ids('reference', text)] for text in reference])
  if datastore is not None:
    documents = [_ids('datastore', each) for each in datastore]
    if not any(map(len, documents)):
      raise UserError('datastore: got no tokens, expected some to look in')
    datastore = _source([documents])
  return NgramDrafter(
    reference=reference,
    datastore=datastore,
    tree=branches.check_shape(shape),
    n_max=n_max,
    n_min=n_min,
  )


def _side_by_side(text: Source, *others: Source | None) -> Source:
  """What each row looks in, [B, T], its own text first."""
  batch = len(text.tokens)

  def rows(array):
    if len(array) == 1:
      return jnp.broadcast_to(array, (batch, array.shape[1]))
    # Rows that fill up a batch look where its last one does.
    return jnp.pad(array, ((0, batch - len(array)), (0, 0)), 'edge')

  sources = [text, *(Source(*map(rows, other)) for other in others if other)]
  return Source(
    *(jnp.concatenate(a, axis=1) for a in zip(*sources, strict=True))
  )


def _ids(name: str, document) -> np.ndarray:
  """A document's tokens; `UserError` if it is no list of such."""
  ids = np.asarray(document)
  if ids.size and (
    ids.ndim != 1
    or ids.dtype.kind not in 'iu'
    or ids.min() < 0
    or ids.max() >= 2**31
  ):
    raise UserError(f'{name}: expected lists of token ids, got {document!r}')
  return ids.reshape(-1).astype(np.int32)


def _source(rows: Sequence[Sequence[np.ndarray]]) -> Source:
  """Rows of documents, of a power of two of tokens."""
  longest = max((sum(len(ids) + 1 for ids in row) for row in rows), default=0)
  # Texts of other lengths are to recompile nothing.
  shape = (len(rows), 1 << longest.bit_length())
  tokens, room = np.full(shape, _BETWEEN, np.int32), np.zeros(shape, np.int32)
  for i, documents in enumerate(rows):
    end = 0
    for ids in documents:
      begin, end = end + 1, end + 1 + len(ids)
      tokens[i, begin:end] = ids
      room[i, begin:end] = np.arange(len(ids) - 1, -1, -1)
  if jax.process_count() > 1:  # what is on one device is not on all
    return Source(tokens, room)
  return Source(jnp.asarray(tokens), jnp.asarray(room))
