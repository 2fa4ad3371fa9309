"""Lookahead decoding (Fu et al. 2402.02057): the target guesses ahead.

A window of guessed tokens, N - 1 levels of W columns, goes through the target
alongside the draft (Jacobi iteration). Level 0 guesses the W tokens after the
root. A column continues from there level by level, and the target predicts the
token after its last level. The N tokens of a column are an n-gram, which a pool
keeps; n-grams that begin with the root are the next drafts. Each round moves
the window by one place, whatever the accepted length. The authors' code does
the same, but there level 0 begins at the root, and here after the root.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.drafting import candidates
from specsamp.drafting.draft import ExtraTree, Law, TokenTree
from specsamp.drafting.drafter import Drafter, root_of
from specsamp.errors import UserError

_POOLED = 64  # rounds whose n-grams are kept
_DEFAULT = TokenTree.branching((7, 1, 1, 1))


@struct.dataclass
class LookaheadState:
  """Guesses of each row.

  Attributes:
    window: int32 [B, N - 1, W]; the token at level l of column w is w + l + 1
      places after the root.
    pool: int32 [B, K, N], n-grams; the newest ones replace the oldest.
    rounds: int32 [B], rounds whose n-grams were written to the pool.
  """

  window: jax.Array
  pool: jax.Array
  rounds: jax.Array


@struct.dataclass
class LookaheadDrafter(Drafter):
  """Drafter of pooled n-grams that begin with the root, newest first.

  Guesses are the target's most probable tokens at any temperature, so they do
  not depend on any draw of a round.

  Attributes:
    tree: G branches of N - 1 tokens, static.
    window: W, columns of guesses, static.
  """

  tree: TokenTree = struct.field(pytree_node=False)
  window: int = struct.field(pytree_node=False)
  law: ClassVar[Law] = 'deterministic'

  @property
  def extra_tree(self) -> ExtraTree:
    # Level 0 is a chain from the root; each column is a chain down from there.
    below = range((self.tree.depth - 1) * self.window)
    return ExtraTree((*range(-1, self.window - 1), *below), self.window)

  @property
  def passes(self) -> tuple[int, ...]:
    return 1, self.tree.size

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    batch, levels = len(length_b), self.tree.depth
    # The first guesses are tokens from all over the prompt.
    index = np.arange(levels * self.window, dtype=np.int32) * 7919
    window = jnp.take_along_axis(
      tokens_bp, index[None, :] % length_b[:, None], axis=1
    )
    return LookaheadState(
      window=window.reshape(batch, levels, self.window),
      pool=jnp.zeros((batch, _POOLED * self.window, levels + 1), jnp.int32),
      rounds=jnp.zeros((batch,), jnp.int32),
    )

  def resume(self, state, tokens_bs, start_b, length_b):
    return self.init(tokens_bs, length_b, None, tokens_bs.shape[1])

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b1 = root_of(tokens_bs, length_b)
    count = state.pool.shape[1]
    slot_k = jnp.arange(count, dtype=jnp.int32)[None, :]
    written_b1 = state.rounds[:, None] * self.window
    # From 1, the oldest entry, to K.
    recency_bk = (slot_k - written_b1) % count + 1
    is_match_bk = (state.pool[:, :, 0] == root_b1) & (slot_k < written_b1)
    place_bc, valid_bc = candidates.best_branches(
      jnp.where(is_match_bk, recency_bk, 0),
      state.pool[:, :, 1],
      # No two entries are equally recent, so nothing is drawn.
      jnp.zeros((len(length_b), self.tree.width, 2), jnp.float32),
    )
    tokens_bcj = jnp.take_along_axis(state.pool, place_bc[:, :, None], axis=1)
    tokens_bcg = tokens_bcj[:, :, 1:]
    valid_bcg = jnp.broadcast_to(valid_bc[:, :, None], tokens_bcg.shape)
    draft = candidates.draft_of_branches(
      self.tree, root_b1, tokens_bcg, valid_bcg
    )
    extra_bk = state.window.reshape(len(length_b), -1)
    return draft.replace(extra_tokens=extra_bk), state

  def commit(self, state, draft, verdict, root_b, scored):
    guess_bw = jnp.argmax(scored.extra_logits, axis=-1)
    columns_bjw = jnp.concatenate(
      [state.window, guess_bw.astype(jnp.int32)[:, None]], axis=1
    )
    new_bwj = jnp.swapaxes(columns_bjw, 1, 2)
    # A select: for an update in place on a mesh XLA would split the pool and
    # gather it again.
    pool_brwj = state.pool.reshape(len(root_b), _POOLED, *new_bwj.shape[1:])
    round_r = jnp.arange(_POOLED, dtype=jnp.int32)
    is_now_br = round_r[None, :] == (state.rounds % _POOLED)[:, None]
    pool_brwj = jnp.where(
      is_now_br[:, :, None, None], new_bwj[:, None], pool_brwj
    )
    return LookaheadState(
      window=columns_bjw[:, 1:],
      pool=pool_brwj.reshape(state.pool.shape),
      rounds=state.rounds + 1,
    )


def lookahead_drafter(
  shape: int | TokenTree = _DEFAULT, window: int = 7
) -> LookaheadDrafter:
  """Returns a drafter that guesses with the target itself.

  Its law is deterministic: use the verifier `naive`. A target pass scores
  G (N - 1) draft tokens and W (N - 1) guesses in addition to the root.

  Args:
    shape: a draft length of N - 1 tokens, N being the paper's level and the n
      of its n-grams; or a tree with one branch for each n-gram of the guess set
      G. By default N is 5 and G 7, as the authors' code recommends.
    window: W, columns of guesses.

  Raises:
    UserError: the shape is not one of branches, or the window is below 1.
  """
  if type(window) is not int or window < 1:
    raise UserError(f'window: got {window!r}, expected an integer above 0')
  return LookaheadDrafter(candidates.check_branches(shape), window)
