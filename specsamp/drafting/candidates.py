"""From a drafter's logits to the candidates of nodes, level by level."""

import numbers
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.errors import UserError, check_name
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.transforms import SamplingParams


def pick(
  logits_bwv,
  uniform_bwc,
  sampling: SamplingParams,
  law: Law,
  handicap_bv=None,
  counts_w: Sequence[int] | None = None,
  *,
  is_confidence: bool = False,
):
  """Candidates of W nodes, their validity, both [B, W, C], and q [B, W, V].

  Rows of temperature 0 take the C most probable tokens, and report q of
  temperature 1: their target's p is a one-hot, of which every verifier emits
  the argmax, whatever was drafted. A single one's is the one-hot that it is
  drawn from, less to compute, unless it is asked for as a confidence.

  Args:
    logits_bwv: the drafter's, after each node.
    uniform_bwc: numbers in [0, 1), one for each candidate.
    sampling: values per row; q is the distribution after this transform.
    law: how the candidates of a node are chosen.
    handicap_bv: of the race of this depth, for a coupled drafter.
    counts_w: how many of its C candidates each node keeps, the first ones; None
      is all. Their last one is drawn with the last of its numbers.
    is_confidence: whether q tells how probable a single greedy candidate was.
  """
  batch, width, count = uniform_bwc.shape
  vocab = logits_bwv.shape[-1]
  greedy_b = sampling.broadcast(batch).temperature == 0
  several = count > 1 or law == 'deterministic' or is_confidence
  if several:
    sampling = _without_cuts(sampling.broadcast(batch), greedy_b)
  q_bwv = transforms.probabilities(logits_bwv, sampling)
  q_rv = q_bwv.reshape(-1, vocab)

  def most_probable():
    speed_bwv = q_bwv
    if handicap_bv is not None:
      speed_bwv = jnp.where(
        greedy_b[:, None, None],
        q_bwv,
        coupling.speeds(q_bwv, handicap_bv[:, None]),
      )
    best, tokens = draw.largest(speed_bwv, count)
    return tokens, best > 0

  def drawn():
    uniform_rc = uniform_bwc.reshape(-1, count)
    if law == 'iid' or count == 1:
      each = jax.vmap(draw.inverse_cdf, in_axes=(1, None), out_axes=1)
      tokens = each(uniform_rc, q_rv)
      valid = jnp.ones(tokens.shape, bool)
    elif law == 'top_plus_one':
      counts_bw = jnp.broadcast_to(
        jnp.asarray([count] * width if counts_w is None else counts_w),
        (batch, width),
      )
      tokens, valid = draw.top_plus_one(
        uniform_rc[:, -1], q_rv, counts_bw.reshape(-1) - 1, count - 1
      )
    else:
      tokens, valid = draw.without_replacement(uniform_rc, q_rv)
    shape = (batch, width, count)
    return tokens.reshape(shape), valid.reshape(shape)

  if law == 'deterministic':
    tokens, valid = most_probable()
  elif not several:
    tokens, valid = drawn()
  else:
    greedy_b11 = greedy_b[:, None, None]
    tokens, valid = jax.lax.cond(
      greedy_b.any(),
      lambda: jax.tree.map(
        lambda a, b: jnp.where(greedy_b11, a, b), most_probable(), drawn()
      ),
      drawn,
    )
  return tokens, valid, q_bwv


def _without_cuts(sampling: SamplingParams, where_b) -> SamplingParams:
  """Temperature 1 and no cuts in these rows."""
  default = SamplingParams().broadcast(where_b.shape[0])
  return jax.tree.map(
    lambda value, plain: jnp.where(where_b, plain, value), sampling, default
  )


