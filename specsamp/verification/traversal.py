"""Traversal verification: the nodes of a tree are judged from leaf to root.

Weng et al., arXiv 2505.12398. On a chain it is block verification.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.verification import siblings, tree_ops
from specsamp.verification.verifier import Verifier


@functools.cache
def visits(tree: TokenTree) -> tuple[int, ...]:
  """The nodes in the order of their visits: children ascending, then parent."""
  order, ahead = [], [0]
  while ahead:
    order.append(ahead.pop())
    ahead.extend(tree.children(order[-1]))
  return tuple(reversed(order))


@dataclasses.dataclass(frozen=True)
class TraversalVerifier(Verifier):
  """Stops at the first node, children before parents, that is accepted.

  A node starts with weight min(1, r p(x) / q(x)), r, p and q being those of
  its parent by then. All its children rejected, it is accepted with what its
  weight has become. What a rejected child does to its parent's r, p and q does
  not depend on what happens below the child, so the weights of all nodes are
  known from the root down before any is accepted (see `siblings`).
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid', 'without_replacement'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: r times the product of 1 - r over the nodes visited before."""
    weight_bn = siblings.judge(draft, p_bnv, joint=True).weight_bn
    order = visits(draft.tree)
    weight_bn = tree_ops.take(weight_bn, order)
    # before_i = prod_{j < i} (1 - r_j), in the order of the visits.
    fail_bn = jnp.cumprod(1 - weight_bn, axis=1)[:, :-1]
    before_bn = jnp.pad(fail_bn, ((0, 0), (1, 0)), constant_values=1)
    return tree_ops.take(weight_bn * before_bn, np.argsort(order))

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: what all the children of `node_b` left of p, or p itself."""
    # A weight depends on those above it. Compiled together with `stop_probs`,
    # as in `draw_verdict`, the sums over the vocabulary are made once.
    removed_bn = siblings.judge(draft, p_bnv, joint=True).removed_bn
    removed_b1 = jnp.take_along_axis(removed_bn, node_b[:, None], axis=1)
    return siblings.leave_after(removed_b1[:, 0], draft, p_bnv, node_b)
