"""Greedy multi-path block verification: of several paths the best, as a block.

GBV, arXiv 2602.16961: K paths are drawn independently from the root. Tokens
after a prefix are ordered by p / q, paths as words are, and the largest path is
kept. The law of what is kept is known, and what judges it is block verification
with that law for q.

As published it accepts less than one path does where q is close to p: the law
of the larger one of two tokens is far from both. So tokens whose p / q is about
the same are one class here, and of paths that tie the first is kept; and of the
paths left at a prefix the first k go on, as many as accept the next token most
often. Both depend on p, q and the prefix alone, so that the law is still known.
Let w_j be the chance that j paths are left at a prefix that was kept, F the q
of the classes below that of x and c that of its own. The token x follows ::

  q^G(x) = q(x) sum_j w_j s_j,   s_j = sum_{i < j} (F + c)^i F^(j - 1 - i),

for s_j c = (F + c)^j - F^j is the chance that the best of j is of that class,
and the first of these is x with q(x) / c. The others of its class that hold x
are left with it: of m there are i at all, in proportion to ::

  w'_i = sum_j w_j sum_m C(j, m) F^(j - m) C(m - 1, i - 1)
         q(x)^i (c - q(x))^(m - i).

All terms are positive, and c - q(x) is summed as the q of other tokens.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError
from specsamp.verification import probs
from specsamp.verification.verifier import Verifier

# Between classes of p / q. Of two paths of the embedded pair a first token is
# accepted with 0.862, and with 0.860 by the order of all tokens, whose sort
# takes a CPU many times as long as the rest; with four edges 0.857.
_EDGES = tuple(2 ** (i / 4) for i in range(-7, 9, 2))
# By so many roundings fewer paths must be better: of those that are as good
# `stop_probs` and `leave_probs` have to take the same.
_ROUNDINGS = 16


class Ranking(NamedTuple):
  """The classes of the tokens after a prefix, of ascending p / q.

  Attributes:
    class_bv: int32 [B, V].
    below_bm: q of the lower classes.
    upto_bm: and of the own one.
  """

  class_bv: jax.Array
  below_bm: jax.Array
  upto_bm: jax.Array

  @classmethod
  def of(cls, p_bv: jax.Array, q_bv: jax.Array) -> 'Ranking':
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
    return cls(class_bv, below_bm, upto_bm)

  def factors(self, left_bk: jax.Array) -> jax.Array:
    """q^G / q of each class, [B, M], of the chances w_1 .. w_K."""
    terms_bm = power_bm = jnp.ones_like(self.upto_bm)
    found_bm = left_bk[:, :1] * terms_bm
    for j in range(1, left_bk.shape[1]):
      power_bm = power_bm * self.upto_bm
      terms_bm = terms_bm * self.below_bm + power_bm
      found_bm += left_bk[:, j, None] * terms_bm
    return found_bm

  def law(self, q_bv: jax.Array, left_bk: jax.Array) -> jax.Array:
    """q^G, [B, V]."""
    factor_bm = self.factors(left_bk)
    factor_bv = jnp.zeros_like(q_bv)
    for m in range(factor_bm.shape[1]):
      own_bv = self.class_bv == m
      factor_bv = jnp.where(own_bv, factor_bm[:, m, None], factor_bv)
    return q_bv * factor_bv


class Step(NamedTuple):
  """What is known at a depth of the kept path.

  Attributes:
    node_b: int32 [B], a node there, of the prefix that is kept. Several paths
      may share it: p and q are read at the first one.
    left_bk: w_1 .. w_K, the chances that so many paths go on from it.
    weight_b: r, the chance that the prefix is accepted, given that it was
      kept.
    mass_b: sum((r p - q^G)+) after it.
    follows_b: bool [B], whether a token was drafted after it.
  """

  node_b: jax.Array
  left_bk: jax.Array
  weight_b: jax.Array
  mass_b: jax.Array
  follows_b: jax.Array


def _first(left_bk: jax.Array, count: int) -> jax.Array:
  """w_1 .. w_K of the first `count` paths of those that are left."""
  most = left_bk.shape[1]
  last_b1 = left_bk[:, count - 1 :].sum(axis=1, keepdims=True)
  kept = jnp.concatenate([left_bk[:, : count - 1], last_b1], axis=1)
  return jnp.pad(kept, ((0, 0), (0, most - count)))


def _enter(ranking: Ranking, goal_bv, q_bv, left_bk):
  """How many paths go on, so that the next token is accepted most often.

  Args:
    ranking: of the tokens.
    goal_bv: r p.
    q_bv: what the next tokens were drawn from.
    left_bk: w of all that are left.

  Returns:
    Their number k, int32 [B], w of the first k, and sum((r p - q^G)+).
  """
  most = left_bk.shape[1]
  fewer = 1 - _ROUNDINGS * jnp.finfo(q_bv.dtype).eps
  mass = lambda left_bk: jnp.maximum(
    goal_bv - ranking.law(q_bv, left_bk), 0
  ).sum(axis=1)
  best_b, best_bk, mass_b = jnp.int32(most), left_bk, mass(left_bk)
  for count in range(most - 1, 0, -1):
    found_bk = _first(left_bk, count)
    found_b = mass(found_bk)
    better_b = found_b < fewer * mass_b
    best_b = jnp.where(better_b, jnp.int32(count), best_b)
    best_bk = jnp.where(better_b[:, None], found_bk, best_bk)
    mass_b = jnp.where(better_b, found_b, mass_b)
  return jnp.broadcast_to(best_b, mass_b.shape), best_bk, mass_b


def _left_after(left_bk: jax.Array, below_b, own_b, others_b) -> jax.Array:
  """w' of a token of which own_b is q, others_b that of others of its class."""
  most = left_bk.shape[1]
  powers = lambda x_b: [x_b**i for i in range(most)]
  below, own, others = map(powers, (below_b, own_b, others_b))
  found = [
    sum(
      math.comb(j, m)
      * math.comb(m - 1, i - 1)
      * left_bk[:, j - 1]
      * (below[j - m] * own[i - 1] * others[m - i])
      for j in range(i, most + 1)
      for m in range(i, j + 1)
    )
    for i in range(1, most + 1)
  ]
  found_bk = jnp.stack(found, axis=1)
  alone_1k = jnp.asarray(np.arange(most) == 0, found_bk.dtype)[None]
  total_b1 = found_bk.sum(axis=1, keepdims=True)
  # Of what cannot have been drawn nothing is left but itself.
  return jnp.where(total_b1 > 0, probs.ratio(found_bk, total_b1, 0), alone_1k)


