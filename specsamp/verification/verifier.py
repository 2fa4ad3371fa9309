"""The interface of verification rules, and the draws that all of them share.

A rule is two functions of a draft: the distribution of the node to stop at, and
the distribution of the token emitted there. So whether it is lossless can be
computed: P(draft) * stop * leave, summed over all drafts, must be the target's
distribution. `specsamp.conformance` computes this sum.
"""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree, Verdict
from specsamp.errors import UserError
from specsamp.sampling import draw


class Verifier(Protocol):
  """A verification rule: two pure functions without model, state or keys.

  A rule is a static argument of jitted functions, so it must be hashable. It
  computes in the dtype of p: float32 in decoding, float64 in proofs.

  Attributes:
    accepts: laws of the drafts that the rule verifies.
    lossless: True if the emitted tokens follow the target's distribution.
    coupled: True if p is the one-hot winner of its position's race (see
      `sampling.coupling`). Optional.
    reads_parents: True if the rule verifies dynamic trees. Optional.
    min_depth: least depth of the drafter's tree. Optional.
  """

  accepts: frozenset[Law]
  lossless: bool
  coupled: bool = False
  reads_parents: bool = False
  min_depth: int = 0

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """Returns the probability to stop at each node of the draft.

    Args:
      draft: the drafted tokens [B, N] and their q. The draft may be empty, a
        root alone; every row is then [1].
      p_bnv: float [B, N, V], the target's transformed distribution after each
        node.

    Returns:
      Float [B, N]. Each row is a distribution over the nodes.
    """

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """Returns the distribution of the token emitted at `node_b`, int32 [B].

    It is the residual distribution after a rejection, and p after a fully
    accepted path. If the residual is all 0, only rounding can stop a row there,
    and the rules of this package return p.

    Returns:
      Float [B, V]. Each row is a distribution over the vocabulary.
    """


def check_accepts(verifier: Verifier, law: Law, tree: TokenTree) -> None:
  """Checks that a rule accepts a law, and the tree if that is dynamic.

  Raises:
    ValueError: the rule does not accept them.
  """
  name = type(verifier).__name__
  if law not in verifier.accepts:
    laws = ' or '.join(map(repr, sorted(verifier.accepts)))
    raise ValueError(
      f'{name} cannot correct this draft: got law {law!r}, expected {laws}'
    )
  is_dynamic = isinstance(tree, DynamicTree)
  if is_dynamic and not getattr(verifier, 'reads_parents', False):
    raise ValueError(
      f'{name} cannot correct this draft: got a dynamic tree, expected a '
      'static one, or the verifier naive or gumbel'
    )


@functools.lru_cache(maxsize=256)
def check_law(verifier: Verifier, law: Law, tree: TokenTree) -> None:
  """Checks that a rule can verify drafts of this law and tree.

  Raises:
    ValueError: the rule does not accept the law or the tree.
  """
  check_accepts(verifier, law, tree)
  min_depth = getattr(verifier, 'min_depth', 0)
  if tree.depth < min_depth:
    raise UserError(
      f'{verifier}: got a draft of {tree.depth} tokens, expected at least '
      f'{min_depth}'
    )
  shaped = jax.ShapeDtypeStruct
  nodes = shaped((1, tree.size), jnp.int32)
  q_biv = shaped((1, len(tree.internal), 2), jnp.float32)
  draft = Draft(
    tokens=nodes,
    q=None if law == 'deterministic' else q_biv,
    tree=tree,
    law=law,
    valid=shaped((1, tree.size), bool),
    parents=nodes if isinstance(tree, DynamicTree) else None,
  )
  p_bnv = shaped((1, tree.size, 2), jnp.float32)
  jax.eval_shape(verifier.stop_probs, draft, p_bnv)


def is_coupled(verifier: Verifier) -> bool:
  """Returns `Verifier.coupled`, which a user-defined rule may lack."""
  return getattr(verifier, 'coupled', False)


def check_chain(verifier: Verifier, draft: Draft) -> None:
  """Checks that a draft is a chain, for rules that verify only chains.

  Raises:
    UserError: the draft's tree is not a chain.
  """
  if not draft.tree.is_chain:
    raise UserError(
      f'{type(verifier).__name__} verifies chains: got a tree of '
      f'{draft.tree.size} nodes, expected a chain; or use a verifier of '
      'trees, such as multi_candidate'
    )


def draw_verdict(
  stop_keys: jax.Array,
  leave_keys: jax.Array,
  verifier: Verifier,
  draft: Draft,
  p_bnv: jax.Array,
) -> Verdict:
  """Draws the node to stop at, then the token to emit there.

  A row's verdict depends on no other row.

  Args:
    stop_keys: keys [B] of the draw of the node; consumed.
    leave_keys: keys [B] of the draw of the token, independent of `stop_keys`;
      consumed.
    verifier: the rule; static.
    draft: the drafted tokens [B, N] and their q.
    p_bnv: see `Verifier.stop_probs`.

  Raises:
    ValueError: at trace time, see `check_accepts`.
  """
  check_accepts(verifier, draft.law, draft.tree)
  stop_bn = verifier.stop_probs(draft, p_bnv)
  # A draw never returns an index of probability 0: u < a is strict.
  node_b = draw.categorical(stop_keys, stop_bn)
  leave_bv = verifier.leave_probs(draft, p_bnv, node_b)
  path_bt = draft.path_to(node_b)
  num_accepted_b = (path_bt >= 0).sum(axis=1, dtype=jnp.int32) - 1
  next_token_b = draw.categorical(leave_keys, leave_bv)
  return Verdict(node_b, num_accepted_b, path_bt, next_token_b)
