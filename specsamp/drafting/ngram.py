"""n-gram drafting: the tokens that followed the last tokens earlier.

Prompt lookup (Saxena 2023) and LLMA (Yang et al. 2304.04487), which searches a
reference text, are one search: in a row's prompt and output, in a reference for
each row, and in a datastore that all rows share.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import candidates
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.drafter import Drafter, root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling import draw
from specsamp.utils import flow

# Two different values that are not tokens: one separates documents, the other
# stands before a row's first token.
_SEPARATOR, _BEFORE_FIRST = -1, -2

_MAX_N = 64  # tokens of an n-gram; a search is compiled for each of them


class Documents(NamedTuple):
  """Texts to search.

  Attributes:
    tokens: int32 [G, T], one row for each row of the batch, or one for all.
    num_following: int32 [G, T], tokens of the same document after each token.
  """

  tokens: jax.Array
  num_following: jax.Array


@struct.dataclass
class NgramDrafter(Drafter):
  """Drafter of the continuations of the longest matches, a branch for each.

  A match is an earlier occurrence of the row's last n tokens, followed by at
  least one token. The longest match of n_max to n_min tokens wins. Among equal
  lengths the match with the longest continuation wins, up to the draft's depth;
  ties are broken at random. A round without a match has no draft.

  A round compares every searched token n_max times, on the device. For a text
  within the target's context this is cheap next to the target's pass. Every row
  of a batch searches the whole datastore.

  Attributes:
    reference: a text for each row, or None.
    datastore: documents that all rows share, or None.
    tree: branches that share only the root, static.
    n_max: tokens of the longest match, static.
    n_min: tokens of the shortest match, static.
  """

  reference: Documents | None
  datastore: Documents | None
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
      documents = getattr(self, name)
      if documents and documents.tokens.max() >= target.config.vocab_size:
        raise UserError(
          f'{name}: got token {documents.tokens.max()}, the target has '
          f'{target.config.vocab_size}'
        )

  @property
  def passes(self) -> tuple[int, ...]:
    return 1, self.tree.size

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    back_j = np.arange(1, self.n_max + 1, dtype=np.int32)
    back_bj = length_b[:, None] - back_j[None, :]
    last_bj = jnp.take_along_axis(tokens_bs, jnp.maximum(back_bj, 0), axis=1)
    last_bj = jnp.where(back_bj < 0, _BEFORE_FIRST, last_bj)
    at_s = jnp.arange(tokens_bs.shape[1], dtype=jnp.int32)
    text = Documents(tokens_bs, length_b[:, None] - 1 - at_s[None, :])
    tokens_bt, following_bt = _concatenate(text, self.reference, self.datastore)
    score_bt = self._score(tokens_bt, following_bt, last_bj)

    def tie_break(_):
      round_keys_b = draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)
      return draw.uniforms(round_keys_b, self.tree.width)

    # Random bits would be most of the cost of a round without a match.
    uniform_bc2 = flow.cond_in_place(
      (score_bt > 0).any(),
      tie_break,
      jnp.zeros((len(length_b), self.tree.width, 2), jnp.float32),
    )
    place_bc, valid_bc = candidates.best_branches(
      score_bt, jnp.roll(tokens_bt, -1, axis=1), uniform_bc2
    )
    step_11g = np.arange(self.tree.depth, dtype=np.int32)[None, None, :]
    next_bcg = place_bc[:, :, None] + 1 + step_11g
    following_bc = jnp.take_along_axis(following_bt, place_bc, axis=1)
    draft = candidates.draft_of_branches(
      self.tree,
      root_of(tokens_bs, length_b),
      jnp.take_along_axis(tokens_bt[:, None], next_bcg, axis=2, mode='clip'),
      valid_bc[:, :, None] & (step_11g < following_bc[:, :, None]),
    )
    return draft, state

  def _score(self, tokens_bt, following_bt, last_bj):
    """Returns the score of a match that ends at each token, 0 without one."""
    depth = self.tree.depth
    matched_bt, same_bt = 0, True
    for j in range(self.n_max):
      padding = (0, 0), (j, 0)
      before_bt = jnp.pad(tokens_bt, padding, constant_values=_SEPARATOR)
      same_bt &= before_bt[:, : tokens_bt.shape[1]] == last_bj[:, j, None]
      matched_bt += same_bt.astype(jnp.int32)
    length_bt = jnp.minimum(following_bt, depth)
    is_match_bt = (matched_bt >= self.n_min) & (length_bt > 0)
    return jnp.where(is_match_bt, matched_bt * (depth + 1) + length_bt, 0)


def ngram_drafter(
  shape: int | TokenTree = 10,
  n_max: int = 3,
  n_min: int = 1,
  reference: Sequence[Sequence[int]] | None = None,
  datastore: Sequence[Sequence[int]] | None = None,
) -> NgramDrafter:
  """Returns a drafter that looks up what followed the row's last tokens.

  Its law is deterministic: use the verifier `naive`.

  Args:
    shape: a draft length, or a tree with one branch for each of several
      matches, which part at the root.
    n_max: tokens of the longest match.
    n_min: tokens of the shortest match.
    reference: token ids of a further text for each row of the batch. It must
      not be a completion of the same prompt and seed, which would reveal the
      random bits of the verdict. Completions of other seeds are safe. `gumbel`
      accepts any reference, because it emits the same tokens for any draft.
    datastore: token ids of documents that all rows search.

  Raises:
    UserError: the shape is not one of branches, n is out of range, or a text is
      not a list of token ids.
  """
  are_integers = type(n_max) is int and type(n_min) is int
  if not (are_integers and 1 <= n_min <= n_max <= _MAX_N):
    raise UserError(
      f'n-grams: got n_max {n_max!r} and n_min {n_min!r}, expected integers '
      f'of at least 1 and at most {_MAX_N}, n_min not above n_max'
    )
  if reference is not None:
    reference = _padded([[_ids('reference', text)] for text in reference])
  if datastore is not None:
    documents = [_ids('datastore', document) for document in datastore]
    if not any(map(len, documents)):
      raise UserError('datastore: got no tokens, expected at least one')
    datastore = _padded([documents])
  tree = candidates.check_branches(shape)
  return NgramDrafter(reference, datastore, tree, n_max, n_min)


def _concatenate(text: Documents, *others: Documents | None) -> Documents:
  """Returns the tokens that each row searches, [B, T], its text first."""
  batch = len(text.tokens)

  def rows(array):
    if len(array) == 1:
      return jnp.broadcast_to(array, (batch, array.shape[1]))
    # Rows that fill a batch search the reference of its last prompt.
    return jnp.pad(array, ((0, batch - len(array)), (0, 0)), 'edge')

  parts = [text, *(Documents(*map(rows, other)) for other in others if other)]
  return Documents(
    *(jnp.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
  )


def _ids(name: str, document) -> np.ndarray:
  ids = np.asarray(document)
  if ids.size and (
    ids.ndim != 1
    or ids.dtype.kind not in 'iu'
    or ids.min() < 0
    or ids.max() >= 2**31
  ):
    raise UserError(f'{name}: expected lists of token ids, got {document!r}')
  return ids.reshape(-1).astype(np.int32)


def _padded(rows: Sequence[Sequence[np.ndarray]]) -> Documents:
  """Returns the documents of each row, padded to a power of two of tokens.

  Texts of similar lengths then share compiled programs.
  """
  longest = max((sum(len(ids) + 1 for ids in row) for row in rows), default=0)
  shape = (len(rows), 1 << longest.bit_length())
  tokens = np.full(shape, _SEPARATOR, np.int32)
  following = np.zeros(shape, np.int32)
  for i, documents in enumerate(rows):
    end = 0
    for ids in documents:
      begin, end = end + 1, end + 1 + len(ids)
      tokens[i, begin:end] = ids
      following[i, begin:end] = np.arange(len(ids) - 1, -1, -1)
  if jax.process_count() > 1:  # an array on one device is not on all
    return Documents(tokens, following)
  return Documents(jnp.asarray(tokens), jnp.asarray(following))