def _at(values_bv: jax.Array, token: jax.Array, otherwise=0) -> jax.Array:
  """[B, K] of tokens [B, K]; `otherwise` outside of the vocabulary."""
  size = values_bv.shape[-1]
  found = jnp.take_along_axis(values_bv, jnp.clip(token, 0, size - 1), axis=1)
  return jnp.where((token >= 0) & (token < size), found, otherwise)


def _walk(draft: Draft, p_bnv: jax.Array, path_kt: np.ndarray) -> list[Step]:
  """Keeps a path, token by token; what is known at each depth."""
  most, dtype, tree = len(path_kt), p_bnv.dtype, draft.tree
  weight_b = jnp.ones_like(p_bnv[:, 0, 0])
  alive_bk = jnp.ones((p_bnv.shape[0], most), bool)
  left_bk, steps = jnp.zeros(alive_bk.shape, dtype), []
  row_n = np.zeros(tree.size, np.int32)
  row_n[list(tree.internal)] = np.arange(len(tree.internal))
  for depth in range(tree.depth):
    next_k = path_kt[:, depth + 1]
    follows_bk = alive_bk & draft.valid[:, next_k]
    follows_b = follows_bk.any(axis=1)
    if not depth:  # as many as there are
      number_b = follows_bk.sum(axis=1, dtype=jnp.int32)
      left_bk = jax.nn.one_hot(jnp.maximum(number_b - 1, 0), most, dtype=dtype)
    among_bk = jnp.where(follows_b[:, None], follows_bk, alive_bk)
    node_b = jnp.asarray(path_kt[:, depth])[jnp.argmax(among_bk, axis=1)]
    p_bv = probs.row_at(p_bnv, node_b)
    q_bv = probs.row_at(draft.q, jnp.asarray(row_n)[node_b]).astype(dtype)
    q_bv = jnp.where(follows_b[:, None], q_bv, 0)
    ranking = Ranking.of(p_bv, q_bv)
    goal_bv = weight_b[:, None] * p_bv
    count_b, left_bk, mass_b = _enter(ranking, goal_bv, q_bv, left_bk)
    steps.append(Step(node_b, left_bk, weight_b, mass_b, follows_b))

    turn_bk = jnp.cumsum(follows_bk, axis=1, dtype=jnp.int32)
    alive_bk = follows_bk & (turn_bk <= count_b[:, None])
    tokens_bk = draft.tokens[:, next_k]
    class_bk = _at(ranking.class_bv, tokens_bk, -1)
    class_b1 = jnp.where(alive_bk, class_bk, -1).max(axis=1, keepdims=True)
    alive_bk &= class_bk == class_b1
    kept_b1 = jnp.argmax(alive_bk, axis=1)[:, None]
    token_b1 = jnp.take_along_axis(tokens_bk, kept_b1, axis=1)
    alive_bk &= tokens_bk == token_b1

    p_b, q_b = (_at(x_bv, token_b1)[:, 0] for x_bv in (p_bv, q_bv))
    factor_b = _at(ranking.factors(left_bk), class_b1)[:, 0]
    accepted_b = jnp.minimum(weight_b * p_b, q_b * factor_b)
    weight_b = jnp.where(
      follows_b, probs.ratio(accepted_b, q_b * factor_b, 0), 0
    )
    is_own_bv = probs.is_among(token_b1, p_bv.shape[1])
    is_other_bv = (ranking.class_bv == class_b1) & ~is_own_bv
    others_b = jnp.where(is_other_bv, q_bv, 0).sum(axis=1)
    below_b = _at(ranking.below_bm, class_b1)[:, 0]
    left_bk = _left_after(left_bk, below_b, q_b, others_b)
  node_b = jnp.asarray(path_kt[:, -1])[jnp.argmax(alive_bk, axis=1)]
  none_b = jnp.zeros(weight_b.shape, bool)
  return [*steps, Step(node_b, left_bk, weight_b, 0 * weight_b, none_b)]


