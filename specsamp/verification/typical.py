"""Typical acceptance (lossy): keeps tokens that are likely under the target.

Source: Medusa, Cai et al., arXiv 2401.10774, section 2.3.1.

Drafts: static trees of any law. The rule reads no q.

The rule is not lossless: the drafter chooses among the tokens that pass.
Medusa's code keeps the likeliest of the longest paths; here the first one wins.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from specsamp.drafting.draft import Law
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class TypicalLossyVerifier(Verifier):
  """The rule that accepts a token x with p(x) > min(ε, δ exp(-H(p))).

  It stops at the deepest node that is accepted with all its ancestors, the
  first one among equals, and emits a draw from p there. In greedy rows, where p
  is a one-hot, it is lossless.

  The defaults are those of Medusa's code.

  Attributes:
    epsilon: ε, a probability.
    delta: δ, the factor on exp(-H), where H is the entropy in nats.

  Raises:
    ValueError: epsilon or delta is negative or NaN.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one', 'deterministic'}
  )
  lossless: ClassVar[bool] = False

  epsilon: float = 0.09
  delta: float = 0.3

  def __post_init__(self):
    if not (self.epsilon >= 0 and self.delta >= 0):  # also refuses NaN
      raise ValueError(f'{self}: expected epsilon and delta of at least 0')

  def stop_probs(self, draft, p_bnv):
    """Returns the one-hot of the node to stop at, [B, N].

    If p after a node is NaN, no child of the node is accepted.
    """
    tree = draft.tree
    entropy_bi = special.entr(probs.rows(p_bnv, tree.internal)).sum(axis=-1)
    bound_bi = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy_bi))
    bound_bn = tree_ops.of_parent(tree, bound_bi, tree.internal, 0)
    p_bn = probs.at_tokens(p_bnv, tree.parents[1:], draft)
    accept_bn = draft.valid & (p_bn > bound_bn)
    reached_bn = tree_ops.reach(tree, accept_bn.astype(p_bn.dtype)) > 0
    depth_1n = np.asarray(tree.depths, np.int32)[None]
    # argmax takes the first of the deepest. The root is always reached.
    node_b = jnp.argmax(jnp.where(reached_bn, depth_1n, -1), axis=-1)
    return jax.nn.one_hot(node_b, tree.size, dtype=p_bn.dtype)

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns p after a node, [B, V]."""
    return probs.row_at(p_bnv, node_b)
