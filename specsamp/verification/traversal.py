"""Traversal verification: judges the nodes of a tree from leaf to root.

Source: Weng et al., arXiv 2505.12398. On a chain it is block verification.

Drafts: static trees of law `iid`, `without_replacement` or `top_plus_one`. The
last law is not in the paper: its drawn child is judged first, then the others.

A node starts with weight min(1, r p(x) / q(x)), where r, p and q are those of
its parent after the rejection of its elder siblings. Once all children of a
node are rejected, it is accepted with the weight that they left it. The rule
stops at the first accepted node, children before parents. It is exact for the
reason block verification is: given the path to a node and the rejection of its
elder siblings, the probability to stop at or below the node is its weight.

`siblings` has the recursion of r, p and q. It depends on no node below a
rejected child, so all weights are known before any node is judged.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Law, TokenTree
from specsamp.verification import siblings, tree_ops
from specsamp.verification.verifier import Verifier


def visits(tree: TokenTree, last_first: bool = False) -> tuple[int, ...]:
  """Returns the nodes as visited: children ascending, then their parent.

  If `last_first`, the last child comes before its siblings.
  """
  order, ahead = [], [0]
  while ahead:
    order.append(ahead.pop())
    children = tree.children(order[-1])
    if last_first:
      children = (*children[-1:], *children[:-1])
    ahead.extend(children)
  return tuple(reversed(order))


@dataclasses.dataclass(frozen=True)
class TraversalVerifier(Verifier):
  """The rule that stops at the first accepted node, children before parents."""

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one'}
  )
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns r times the product of 1 - r of all earlier visits, [B, N]."""
    _, weight_bn, _ = siblings.judge(draft, p_bnv, joint=True)
    order = visits(draft.tree, last_first=draft.law == 'top_plus_one')
    weight_bn = tree_ops.take(weight_bn, order)
    # before_i = prod_{j < i} (1 - r_j), in the order of the visits.
    fail_bn = jnp.cumprod(1 - weight_bn, axis=1)[:, :-1]
    before_bn = jnp.pad(fail_bn, ((0, 0), (1, 0)), constant_values=1)
    return tree_ops.take(weight_bn * before_bn, np.argsort(order))

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns the residual distribution after a node's children, [B, V]."""
    return siblings.leave_probs(draft, p_bnv, node_b, joint=True)
