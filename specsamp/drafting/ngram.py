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
from specsamp.drafting.drafter import root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw

# No token, and each another one: between the documents of a datastore, before
# a text's first token, and before a row's.
_BETWEEN, _BEFORE, _NONE = -1, -2, -3


class Source(NamedTuple):
  """Where to look: one row for each row of the batch, or one for all.

  Attributes:
    tokens: int32 [G, T].
    room: int32 [G, T], how many tokens of the same document follow each.
  """

  tokens: jax.Array
  room: jax.Array


@struct.dataclass
class NgramDrafter:
  """Proposes the continuations of the longest matches, a branch for each.

  A match is a place where the row's last n tokens stand, followed by at least
  one more. Of n_max down to n_min tokens the longest match wins, of several
  the one with the longest continuation (up to the depth of the draft), of
  several again one at random. Where there is none the round has no draft.

  A round reads every source once, on the device: it costs little beside a
  pass of a target whose text is as long, and of a datastore as many bytes.

  Attributes:
    sources: beside the row's own text.
    tree: whose branches part at the root, static.
    n_max: tokens of the longest match that is looked for, static.
    n_min: of the shortest, static.
  """

  sources: tuple[Source, ...]
  tree: TokenTree = struct.field(pytree_node=False)
  n_max: int = struct.field(pytree_node=False)
  n_min: int = struct.field(pytree_node=False)
  law: ClassVar[Law] = 'deterministic'
  riders: ClassVar[tuple[int, ...]] = ()
  may_be_empty: ClassVar[bool] = True

  def check(self, target: LanguageModel, batch: int) -> None:
    for tokens, _ in self.sources:
      if tokens.max() >= target.config.vocab_size:
        raise UserError(
          f'reference or datastore: got token {tokens.max()}, the target has '
          f'{target.config.vocab_size}'
        )
      if len(tokens) not in (1, batch):
        raise UserError(
          f'reference: got {len(tokens)} texts for a batch of {batch} prompts'
        )

  def init(self, tokens_bp, length_b, hidden_bpd, capacity):
    return ()

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    back_j = np.arange(1, self.n_max + 1, dtype=np.int32)
    back_bj = length_b[:, None] - back_j[None, :]
    tail_bj = jnp.where(
      back_bj < 0,
      _NONE,
      jnp.take_along_axis(tokens_bs, jnp.maximum(back_bj, 0), axis=1),
    )
    at_s = jnp.arange(tokens_bs.shape[1], dtype=jnp.int32)
    own = Source(tokens_bs, length_b[:, None] - 1 - at_s[None, :])
    sources = [own, *(_for_rows(each, len(length_b)) for each in self.sources)]
    beside = lambda arrays: jnp.concatenate(
      [jnp.broadcast_to(a, (len(length_b), a.shape[1])) for a in arrays], axis=1
    )
    keys_b = draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)
    place_bc, found_bc = branches.choose(
      beside([self._score(source, tail_bj) for source in sources]),
      beside([jnp.roll(source.tokens, -1, axis=1) for source in sources]),
      draw.uniforms(keys_b, self.tree.width),
    )
    tokens_bcg, room_bc = _read(sources, place_bc, self.tree.depth)
    step_g = np.arange(self.tree.depth, dtype=np.int32)[None, None, :]
    draft = branches.draft_of(
      self.tree,
      root_of(tokens_bs, length_b),
      tokens_bcg,
      found_bc[:, :, None] & (step_g < room_bc[:, :, None]),
    )
    return draft, state

  def commit(self, state, draft, verdict, root_b, scored):
    return state

  def _score(self, source: Source, tail_bj):
    """Of a match that ends at each place, [B, T]; 0 where there is none."""
    tokens_gt, room_gt = source
    depth = self.tree.depth
    matched_bt, same_bt = 0, True
    for j in range(self.n_max):
      before_gt = jnp.pad(tokens_gt, ((0, 0), (j, 0)), constant_values=_BEFORE)
      same_bt &= before_gt[:, : tokens_gt.shape[1]] == tail_bj[:, j, None]
      matched_bt += same_bt.astype(jnp.int32)
    length_bt = jnp.minimum(room_gt, depth)
    is_match_bt = (matched_bt >= self.n_min) & (length_bt > 0)
    return jnp.where(is_match_bt, matched_bt * (depth + 1) + length_bt, 0)


