"""Multi-candidate speculative sampling: tries siblings one after the other.

Source: Yang et al., arXiv 2401.06706, algorithm 1 for law `iid` and algorithm 2
for law `without_replacement`.

Drafts: static trees of these two laws.

A child x is accepted with min(1, p(x) / q(x)). After a rejection the next
sibling is tried with p <- norm((p - q)+) and, without replacement, with q
without x. The rule is exact because each trial is the token rule, whose
rejection leaves the residual distribution to the next trial. On a chain it is
the token rule.
"""

import dataclasses
from typing import ClassVar

from specsamp.drafting.draft import Law
from specsamp.verification import siblings, tree_ops
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class MultiCandidateVerifier(Verifier):
  """The rule that descends to the first accepted child, and stops without one.

  It never accepts a token with p(x) = 0 or q(x) = 0.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid', 'without_replacement'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns P(reach a node and reject all its children), [B, N]."""
    accept_bn, *_ = siblings.judge(draft, p_bnv, joint=False)
    return tree_ops.stop_in_turn(draft.tree, accept_bn)

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns the residual distribution after a node's children, [B, V]."""
    return siblings.leave_probs(draft, p_bnv, node_b, joint=False)