def _paths(tree: TokenTree) -> np.ndarray:
  """int32 [K, γ + 1], the nodes of each path, the root first.

  Raises:
    UserError: the tree is no paths of one length, disjoint below the root.
  """
  leaves = sorted(set(range(tree.size)) - set(tree.internal))
  path_kt = tree.paths[leaves]
  if 1 + path_kt[:, 1:].size != tree.size or (path_kt < 0).any():
    raise UserError(
      'GreedyBlockVerifier verifies paths of one length that part at the root, '
      'such as those of branching (3, 1, 1): got a tree of '
      f'{tree.size} nodes, {len(leaves)} leaves and depth {tree.depth}'
    )
  return path_kt


@dataclasses.dataclass(frozen=True)
class GreedyBlockVerifier(Verifier):
  """Block verification of the largest of K independent paths.

  Trees that are paths of one length from the root, `TokenTree.branching((K, 1,
  1, ..))`. With one path it is the block rule. Of the first token, which one
  path accepts with sum(min(p, q)), never less is accepted.

  Which children of the root are valid may differ between rows. Below, a node's
  validity must be the same for all paths of one prefix: a path that ends there
  is a shorter block.
  """

  accepts: ClassVar[frozenset[Law]] = frozenset({'iid'})
  lossless: ClassVar[bool] = True

  def stop_probs(self, draft: Draft, p_bnv: jax.Array) -> jax.Array:
    """[B, N]: h_i * prod_{j > i} (1 - h_j) on the kept path, 0 elsewhere."""
    path_kt = _paths(draft.tree)
    later_b = jnp.ones_like(p_bnv[:, 0, 0])
    stop_bn = jnp.zeros(p_bnv.shape[:2], p_bnv.dtype)
    node_1n = np.arange(draft.tree.size, dtype=np.int32)[None]
    for step in reversed(_walk(draft, p_bnv, path_kt)):
      # As in the block rule: h = M / (M + 1 - r), at the end of a draft r.
      total_b = (1 - step.weight_b) + step.mass_b
      pass_b = jnp.where(
        step.follows_b, probs.ratio(step.mass_b, total_b, 1), step.weight_b
      )
      here_bn = step.node_b[:, None] == node_1n
      stop_bn = jnp.where(here_bn, (pass_b * later_b)[:, None], stop_bn)
      later_b = later_b * (1 - pass_b)
    return stop_bn

  def leave_probs(
    self, draft: Draft, p_bnv: jax.Array, node_b: jax.Array
  ) -> jax.Array:
    """[B, V]: norm((r p - q^G)+) after `node_b`, or p where no draft follows.

    Where no probability is left (a node that a row never stops at, rounding
    aside) it is p.
    """
    steps = _walk(draft, p_bnv, _paths(draft.tree))
    p_bv, q_bv = probs.rows_at(draft, p_bnv, node_b)
    if len(steps) == 1:
      return p_bv
    depth_b = jnp.asarray(draft.tree.depths, jnp.int32)[node_b]

    def here(values: Sequence[jax.Array]) -> jax.Array:
      return probs.row_at(jnp.stack(values, axis=1), depth_b)

    left_bk = here([step.left_bk for step in steps])
    weight_b1 = here([step.weight_b[:, None] for step in steps])
    law_bv = Ranking.of(p_bv, q_bv).law(q_bv, left_bk)
    return probs.residual(weight_b1 * p_bv, law_bv, p_bv)
