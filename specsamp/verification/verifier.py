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

  An implementation must be hashable, because it is a static argument of jitted
  functions. It computes in the dtype of p: float32 in decoding, float64 in
  proofs.

  Attributes:
    accepts: laws of the drafts that the rule verifies.
    lossless: True if the emitted tokens follow the target's distribution.
    coupled: True if p is the one-hot winner of its position's race (see
      `sampling.coupling`). Optional.
    reads_parents: True if the rule verifies dynamic trees. Optional.
  """

  accepts: frozenset[Law]
  lossless: bool
  coupled: bool = False
  reads_parents: bool = False

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
    raise NotImplementedError

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
    raise NotImplementedError


def check_inputs(verifier: Verifier, draft: Draft, p_bnv: jax.Array) -> None:
  """Checks at trace time that a rule can verify a draft.

  Raises:
    ValueError: the rule does not accept the draft's law or a dynamic tree, q is
      missing, or the shapes of the draft's arrays and p do not match.
  """
  name = type(verifier).__name__
  if draft.law not in verifier.accepts:
    laws = ' or '.join(map(repr, sorted(verifier.accepts)))
    raise ValueError(
      f'{name} cannot correct this draft: got law {draft.law!r}, expected '
      f'{laws}'
    )
  is_dynamic = isinstance(draft.tree, DynamicTree)
  if is_dynamic and not getattr(verifier, 'reads_parents', False):
    raise ValueError(
      f'{name} cannot correct this draft: got a dynamic tree, expected a '
      'static one, or the verifier naive or gumbel'
    )
  if p_bnv.ndim != 3:
    raise ValueError(f'p: got shape {p_bnv.shape}, expected [B, N, V]')
  batch, _, vocab = p_bnv.shape
  size, internal = draft.tree.size, len(draft.tree.internal)
  if draft.q is None and internal and draft.law != 'deterministic':
    raise ValueError(
      f'draft q: got None, expected the distributions of a {draft.law} draft'
    )
  arrays = {
    'p': (p_bnv, (batch, size, vocab)),
    'draft tokens': (draft.tokens, (batch, size)),
    'draft valid': (draft.valid, (batch, size)),
    'draft parents': (draft.parents, (batch, size)),
    'draft q': (draft.q, (batch, internal, vocab)),
  }
  for what, (array, shape) in arrays.items():
    if array is not None and array.shape != shape:
      raise ValueError(
        f'{what}: got shape {array.shape}, expected {shape} for a tree of '
        f'{size} nodes and a vocabulary of {vocab} tokens'
      )


@functools.lru_cache(maxsize=256)
def check_law(verifier: Verifier, law: Law, tree: TokenTree) -> None:
  """Checks that a rule can verify drafts of this law and tree.

  Raises:
    ValueError: the rule does not accept the law or the tree.
  """
  shaped = jax.ShapeDtypeStruct
  p_bnv = shaped((1, tree.size, 2), jnp.float32)
  q_biv = shaped((1, len(tree.internal), 2), jnp.float32)
  nodes = shaped((1, tree.size), jnp.int32)
  draft = Draft(
    tokens=nodes,
    q=None if law == 'deterministic' else q_biv,
    tree=tree,
    law=law,
    valid=shaped((1, tree.size), bool),
    parents=nodes if isinstance(tree, DynamicTree) else None,
  )
  check_inputs(verifier, draft, p_bnv)
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
    leave_keys: keys [B] of the draw of the token; consumed. The two draws must
      be independent, so the keys must differ from `stop_keys`.
    verifier: the rule; static.
    draft: the drafted tokens [B, N] and their q.
    p_bnv: float [B, N, V], the target's transformed distribution after each
      node.

  Returns:
    The verdict of each row.

  Raises:
    ValueError: at trace time, see `check_inputs`.
  """
  check_inputs(verifier, draft, p_bnv)
  stop_bn = verifier.stop_probs(draft, p_bnv)
  # A draw never returns an index of probability 0: u < a is strict.
  node_b = draw.categorical(stop_keys, stop_bn)
  leave_bv = verifier.leave_probs(draft, p_bnv, node_b)
  path_bt = draft.path_to(node_b)
  return Verdict(
    node=node_b,
    num_accepted=(path_bt >= 0).sum(axis=1, dtype=jnp.int32) - 1,
    path=path_bt,
    next_token=draw.categorical(leave_keys, leave_bv),
  )
