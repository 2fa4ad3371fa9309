"""Branches: chains of tokens that part at the root and nowhere else.

Drafters without a model propose what they have seen after such a token, the
best of it or several: a branch each.
"""

import functools

import jax.numpy as jnp
import numpy as np

from specsamp.drafting import candidates
from specsamp.drafting.draft import DynamicTree, TokenTree
from specsamp.errors import UserError
from specsamp.sampling import draw


def check_shape(shape: int | TokenTree) -> TokenTree:
  """The tree of a draft length, or of several branches.

  Raises:
    UserError: a draft length below 1, or a tree that parts below the root.
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
  """The best C of T branches that begin with different tokens.

  A verifier goes down the first branch that begins with the token it draws:
  another one of that token would be scored for nothing.

  Args:
    score_bt: int [B, T], higher is better, 0 is no branch at all.
    first_bt: int [B, T], the tokens that they begin with.
    uniform_bc2: float32 [B, C, 2], numbers of `draw.uniforms`: one draw among
      equally good branches for each candidate.

  Returns:
    The places of the chosen, int [B, C], and whether there was one, bool.
  """
  places, found = [], []
  for uniform_b2 in jnp.moveaxis(uniform_bc2, 1, 0):
    best_b1 = score_bt.max(axis=1, keepdims=True)
    tied_bt = (score_bt == best_b1) & (best_b1 > 0)
    place_b = draw.inverse_cdf(uniform_b2, tied_bt.astype(jnp.float32))
    token_b1 = jnp.take_along_axis(first_bt, place_b[:, None], axis=1)
    score_bt = jnp.where(first_bt == token_b1, 0, score_bt)
    places.append(place_b)
    found.append(best_b1[:, 0] > 0)
  return jnp.stack(places, axis=1), jnp.stack(found, axis=1)


def draft_of(
  tree: TokenTree, root_b1, tokens_bcg, valid_bcg, extra_tokens=None
):
  """The draft of C branches.

  Args:
    tree: see `check_shape`.
    root_b1: int [B, 1], the root's token.
    tokens_bcg: int [B, C, depth], the tokens of each branch.
    valid_bcg: bool [B, C, depth], which of them were found.
    extra_tokens: see `Draft`.
  """
  branch_n, step_n = _places(tree)
  draft = candidates.draft_of(
    tree,
    'deterministic',
    root_b1,
    tokens_bcg[:, branch_n, step_n],
    valid_bcg[:, branch_n, step_n],
    None,
  )
  return draft.replace(extra_tokens=extra_tokens)


@functools.cache
def _places(tree: TokenTree) -> tuple[np.ndarray, np.ndarray]:
  """Of the drafted nodes: which branch, and how far down it from 0."""
  branch = {node: i for i, node in enumerate(tree.children(0))}
  for node in range(1, tree.size):
    branch.setdefault(node, branch.get(tree.parents[node]))
  drafted = range(1, tree.size)
  return (
    np.asarray([branch[node] for node in drafted]),
    np.asarray([tree.depths[node] - 1 for node in drafted]),
  )
