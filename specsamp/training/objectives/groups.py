"""Group-wise training: every position drafts at once (2410.05589, 4.2).

A sequence of T tokens stands with the masks of M of its positions behind
it: T + M k slots. The group of position t is the token t with the masks 1 to k
of t. Token t sees the tokens up to t; mask j of t sees the tokens up to t, and
the masks up to j of its own group, at position t + j. So each group computes
what drafting after token t would, and no group sees another's masks.

Nothing is lost to a group that later masks of its own are left out. Far ones
teach less than near ones and cost as much, so that with a `retention` below 1
fewer groups have them (the conditional drop-token of PARD, An et al.
2504.18583).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting import features
from specsamp.training.objectives import acceptance


class Groups(NamedTuple):
  """What a layer makes of its groups, the tokens' part first.

  Attributes:
    hidden: [B, Q, D], Q = T + M k outputs.
    reads: int [B, Q], the place t + j whose feature an output predicts; the
      next token there is its label. It may lie beyond the sequence.
    number: int [Q], j: 0 for tokens.
  """

  hidden: jax.Array
  reads: jax.Array
  number: np.ndarray


def sizes(num_groups: int, count: int, retention: float = 1.0) -> np.ndarray:
  """Masks of each group, the most first: int [M].

  Args:
    num_groups: M.
    count: k, masks of the first group.
    retention: how many of the groups with mask j have mask j + 1 too; 1 is the
      paper's.
  """
  having_k = np.ceil(num_groups * retention ** np.arange(count))
  group_m = np.arange(num_groups)
  return (group_m[:, None] < having_k[None, :]).sum(axis=1)


def outputs(
  module, params, target_head, features_btd, tokens_bt, starts_bm, masks_m
) -> Groups:
  """One pass over all groups of a batch.

  Args:
    module: `EagleLayer` or one of `drafting.parallel`.
    params: its own.
    target_head: the target's embedding and LM head.
    features_btd: the target's features at the tokens; None for a layer that
      reads none.
    tokens_bt: int [B, T].
    starts_bm: int [B, M], positions that have masks.
    masks_m: masks of each, static, see `sizes`; EAGLE has none.
  """
  batch, length = tokens_bt.shape
  iota = lambda n: np.arange(n, dtype=np.int32)
  positions_bq = jnp.broadcast_to(iota(length), (batch, length))
  seen_bq = positions_bq  # the last token that each slot sees
  # The group of a slot, none for tokens; and its mask's number.
  group_q = np.full(length, -1, np.int32)
  number_q = np.zeros(length, np.int32)
  apply = lambda *args, **kwargs: module.apply(
    {'params': params}, *args, **kwargs
  )
  embedded_btd = target_head.embed(tokens_bt) + target_head.place(positions_bq)
  before_btd = None
  if features_btd is not None:
    before_btd = features.shifted(features_btd)
  x_bqd = apply(embedded_btd, before_btd, method='text')
  if masks_m.any():
    of_q = np.repeat(np.arange(len(masks_m), dtype=np.int32), masks_m)
    start_bq = starts_bm[:, of_q]
    index_q = np.concatenate([iota(count) for count in masks_m])
    ahead_bq = start_bq + 1 + index_q[None]
    masks_bqd = apply(index_q, target_head.place(ahead_bq), method='masks')
    masks_bqd = jnp.broadcast_to(masks_bqd, (batch, *masks_bqd.shape[1:]))
    x_bqd = jnp.concatenate([x_bqd, masks_bqd], axis=1)
    positions_bq = jnp.concatenate([positions_bq, ahead_bq], axis=1)
    seen_bq = jnp.concatenate([seen_bq, start_bq], axis=1)
    group_q = np.concatenate([group_q, of_q])
    number_q = np.concatenate([number_q, 1 + index_q])

  is_token_q = group_q < 0
  own_qq = (group_q[:, None] == group_q[None, :]) & ~is_token_q[None, :]
  own_qq &= number_q[None, :] <= number_q[:, None]
  to_tokens = is_token_q[None, None, :] & (
    jnp.arange(len(group_q), dtype=jnp.int32)[None, None, :]
    <= seen_bq[:, :, None]
  )
  hidden_bqd, _ = apply(
    x_bqd,
    positions_bq,
    mask=to_tokens | own_qq[None],
    slot_positions=positions_bq,
  )
  return Groups(hidden_bqd, positions_bq, number_q)


def by_depth(groups: Groups, values_bq, length: int, count: int):
  """Means of the values of tokens, masks 1, masks 2, ..: [k + 1].

  What would be read beyond the sequence does not count.
  """
  inside_bq = groups.reads < length
  means = [
    mean_where(values_bq, inside_bq & (groups.number == j)[None])
    for j in range(count + 1)
  ]
  return jnp.stack(means)


def expected_length_weights(
  groups: Groups, log_alpha_bq, length: int, count: int
):
  """`acceptance.expected_length_weights` of every output: [B, Q].

  A draft is a token's output and its masks'. Those that were left out, or that
  predict what lies beyond the sequence, count as the others of their depth do.

  Args:
    groups: of the outputs.
    log_alpha_bq: of each.
    length: T.
    count: k, masks of a whole draft.
  """
  number_q = groups.number.astype(np.int32)

  def of_row(reads_q, log_alpha_q):
    # Each draft in a row of its own, whatever it has of it.
    at = (reads_q - number_q, number_q)
    drafts_tj = jnp.zeros((length, count + 1), log_alpha_q.dtype)
    known_tj = jnp.zeros((length, count + 1), bool)
    return (
      drafts_tj.at[at].set(log_alpha_q),
      known_tj.at[at].set(reads_q < length),
    )

  weights_btj = acceptance.expected_length_weights(
    *jax.vmap(of_row)(groups.reads, log_alpha_bq)
  )
  return jax.vmap(lambda row_tj, reads_q: row_tj[reads_q - number_q, number_q])(
    weights_btj, groups.reads
  )


def mean_where(values, where):
  """Mean of the values where this is true; 0 if it is nowhere."""
  total = jnp.sum(jnp.where(where, values, 0))
  return total / jnp.maximum(where.sum(dtype=values.dtype), 1)


def take(array_bt, at_bq):
  """Entries [B, Q, ..] of each row; the last where `at` lies beyond."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode='clip'))(
    array_bt, at_bq
  )
