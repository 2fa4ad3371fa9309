"""A verifier is a pair of distributions: where to stop, what to emit there.

Every lossless rule of the field is such a pair, so that its losslessness can
be computed: the sum over all drafts of P(draft) * stop * leave is the target's
own distribution. The drawing, and so the randomness, is shared by all rules.
"""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from specsamp.drafting.draft import (
  Draft,
  DynamicTree,
  Law,
  TokenTree,
  Verdict,
)
from specsamp.errors import UserError
from specsamp.sampling import draw


class Verifier(Protocol):
  """A verification rule: pure functions of one round; no model, no key.

  An implementation is hashable, so that it can be a static argument of a jit,
  and computes in the dtype of p (float32 in production, float64 in proofs).

  Attributes:
    accepts: which `Draft.law` the rule can correct; of a rule that is not
      lossless, those that it takes.
    lossless: whether the emitted tokens follow the target's distribution.
    coupled: whether p is given as the winner of its position's race, a one-hot
      (see `sampling.coupling`); False if left out.
    reads_parents: whether it takes trees whose shape the draft chose; False if
      left out.
  """

  accepts: frozenset[Law]
  lossless: bool
  coupled: bool = False
  reads_parents: bool = False

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """Returns the probability to stop at each node of the drafted tree.

    The tree may be a root alone, the empty draft: then the row is [1].

    Args:
      draft: the drafted tokens [B, N] and their q.
      p_bnv: float [B, N, V], the target's distribution after each node,
        transformed.

    Returns:
      Float [B, N]. Each row is a distribution over the nodes: entries of at
      least 0 that sum to 1.
    """
    raise NotImplementedError

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """The distribution [B, V] of the token emitted at `node_b`, int [B].

    After a rejection it is the residual distribution; after a full acceptance
    the target's own, of which the bonus token is drawn.
    """
    raise NotImplementedError


def check(verifier: Verifier, draft: Draft, p_bnv: jax.Array) -> None:
  """Refuses a round that `verifier` would get wrong; costs nothing at run time.

  Raises:
    ValueError: a `Draft.law` that it cannot correct, or shapes of tokens,
      validity, q and p that do not fit the tree and each other.
  """
  name = type(verifier).__name__
  if draft.law not in verifier.accepts:
    raise ValueError(
      f'{name} cannot correct this draft: got law {draft.law!r}, expected '
      f'{" or ".join(map(repr, sorted(verifier.accepts)))}'
    )
  if isinstance(draft.tree, DynamicTree) and not getattr(
    verifier, 'reads_parents', False
  ):
    raise ValueError(
      f'{name} cannot correct this draft: got a tree of a shape that it chose, '
      'which naive and gumbel read'
    )
  if p_bnv.ndim != 3:
    raise ValueError(f'p: got shape {p_bnv.shape}, expected [B, N, V]')
  batch, _, vocab = p_bnv.shape
  size, internal = draft.tree.size, len(draft.tree.internal)
  expected = {
    'p': (p_bnv, (batch, size, vocab)),
    'draft tokens': (draft.tokens, (batch, size)),
    'draft valid': (draft.valid, (batch, size)),
  }
  if draft.parents is not None:
    expected['draft parents'] = (draft.parents, (batch, size))
  if draft.q is not None:
    expected['draft q'] = (draft.q, (batch, internal, vocab))
  elif internal and draft.law != 'deterministic':
    raise ValueError(
      f'draft q: got None, expected the distributions of a {draft.law} draft'
    )
  for what, (array, shape) in expected.items():
    if array.shape != shape:
      raise ValueError(
        f'{what}: got shape {array.shape}, expected {shape} '
        f'for a tree of {size} nodes and {vocab} tokens of vocabulary'
      )


@functools.lru_cache(maxsize=256)
def check_law(verifier: Verifier, law: Law, tree: TokenTree) -> None:
  """Refuses a kind of draft that `verifier` would get wrong, ahead of any.

  Raises:
    ValueError: a `Draft.law` that it cannot correct, or a tree of a shape that
      it does not read.
  """
  vocab = 2
  shaped = jax.ShapeDtypeStruct
  p_bnv = shaped((1, tree.size, vocab), jnp.float32)
  nodes = shaped((1, tree.size), jnp.int32)
  draft = Draft(
    tokens=nodes,
    q=None
    if law == 'deterministic'
    else shaped((1, len(tree.internal), vocab), jnp.float32),
    tree=tree,
    law=law,
    valid=shaped((1, tree.size), bool),
    parents=nodes if isinstance(tree, DynamicTree) else None,
  )
  check(verifier, draft, p_bnv)
  jax.eval_shape(verifier.stop_probs, draft, p_bnv)


def is_coupled(verifier: Verifier) -> bool:
  """See `Verifier.coupled`, of which a rule of a user's own need not know."""
  return getattr(verifier, 'coupled', False)


def check_chain(verifier: Verifier, draft: Draft) -> None:
  """Refuses a draft that is not a chain, for the rules that read no other.

  Raises:
    UserError: the draft's tree is not a chain.
  """
  if not draft.tree.is_chain:
    raise UserError(
      f'{type(verifier).__name__} verifies chains: got a tree of '
      f'{draft.tree.size} nodes, {draft.tree.width} candidates at most, '
      'expected one of a node a level, or a verifier of trees, such as '
      'multi_candidate'
    )


def draw_verdict(
  stop_keys: jax.Array,
  leave_keys: jax.Array,
  verifier: Verifier,
  draft: Draft,
  p_bnv: jax.Array,
) -> Verdict:
  """Draws the node to stop at, then the token to emit there.

  A row's verdict depends on its own keys, draft and p only.

  Args:
    stop_keys: keys [B] of the draw of the node; consumed.
    leave_keys: keys [B] of the draw of the token; consumed. They must differ
      from `stop_keys`: the two draws are independent.
    verifier: the rule; static.
    draft: the drafted tokens [B, N] and their q.
    p_bnv: float [B, N, V], the target's distribution after each node,
      transformed.

  Returns:
    The verdict of each row.

  Raises:
    ValueError: at trace time, a draft that the verifier cannot correct or
      shapes that do not fit (see `check`).
  """
  check(verifier, draft, p_bnv)
  stop_bn = verifier.stop_probs(draft, p_bnv)
  # A draw never lands on a probability of 0: u < a is strict.
  node_b = draw.inverse_cdf(draw.uniform(stop_keys), stop_bn)
  leave_bv = verifier.leave_probs(draft, p_bnv, node_b)
  path_bt = draft.path_to(node_b)
  return Verdict(
    node=node_b,
    num_accepted=(path_bt >= 0).sum(axis=1, dtype=jnp.int32) - 1,
    path=path_bt,
    next_token=draw.categorical(leave_keys, leave_bv),
  )
