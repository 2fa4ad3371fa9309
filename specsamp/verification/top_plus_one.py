"""The rule for the most probable tokens plus one drawn token.

Source: the greedy draft of Hu et al., arXiv 2502.18779. The rule attains their
bound: no lossless rule accepts more first tokens of this draft. SpecHub (arXiv
2411.05289) is the case of two candidates.

Drafts: static trees of law `top_plus_one`.

At one node, T is the set of all children but the last, and x is the last child,
drawn from q' = norm(q without T). The rule accepts x with min(1, p(x) / q'(x)).
After a rejection it draws y from norm(p - min(p, q') outside T), and descends
to y if y is in T. It is exact for the reason the token rule is: it emits
min(p, q') outside T, and y supplies the rest of p. For one child it is the
token rule. If no token was left to draw, it is the naive rule.
"""

import dataclasses
from typing import ClassVar

from specsamp.drafting.draft import Law
from specsamp.verification import siblings, tree_ops
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class TopPlusOneVerifier(Verifier):
  """The rule that tries the drawn token first, then the most probable ones."""

  accepts: ClassVar[frozenset[Law]] = frozenset({'top_plus_one'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns P(reach a node and descend to none of its children), [B, N]."""
    accept_bn, *_ = siblings.judge(draft, p_bnv, joint=False)
    return tree_ops.stop_in_turn(draft.tree, accept_bn, last_first=True)

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm((p - q')+ outside T) after a node, [B, V]."""
    return siblings.leave_probs(draft, p_bnv, node_b, joint=False)