def grow(
  tree: TokenTree,
  law: Law,
  sampling: SamplingParams,
  root_b1,
  uniform_bk,
  logits_b1v,
  feed: Callable[[Any, int, Any], tuple[Any, Any]],
  carry: Any,
  handicap_bgv=None,
) -> tuple[Draft, Any]:
  """Drafts a tree level by level, all nodes of a level at once.

  Args:
    tree: numbered breadth first.
    law: how the candidates of a node are chosen.
    sampling: values per row.
    root_b1: int [B, 1], the root's token.
    uniform_bk: numbers in [0, 1), one for each drafted node.
    logits_b1v: the drafter's, after the root.
    feed: (carry, depth, tokens [B, W]) -> carry, logits [B, W, V], after the W
      nodes of this depth that have children.
    carry: what `feed` carries.
    handicap_bgv: of the races, for a coupled drafter.

  Returns:
    The draft, and the last carry.
  """
  batch = root_b1.shape[0]
  internal = np.asarray(tree.internal)
  depths_i = np.asarray(tree.depths)[internal]
  logits_bwv = logits_b1v
  tokens, valids, probs = [], [], []
  for depth in range(tree.depth):
    # Nodes of this level that have children, and a table of their children; a
    # short row of the table draws more than it needs, the last one repeated.
    level_w = internal[depths_i == depth]
    children = [tree.children(node) for node in level_w]
    width = max(map(len, children))
    table_wc = np.asarray(
      [c + (c[-1],) * (width - len(c)) for c in children], np.int32
    )
    kept = np.flatnonzero([i < len(c) for c in children for i in range(width)])
    token_bwc, valid_bwc, q_bwv = pick(
      logits_bwv,
      uniform_bk[:, table_wc - 1],
      sampling,
      law,
      None if handicap_bgv is None else handicap_bgv[:, depth],
      tuple(map(len, children)),
    )
    tokens.append(token_bwc.reshape(batch, -1)[:, kept])
    valids.append(valid_bwc.reshape(batch, -1)[:, kept])
    probs.append(q_bwv)
    if depth + 1 < tree.depth:
      fed = internal[depths_i == depth + 1] - min(map(min, children))
      carry, logits_bwv = feed(carry, depth + 1, tokens[-1][:, fed])
  concatenate = lambda parts: jnp.concatenate(parts, axis=1)
  draft = draft_of(
    tree, law, root_b1, *map(concatenate, (tokens, valids, probs))
  )
  return draft, carry


def grow_at_once(
  tree: TokenTree,
  law: Law,
  sampling: SamplingParams,
  root_b1,
  uniform_bk,
  logits_bgv,
) -> Draft:
  """Drafts a tree whose q depend on the depth alone.

  Nodes of a level have one q, but candidates of their own: a verifier that
  has turned down a token under one parent would know it under another.

  Args:
    tree: numbered breadth first.
    law: how the candidates of a node are chosen.
    sampling: values per row.
    root_b1: int [B, 1], the root's token.
    uniform_bk: numbers in [0, 1), one for each drafted node.
    logits_bgv: the drafter's, for the tokens of each depth.
  """
  if tree.is_chain:
    tokens, valid, q = pick(logits_bgv, uniform_bk[:, :, None], sampling, law)
    return draft_of(tree, law, root_b1, tokens[:, :, 0], valid[:, :, 0], q)

  def feed(carry, depth, tokens_bw):
    shape = (*tokens_bw.shape, logits_bgv.shape[-1])
    return carry, jnp.broadcast_to(logits_bgv[:, depth, None], shape)

  return grow(
    tree, law, sampling, root_b1, uniform_bk, logits_bgv[:, :1], feed, None
  )[0]


def draft_of(tree, law, root_b1, tokens_bk, valid_bk, q_biv) -> Draft:
  """The draft of a root and what was drafted after it."""
  return Draft(
    tokens=jnp.concatenate([root_b1, tokens_bk], axis=1),
    q=None if law == 'deterministic' else q_biv,
    tree=tree,
    law=law,
    valid=jnp.pad(valid_bk, ((0, 0), (1, 0)), constant_values=True),
  )


def check_shape(shape: int | TokenTree, law: Law) -> TokenTree:
  """The tree of a draft that `grow` can grow.

  Args:
    shape: a draft length, or a tree.
    law: how its candidates are chosen.

  Raises:
    UserError: a draft length below 1, a tree that is not numbered breadth
      first, or an unknown law.
  """
  if not isinstance(shape, TokenTree):
    if not isinstance(shape, numbers.Integral):
      raise UserError(
        f'shape: got {shape!r}, expected a draft length or a TokenTree, such '
        'as TokenTree.branching((4, 2))'
      )
    if shape < 1:
      raise UserError(f'draft length must be at least 1, got {shape}')
    try:
      shape = TokenTree.chain(shape)
    except ValueError as error:
      raise UserError(str(error)) from None
  if shape.size < 2 or not shape.is_breadth_first:
    raise UserError(
      'the tree of a draft must have a node below the root and be numbered '
      f'breadth first, got parents {shape.parents}'
    )
  check_name('law', law, get_args(Law))
  return shape
