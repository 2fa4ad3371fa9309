"""Branches: chains of draft tokens that part at the root only.

Drafters without a model propose what followed the root before: the best
continuation, or one branch for each of several.
"""

import jax.numpy as jnp
import numpy as np

from specsamp.drafting import candidates
from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.errors import UserError
from specsamp.sampling import draw


def check_shape(shape: int | TokenTree) -> TokenTree:
  """Returns the tree of a draft length, or a tree of branches.

  Raises:
    UserError: the draft length is below 1, or the tree parts below the root.
  """
  tree = candidates.check_shape(shape, 'deterministic')
  if isinstance(tree, DynamicTree) or any(
    len(tree.children(node)) > 1 for node in range(1, tree.size)
  ):
    raise UserError(
      'the tree of this drafter parts at the root only, as 3x1x1 does; got '
      f'parents {tree.parents}'
    )
  return tree


def choose(score_bt, first_bt, uniform_bc2):
  """Chooses the best C of T branches that begin with different tokens.

  A verifier would never follow a second branch with the same first token.

  Args:
    score_bt: int [B, T], higher is better; 0 marks a branch that is missing.
    first_bt: int [B, T], first tokens of the branches.
    uniform_bc2: float32 [B, C, 2], numbers of `draw.uniforms`, one draw among
      equally good branches for each choice.

  Returns:
    Indices of the chosen branches, int [B, C], and their validity, bool [B, C].
  """
  places, valids = [], []
  for uniform_b2 in jnp.moveaxis(uniform_bc2, 1, 0):
    best_b1 = score_bt.max(axis=1, keepdims=True)
    tied_bt = (score_bt == best_b1) & (best_b1 > 0)
    place_b = draw.inverse_cdf(uniform_b2, tied_bt.astype(jnp.float32))
    token_b1 = jnp.take_along_axis(first_bt, place_b[:, None], axis=1)
    score_bt = jnp.where(first_bt == token_b1, 0, score_bt)
    places.append(place_b)
    valids.append(best_b1[:, 0] > 0)
  return jnp.stack(places, axis=1), jnp.stack(valids, axis=1)


def draft_of(tree: TokenTree, root_b1, tokens_bcg, valid_bcg):
  """Returns the draft of C branches, of tokens [B, C, depth] and validity."""
  branch_k = np.searchsorted(tree.children(0), tree.paths[1:, 1])
  step_k = np.asarray(tree.depths[1:]) - 1
  return candidates.draft_of(
    tree,
    'deterministic',
    root_b1,
    tokens_bcg[:, branch_k, step_k],
    valid_bcg[:, branch_k, step_k],
    None,
  )
