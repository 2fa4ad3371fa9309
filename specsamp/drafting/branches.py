"""Branches: chains of draft tokens that part at the root only.

Drafters without a model propose what followed the root before: the best
continuation, or one branch for each of several.
"""

import functools

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

  A verifier follows the first branch that begins with the token it draws. It
  would never follow another branch that begins with the same token.

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


def draft_of(
  tree: TokenTree, root_b1, tokens_bcg, valid_bcg, extra_tokens=None
):
  """Returns the draft of C branches.

  Args:
    tree: tree from `check_shape`.
    root_b1: int [B, 1], the root's token.
    tokens_bcg: int [B, C, depth], tokens of each branch.
    valid_bcg: bool [B, C, depth], tokens that were drafted.
    extra_tokens: see `Draft`.
  """
  branch_k, step_k = _places(tree)
  draft = candidates.draft_of(
    tree,
    'deterministic',
    root_b1,
    tokens_bcg[:, branch_k, step_k],
    valid_bcg[:, branch_k, step_k],
    None,
  )
  return draft.replace(extra_tokens=extra_tokens)


@functools.cache
def _places(tree: TokenTree) -> tuple[np.ndarray, np.ndarray]:
  """Returns the branch of each draft token, and its index there from 0."""
  branch = {node: i for i, node in enumerate(tree.children(0))}
  for node in range(1, tree.size):
    branch.setdefault(node, branch.get(tree.parents[node]))
  nodes = range(1, tree.size)
  return (
    np.asarray([branch[node] for node in nodes]),
    np.asarray([tree.depths[node] - 1 for node in nodes]),
  )
