"""Synthetic acceptance (lossy): a given mean number of tokens per step.

Engines are compared at a published accepted length so that no engine gains by
a better head. So random weights suffice to time a step and what it emits.

Drafts: static or dynamic trees of any law. The rule reads neither p nor q.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, Law, lineage
from specsamp.errors import UserError, check_range
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier

NAME = 'synthetic'  # in configs, followed by the length: synthetic:2.5


@dataclasses.dataclass(frozen=True)
class SyntheticVerifier(Verifier):
  """The rule that accepts length - 1 draft tokens on average.

  With a = length - 1 it accepts floor(a) tokens, and one more with probability
  a - floor(a). No other integers of this mean have a smaller variance. Among
  the nodes of a depth it takes the first one that is drafted with all its
  ancestors. It emits these tokens and a draw from p. If a step drafts fewer
  tokens, such as n-grams without a match, the rule accepts all of one path, and
  the mean is lower.

  Attributes:
    length: mean number of tokens per step, the one after the draft included.

  Raises:
    UserError: the length is below 1, not finite, or not a number.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset(
    {'iid', 'without_replacement', 'top_plus_one', 'deterministic'}
  )
  lossless: ClassVar[bool] = False
  reads_parents: ClassVar[bool] = True

  length: float

  def __post_init__(self):
    check_range(self, 'length', min=1)

  @property
  def min_depth(self) -> int:
    """Least depth of a tree that has paths of this length."""
    return math.ceil(self.length - 1)

  def stop_probs(self, draft, p_bnv):
    """Returns the two depths' probabilities at one node each, [B, N]."""
    few = math.floor(self.length - 1)
    share = self.length - 1 - few
    drafted_bn, depth_bn = _drafted(draft)

    def at_depth(depth: int) -> jax.Array:
      reached_bn = drafted_bn & (depth_bn <= depth)
      # argmax takes the first of the deepest. The root is always reached.
      node_b = jnp.argmax(jnp.where(reached_bn, depth_bn, -1), axis=-1)
      return jax.nn.one_hot(node_b, draft.tree.size, dtype=p_bnv.dtype)

    return (1 - share) * at_depth(few) + share * at_depth(few + 1)

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns p after a node, [B, V]."""
    return probs.row_at(p_bnv, node_b)


def parse(name: str) -> SyntheticVerifier:
  """Returns the rule of `synthetic:LENGTH`; raises `UserError` for others."""
  text = name.removeprefix(NAME).removeprefix(':')
  try:
    length = float(text)
  except ValueError:
    raise UserError(
      f'verifier: got {name!r}, expected {NAME}:LENGTH with the tokens per '
      f'step, such as {NAME}:2.5'
    ) from None
  try:
    return SyntheticVerifier(length)
  except UserError as error:
    raise UserError(f'verifier {name}: {error}') from None


def _drafted(draft: Draft) -> tuple[jax.Array, jax.Array]:
  """Returns the nodes drafted with all ancestors, bool [B, N], and depths.

  Depths are int32, [B, N] or [1, N]. The root counts as drafted.
  """
  if draft.parents is None:
    reached_bn = tree_ops.reach(draft.tree, draft.valid.astype(jnp.int32)) > 0
    return reached_bn, draft.depths()
  depth_bn, ancestors_bnn = lineage(draft.parents, draft.tree.depth)
  missing_bn = ~draft.valid & (draft.parents >= 0)
  return ~(ancestors_bnn & missing_bn[:, None]).any(axis=-1), depth_bn
