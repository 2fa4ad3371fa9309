"""Losses of Medusa, Hydra and EAGLE, and of ParallelSpec's drafters.

Heads of Medusa (2401.10774, 2.2.1) and Hydra (2402.05109, 3) minimize the sum
of their losses. EAGLE (2401.15077, 4.2) has a regression of the feature and
cross-entropy with the target's distribution, which also train a module of
multi-token prediction. ParallelSpec (2410.05589, 4.3) sums EAGLE's losses over
a group, or Medusa's losses of the text. Any loss of `acceptance` can replace
the cross-entropy.

Group-wise training lets every position draft at once (2410.05589, 4.2). A pass
has the T tokens of a sequence and after them k masks for each of M positions:
T + M k slots. The group of position t is token t and its masks 1 to k. Token t
sees the tokens up to t. Mask j of t sees the tokens up to t and the masks up to
j of its group, at position t + j. So each group computes what drafting after
token t would, and no group sees the masks of another one.

A group loses nothing if its last masks are omitted. They teach less than the
first ones and cost as much, so with a `retention` below 1 fewer groups have
them (the conditional drop-token of PARD, An et al. 2504.18583).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting import features
from specsamp.training.objectives import depths


def heads(module, params, target_head, batch, config):
  """Sums the losses of all heads of Medusa or Hydra.

  Head j reads the target's feature at t; Hydra's also reads the tokens t + 1 to
  t + j. Its label is token t + 1 + j, or the target's distribution after the
  text up to t + j. Means are over the positions that have such a token. The
  papers use the loss `text` and a decay of 0.8: head j weighs 0.8^j.
  """
  tokens, starts_bm, features_btd = batch.tokens, batch.starts, batch.features
  length, width = features_btd.shape[1:]
  labels = depths.Labels.of(batch)
  rows = lambda array: array.reshape(-1, *array.shape[2:])
  feature_rd = rows(depths.take(features_btd, starts_bm))
  distances = range(1, module.num_heads + 1)
  embedded_bjmd = [
    target_head.embed(depths.take(tokens, starts_bm + j)) for j in distances
  ]
  path_rjd = rows(jnp.stack(embedded_bjmd, axis=2))
  by_depth = []
  for j in distances:
    hidden_rd = module.apply({'params': params}, feature_rd, path_rjd, j)
    hidden_bmd = hidden_rd.reshape(*starts_bm.shape, width)
    by_depth.append(
      labels.compare(config, target_head, hidden_bmd, starts_bm + j, j)
    )
  return depths.weighted_sum(config, by_depth, length, first=1)


def on_tokens(module, params, target_head, batch, config):
  """Sums the losses of a layer on tokens alone, at the root and every mask.

  ParallelSpec uses the loss `text` and a decay of 0.8: mask j weighs 0.8^j.
  This loss reads no target, so the metric `agreement` compares with the text.
  Other losses compare with the target's distribution after all tokens up to the
  mask. The drafter did not see all of these tokens.
  """
  outputs = group_outputs(
    module,
    params,
    target_head,
    None,
    batch.tokens[:, :-1],
    batch.starts,
    config.retention,
  )
  whole = depths.Labels.of(batch).compare(
    config, target_head, outputs.hidden, outputs.reads, outputs.number[None]
  )
  length = batch.tokens.shape[1] - 1
  return depths.weighted_sum(config, outputs.by_depth(whole), length)


def eagle(module, params, target_head, batch, config):
  """Sums SmoothL1(feature) + cross_entropy * loss(p, q) over the groups.

  EAGLE uses the loss `kl` with a weight of 0.1; ParallelSpec uses a decay of 1.
  Further metrics, over the tokens that teach and not over masks, are
  `regression` and the loss of the distribution under its name.
  """
  features_btd, length = batch.features, batch.features.shape[1]
  outputs = group_outputs(
    module,
    params,
    target_head,
    features_btd + batch.noise,
    batch.tokens[:, :-1],
    batch.starts,
    config.retention,
  )
  label_bqd = depths.take(features_btd, outputs.reads).astype(jnp.float32)
  error_bqd = jnp.abs(outputs.hidden.astype(jnp.float32) - label_bqd)
  smooth_bq = jnp.mean(
    jnp.where(error_bqd < 1, 0.5 * error_bqd**2, error_bqd - 0.5), axis=-1
  )
  whole = depths.Labels.of(batch).compare(
    config, target_head, outputs.hidden, outputs.reads, outputs.number[None]
  )
  of_tokens = {
    name: depths.mean_where(loss_bq[:, :length], whole.teaches[:, :length])
    for name, loss_bq in (('regression', smooth_bq), (config.loss, whole.loss))
  }
  loss_bq = smooth_bq + config.cross_entropy_weight * whole.loss
  by_depth = outputs.by_depth(whole._replace(loss=loss_bq))
  total, metrics = depths.weighted_sum(config, by_depth, length)
  return total, metrics | of_tokens


class Groups(NamedTuple):
  """Outputs of a layer for groups, first those of the tokens.

  Attributes:
    hidden: [B, Q, D], Q = T + M k outputs.
    reads: int [B, Q], the position t + j whose feature an output predicts; the
      next token there is its label. It may be beyond the sequence.
    number: int [Q], j: 0 for tokens.
  """

  hidden: jax.Array
  reads: jax.Array
  number: np.ndarray

  def by_depth(self, tree: Any) -> list[Any]:
    """Splits a tree of arrays [B, Q] into one tree for tokens, one per mask."""
    return [
      jax.tree.map(lambda x, j=j: x[:, self.number == j], tree)
      for j in range(self.number.max() + 1)
    ]


def group_sizes(num_groups: int, count: int, retention: float) -> np.ndarray:
  """Returns the number of masks of each group, in falling order: int [M].

  Args:
    num_groups: M.
    count: k, masks of the first group.
    retention: share of the groups with mask j that also have mask j + 1.
  """
  having_k = np.ceil(num_groups * retention ** np.arange(count))
  group_m = np.arange(num_groups)
  return (group_m[:, None] < having_k[None, :]).sum(axis=1)


def group_outputs(
  module, params, target_head, features_btd, tokens_bt, starts_bm, retention
) -> Groups:
  """Runs one pass over all groups of a batch.

  Args:
    module: `EagleLayer` or a layer of `drafting.parallel`.
    params: parameters of the module.
    target_head: the target's embedding and LM head.
    features_btd: the target's features at the tokens; None for a layer that
      reads no features.
    tokens_bt: int [B, T].
    starts_bm: int [B, M], positions that have masks.
    retention: see `group_sizes`.
  """
  batch, length = tokens_bt.shape
  masks_m = group_sizes(starts_bm.shape[1], module.num_masks, retention)
  iota = lambda n: np.arange(n, dtype=np.int32)
  positions_bq = jnp.broadcast_to(iota(length), (batch, length))
  seen_bq = positions_bq  # the last token that each slot sees
  group_q = np.full(length, -1, np.int32)  # -1 for tokens
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
    mask_group_q = np.repeat(iota(len(masks_m)), masks_m)
    start_bq = starts_bm[:, mask_group_q]
    index_q = np.concatenate([iota(count) for count in masks_m])
    ahead_bq = start_bq + 1 + index_q[None]
    masks_bqd = apply(index_q, target_head.place(ahead_bq), method='masks')
    masks_bqd = jnp.broadcast_to(masks_bqd, (batch, *masks_bqd.shape[1:]))
    x_bqd = jnp.concatenate([x_bqd, masks_bqd], axis=1)
    positions_bq = jnp.concatenate([positions_bq, ahead_bq], axis=1)
    seen_bq = jnp.concatenate([seen_bq, start_bq], axis=1)
    group_q = np.concatenate([group_q, mask_group_q])
    number_q = np.concatenate([number_q, 1 + index_q])

  is_token_q = group_q < 0
  same_group_qq = (group_q[:, None] == group_q[None, :]) & ~is_token_q[None, :]
  same_group_qq &= number_q[None, :] <= number_q[:, None]
  to_tokens_bqq = is_token_q[None, None, :] & (
    jnp.arange(len(group_q), dtype=jnp.int32)[None, None, :]
    <= seen_bq[:, :, None]
  )
  hidden_bqd, _ = apply(
    x_bqd,
    positions_bq,
    mask=to_tokens_bqq | same_group_qq[None],
    slot_positions=positions_bq,
  )
  return Groups(hidden_bqd, positions_bq, number_q)