def _for_rows(source: Source, batch: int) -> Source:
  """A source with one row for all, or one for each; rows that fill up a batch
  look where its last one does."""
  more = batch - len(source.tokens)
  if len(source.tokens) == 1 or not more:
    return source
  return Source(*(jnp.pad(a, ((0, more), (0, 0)), 'edge') for a in source))


def _read(sources: Sequence[Source], place_bc, depth: int):
  """What follows places in sources laid end to end.

  Returns:
    Tokens [B, C, depth], noise from where there is no room, and room [B, C].
  """
  row_b1 = np.arange(len(place_bc), dtype=np.int32)[:, None]
  ahead_g = np.arange(1, depth + 1, dtype=np.int32)
  tokens_bcg, room_bc = 0, 0
  for tokens, room in sources:
    size = tokens.shape[1]
    own_b1 = np.minimum(row_b1, len(tokens) - 1)
    next_bcg = place_bc[:, :, None] + ahead_g[None, None, :]
    here_bc = (place_bc >= 0) & (place_bc < size)
    get = lambda array, *at: jnp.asarray(array).at[at].get(mode='clip')
    tokens_bcg = jnp.where(
      here_bc[:, :, None], get(tokens, own_b1[:, :, None], next_bcg), tokens_bcg
    )
    room_bc = jnp.where(here_bc, get(room, own_b1, place_bc), room_bc)
    place_bc = place_bc - size
  return tokens_bcg, room_bc


def ngram_drafter(
  shape: int | TokenTree,
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
      its own.
    datastore: token ids of documents that all rows look in.

  Raises:
    UserError: a shape, n or text that there cannot be.
  """
  if not (type(n_max) is int and type(n_min) is int and 1 <= n_min <= n_max):
    raise UserError(
      f'n-grams: got n_max {n_max!r} and n_min {n_min!r}, expected integers '
      'of at least 1, n_min not above n_max'
    )
  sources = []
  if reference is not None:
    sources.append(_source('reference', [[text] for text in reference]))
  if datastore is not None:
    sources.append(_source('datastore', [datastore]))
  return NgramDrafter(
    sources=tuple(sources),
    tree=branches.check_shape(shape),
    n_max=n_max,
    n_min=n_min,
  )


def _source(name: str, rows: Sequence[Sequence[Sequence[int]]]) -> Source:
  """Rows of documents, as a `Source`."""
  tokens, rooms = [], []
  for documents in rows:
    ids, room = [], []
    for document in documents:
      document = np.asarray(document)
      if document.ndim != 1 or (
        document.size
        and (document.dtype.kind not in 'iu' or document.min() < 0)
      ):
        raise UserError(
          f'{name}: expected lists of token ids, got {document!r}'
        )
      ids += [document.astype(np.int32), [_BETWEEN]]
      room += [np.arange(len(document) - 1, -1, -1), [0]]
    tokens.append(np.concatenate([[_BETWEEN], *ids]).astype(np.int32))
    rooms.append(np.concatenate([[0], *room]).astype(np.int32))
  if not tokens:
    raise UserError(f'{name}: got none, expected at least one text')
  longest = max(map(len, tokens))
  pad = lambda row, fill: np.pad(
    row, (0, longest - len(row)), constant_values=fill
  )
  return Source(
    np.stack([pad(row, _BETWEEN) for row in tokens]),
    np.stack([pad(row, 0) for row in rooms]),
  )
