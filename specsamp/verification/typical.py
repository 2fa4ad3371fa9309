"""Typical acceptance: tokens likely enough under the target are kept. Lossy.

Medusa, Cai et al., arXiv 2401.10774, section 2.3.1. What is emitted is not a
draw from the target's distribution: the drafter chooses among the tokens that
pass. Medusa's code takes the likeliest of the longest paths; here the first one
wins.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from specsamp.drafting.draft import Draft, Law
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class TypicalLossyVerifier(Verifier):
  """Accepts a drafted token x where p(x) > min(ε, δ exp(-H(p))). Not lossless.

  The deepest node that is accepted with all its ancestors wins, the first of
  them among equals. The token after it is a draw from p, whatever was rejected.
  It reads no q, which may be None. In greedy rows, of one-hot p, only the best
  token passes: they emit the greedy text.

  Attributes:
    epsilon: ε, a probability; the default is that of Medusa's code.
    delta: δ, a factor on exp(-H), H the entropy in nats; likewise.

  Raises:
    ValueError: a negative ε or δ, or NaN.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one', 'deterministic'}
  )
  lossless: ClassVar[bool] = False

  epsilon: float = 0.09
  delta: float = 0.3

  def __post_init__(self):
    for name in ('epsilon', 'delta'):
      value = getattr(self, name)
      if not value >= 0:  # NaN is not either
        raise ValueError(f'{name}: got {value}, expected at least 0')

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: 1 at the node that wins, 0 elsewhere.

    A row of p that is NaN accepts nothing after its node.
    """
    tree = draft.tree
    entropy_bi = special.entr(probs.rows(p_bnv, tree.internal)).sum(axis=-1)
    least_bi = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy_bi))
    least_bn = tree_ops.of_parent(tree, least_bi, tree.internal, 0)
    p_bn = probs.at_tokens(p_bnv, tree.parents[1:], draft)
    accept_bn = draft.valid & (p_bn > least_bn)
    reached_bn = tree_ops.reach(tree, accept_bn.astype(p_bn.dtype)) > 0
    depth_1n = np.asarray(tree.depths, np.int32)[None]
    # The first of the largest, and always one: the root is reached.
    node_b = jnp.argmax(jnp.where(reached_bn, depth_1n, -1), axis=-1)
    return jax.nn.one_hot(node_b, tree.size, dtype=p_bn.dtype)

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: p after `node_b`."""
    return probs.row_at(p_bnv, node_b)
