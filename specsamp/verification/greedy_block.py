"""Greedy multi-path block verification: keeps the best of K paths as a block.

Source: GBV, arXiv 2602.16961.

Drafts: K paths of one length, drawn independently from the root (law `iid`, a
tree `TokenTree.branching((K, 1, 1, ..))`). It is block verification if K = 1.

The rule orders the tokens after a prefix by p / q, and the paths as words in
this order. It keeps the largest path and verifies it as a block against q^G,
the distribution of the kept path's next token. It is exact because q^G is known
and block verification is exact for any known q.

The published rule accepts less than one path does if q is close to p, because
the larger of two tokens is distributed far from both. Two changes avoid that:

* Tokens of about the same p / q form a class. Among tied paths the first wins.
* Only the first k paths that are left at a prefix continue, for the best k.

Both depend only on p, q and the prefix, so q^G is still known. Let w_j be the
probability that j paths are left at a kept prefix, F the q of the classes below
that of x, and c the q of its class. The next kept token x follows ::

  q^G(x) = q(x) sum_j w_j s_j,   s_j = sum_{i < j} (F + c)^i F^(j - 1 - i).

Here s_j c = (F + c)^j - F^j is the probability that the best of j tokens is in
that class, and the first token of the class is x with q(x) / c. The paths left
at the new prefix are those whose token is x. Their number is i with a
probability in proportion to ::

  w'_i = sum_j w_j sum_m C(j, m) F^(j - m) C(m - 1, i - 1)
         q(x)^i (c - q(x))^(m - i),

where m of the j tokens are in the class. All terms are positive, and c - q(x)
is computed as the q of the other tokens.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError
from specsamp.verification import probs, tree_ops
from specsamp.verification.verifier import Verifier

# Borders of the classes of p / q. With two paths of the embedded pair a first
# token is accepted with 0.862, and with 0.860 if all tokens are ordered, whose
# sort takes a CPU many times as long as the rest; with four edges 0.857.
_EDGES = tuple(2 ** (i / 4) for i in range(-7, 9, 2))
# Fewer paths must be better by this number of roundings, so that `stop_probs`
# and `leave_probs` choose the same number among equally good ones.
_ROUNDINGS = 16


class Classes(NamedTuple):
  """M classes of the tokens after a prefix, in ascending order of p / q.

  Attributes:
    class_bv: int32 [B, V], the class of each token.
    below_bm: F, the q of the lower classes.
    upto_bm: F + c, the q of the lower classes and the class itself.
  """

  class_bv: jax.Array
  below_bm: jax.Array
  upto_bm: jax.Array

  def factors(self, left_bk: jax.Array) -> jax.Array:
    """Returns q^G / q of each class, [B, M], given w_1 .. w_K in `left_bk`."""
    terms_bm = power_bm = jnp.ones_like(self.upto_bm)
    factor_bm = left_bk[:, :1] * terms_bm
    for j in range(1, left_bk.shape[1]):
      power_bm = power_bm * self.upto_bm
      terms_bm = terms_bm * self.below_bm + power_bm
      factor_bm += left_bk[:, j, None] * terms_bm
    return factor_bm

  def kept_probs(self, q_bv: jax.Array, left_bk: jax.Array) -> jax.Array:
    """Returns q^G, [B, V], given w_1 .. w_K in `left_bk`."""
    factor_bm = self.factors(left_bk)
    factor_bv = jnp.zeros_like(q_bv)
    for m in range(factor_bm.shape[1]):
      is_class_bv = self.class_bv == m
      factor_bv = jnp.where(is_class_bv, factor_bm[:, m, None], factor_bv)
    return q_bv * factor_bv


def _classify(p_bv: jax.Array, q_bv: jax.Array) -> Classes:
  class_bv = jnp.zeros(p_bv.shape, jnp.int32)
  for edge in _EDGES:
    is_over_bv = (p_bv > 0) & (p_bv >= edge * q_bv)
    class_bv += is_over_bv.astype(jnp.int32)
  masses = [
    jnp.where(class_bv == m, q_bv, 0).sum(axis=1)
    for m in range(len(_EDGES) + 1)
  ]
  upto_bm = jnp.cumsum(jnp.stack(masses, axis=1), axis=1)
  below_bm = jnp.pad(upto_bm[:, :-1], ((0, 0), (1, 0)))
  return Classes(class_bv, below_bm, upto_bm)


class Step(NamedTuple):
  """The kept path at one depth.

  Attributes:
    node_b: int32 [B], the first node with the kept prefix.
    left_bk: w_1 .. w_K, the probabilities that 1 .. K paths continue.
    weight_b: r, the weight of the prefix as a block, see `block`.
    mass_b: sum((r p - q^G)+) after the node.
    follows_b: bool [B], True if a token was drafted after the node.
  """

  node_b: jax.Array
  left_bk: jax.Array
  weight_b: jax.Array
  mass_b: jax.Array
  follows_b: jax.Array


def _choose_count(classes: Classes, goal_bv, q_bv, left_bk):
  """Returns the k that accepts the next token most often, int32 [B].

  Also returns w_1 .. w_K of the first k paths, and sum((r p - q^G)+), [B].
  `goal_bv` is r p.
  """
  max_count = left_bk.shape[1]
  shrink = 1 - _ROUNDINGS * jnp.finfo(q_bv.dtype).eps
  mass_of = lambda left_bk: jnp.maximum(
    goal_bv - classes.kept_probs(q_bv, left_bk), 0
  ).sum(axis=1)
  best_b, best_bk, mass_b = jnp.int32(max_count), left_bk, mass_of(left_bk)
  for count in range(max_count - 1, 0, -1):
    last_b1 = left_bk[:, count - 1 :].sum(axis=1, keepdims=True)
    kept_bk = jnp.concatenate([left_bk[:, : count - 1], last_b1], axis=1)
    fewer_bk = jnp.pad(kept_bk, ((0, 0), (0, max_count - count)))
    fewer_mass_b = mass_of(fewer_bk)
    is_better_b = fewer_mass_b < shrink * mass_b
    best_b = jnp.where(is_better_b, jnp.int32(count), best_b)
    best_bk = jnp.where(is_better_b[:, None], fewer_bk, best_bk)
    mass_b = jnp.where(is_better_b, fewer_mass_b, mass_b)
  return jnp.broadcast_to(best_b, mass_b.shape), best_bk, mass_b


def _left_after(left_bk: jax.Array, below_b, token_b, others_b) -> jax.Array:
  """Returns w'_1 .. w'_K for F, q(x) and c - q(x) of a kept token x."""
  max_count = left_bk.shape[1]
  powers = lambda x_b: [x_b**i for i in range(max_count)]
  below, token, others = map(powers, (below_b, token_b, others_b))
  terms = [
    sum(
      math.comb(j, m)
      * math.comb(m - 1, i - 1)
      * left_bk[:, j - 1]
      * (below[j - m] * token[i - 1] * others[m - i])
      for j in range(i, max_count + 1)
      for m in range(i, j + 1)
    )
    for i in range(1, max_count + 1)
  ]
  after_bk = jnp.stack(terms, axis=1)
  alone_1k = jnp.asarray(np.arange(max_count) == 0, after_bk.dtype)[None]
  total_b1 = after_bk.sum(axis=1, keepdims=True)
  # If the token cannot have been drawn, only its path is left.
  return probs.ratio(after_bk, total_b1, alone_1k)


def _value_at(values_bv: jax.Array, token: jax.Array, otherwise=0) -> jax.Array:
  """Returns the values at tokens [B, K]; `otherwise` outside the vocabulary."""
  size = values_bv.shape[-1]
  values = jnp.take_along_axis(values_bv, jnp.clip(token, 0, size - 1), axis=1)
  return jnp.where((token >= 0) & (token < size), values, otherwise)


def _walk(draft: Draft, p_bnv: jax.Array, path_kt: np.ndarray) -> list[Step]:
  """Returns the kept path of each row, depth by depth."""
  num_paths, dtype, tree = len(path_kt), p_bnv.dtype, draft.tree
  weight_b = jnp.ones_like(p_bnv[:, 0, 0])
  alive_bk = jnp.ones((p_bnv.shape[0], num_paths), bool)
  left_bk, steps = jnp.zeros(alive_bk.shape, dtype), []
  row_n = jnp.asarray(tree_ops.q_rows(tree))
  for depth in range(tree.depth):
    next_k = path_kt[:, depth + 1]
    follows_bk = alive_bk & draft.valid[:, next_k]
    follows_b = follows_bk.any(axis=1)
    if not depth:  # the number of valid paths is known
      num_valid_b = follows_bk.sum(axis=1, dtype=jnp.int32)
      left_bk = jax.nn.one_hot(
        jnp.maximum(num_valid_b - 1, 0), num_paths, dtype=dtype
      )
    among_bk = jnp.where(follows_b[:, None], follows_bk, alive_bk)
    node_b = jnp.asarray(path_kt[:, depth])[jnp.argmax(among_bk, axis=1)]
    p_bv = probs.row_at(p_bnv, node_b)
    q_bv = probs.row_at(draft.q, row_n[node_b]).astype(dtype)
    q_bv = jnp.where(follows_b[:, None], q_bv, 0)
    classes = _classify(p_bv, q_bv)
    goal_bv = weight_b[:, None] * p_bv
    count_b, left_bk, mass_b = _choose_count(classes, goal_bv, q_bv, left_bk)
    steps.append(Step(node_b, left_bk, weight_b, mass_b, follows_b))

    rank_bk = jnp.cumsum(follows_bk, axis=1, dtype=jnp.int32)
    alive_bk = follows_bk & (rank_bk <= count_b[:, None])
    tokens_bk = draft.tokens[:, next_k]
    class_bk = _value_at(classes.class_bv, tokens_bk, -1)
    class_b1 = jnp.where(alive_bk, class_bk, -1).max(axis=1, keepdims=True)
    alive_bk &= class_bk == class_b1
    kept_b1 = jnp.argmax(alive_bk, axis=1)[:, None]
    token_b1 = jnp.take_along_axis(tokens_bk, kept_b1, axis=1)
    alive_bk &= tokens_bk == token_b1

    p_b, q_b = (_value_at(x_bv, token_b1)[:, 0] for x_bv in (p_bv, q_bv))
    kept_b = q_b * _value_at(classes.factors(left_bk), class_b1)[:, 0]
    accepted_b = probs.ratio(jnp.minimum(weight_b * p_b, kept_b), kept_b, 0)
    weight_b = jnp.where(follows_b, accepted_b, 0)
    is_token_bv = probs.is_among(token_b1, p_bv.shape[1])
    is_other_bv = (classes.class_bv == class_b1) & ~is_token_bv
    others_b = jnp.where(is_other_bv, q_bv, 0).sum(axis=1)
    below_b = _value_at(classes.below_bm, class_b1)[:, 0]
    left_bk = _left_after(left_bk, below_b, q_b, others_b)
  node_b = jnp.asarray(path_kt[:, -1])[jnp.argmax(alive_bk, axis=1)]
  ends_b = jnp.zeros(weight_b.shape, bool)
  return [*steps, Step(node_b, left_bk, weight_b, 0 * weight_b, ends_b)]


def _paths(tree: TokenTree) -> np.ndarray:
  """Returns the nodes of each path, the root first, int32 [K, γ + 1]."""
  leaves = sorted(set(range(tree.size)) - set(tree.internal))
  path_kt = tree.paths[leaves]
  if 1 + path_kt[:, 1:].size != tree.size or (path_kt < 0).any():
    raise UserError(
      'GreedyBlockVerifier verifies paths of one length that part at the root, '
      f'such as branching (3, 1, 1): got a tree of {tree.size} nodes, '
      f'{len(leaves)} leaves and depth {tree.depth}'
    )
  return path_kt


@dataclasses.dataclass(frozen=True)
class GreedyBlockVerifier(Verifier):
  """The block rule on the largest of K independent paths.

  It accepts a first token at least as often as the block rule does on one path.
  Below the children of the root, the validity of a node must be the same on all
  paths with the same prefix. A path that ends early is a shorter block.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft, p_bnv):
    """Returns h_i * prod_{j > i} (1 - h_j) on the kept path, else 0, [B, N].

    See `block` for h.
    """
    path_kt = _paths(draft.tree)
    later_b = jnp.ones_like(p_bnv[:, 0, 0])
    stop_bn = jnp.zeros(p_bnv.shape[:2], p_bnv.dtype)
    node_1n = np.arange(draft.tree.size, dtype=np.int32)[None]
    for step in reversed(_walk(draft, p_bnv, path_kt)):
      # As in the block rule: h = M / (M + 1 - r), and r at the end of a draft.
      total_b = (1 - step.weight_b) + step.mass_b
      pass_b = jnp.where(
        step.follows_b, probs.ratio(step.mass_b, total_b, 1), step.weight_b
      )
      is_here_bn = step.node_b[:, None] == node_1n
      stop_bn = jnp.where(is_here_bn, (pass_b * later_b)[:, None], stop_bn)
      later_b = later_b * (1 - pass_b)
    return stop_bn

  def leave_probs(self, draft, p_bnv, node_b):
    """Returns norm((r p - q^G)+) after a node, [B, V]."""
    steps = _walk(draft, p_bnv, _paths(draft.tree))
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    if len(steps) == 1:
      return p_bv
    depth_b = jnp.asarray(draft.tree.depths, jnp.int32)[node_b]
    at_node = lambda values: probs.row_at(jnp.stack(values, axis=1), depth_b)
    left_bk = at_node([step.left_bk for step in steps])
    weight_b1 = at_node([step.weight_b[:, None] for step in steps])
    kept_bv = _classify(p_bv, q_bv).kept_probs(q_bv, left_bk)
    return probs.residual(weight_b1 * p_bv, kept_bv, p_bv)
