"""Multi-candidate speculative sampling: siblings are tried in turn.

Yang et al., arXiv 2401.06706, algorithms 1 (candidates drawn independently)
and 2 (without replacement).
"""

import dataclasses
from typing import ClassVar

import jax

from specsamp.drafting.draft import Draft, Law
from specsamp.verification import siblings, tree_ops
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class MultiCandidateVerifier(Verifier):
  """Goes down to the first child that is accepted, and stops where none is.

  A child x is accepted with min(1, p(x) / q(x)); else p <- norm((p - q)+) for
  its next sibling and, without replacement, x is taken out of q: which of the
  two algorithms it is follows from `Draft.law`. On a chain it is the
  token rule. A token of p(x) = 0 or q(x) = 0 is never accepted.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid', 'without_replacement'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: the chance to reach each node and accept none of its children."""
    judgement = siblings.judge(draft, p_bnv, joint=False)
    return tree_ops.stop_in_turn(draft.tree, judgement.accept_bn)

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: what all the children of `node_b` left of p, or p itself."""
    # Only this node's s is needed, and it depends on no other node.
    star, p_b1v = siblings.star_at(draft, p_bnv, node_b)
    removed_bn = siblings.judge(star, p_b1v, joint=False).removed_bn
    return siblings.leave_after(removed_bn[:, 0], draft, p_bnv, node_b)
