"""EAGLE-3's loss: the layer drafts in training as it does at inference.

From every place of a text it goes on for a few tokens (Li et al. 2503.01840,
3.2): step 0 reads the target's features, each later one the layer's own output
of the step before, at the same place, beside the text's token. Each is asked
for the target's distribution there; nothing is asked of the features.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting import features
from specsamp.drafting.draft import TokenTree
from specsamp.drafting.eagle import feed_text
from specsamp.drafting.eagle3 import Eagle3Drafter
from specsamp.models import attention
from specsamp.sharding import lookup
from specsamp.sharding.rules import constrain
from specsamp.training.objectives import acceptance
from specsamp.training.objectives.batch import Batch, Weights
from specsamp.training.objectives.depths import Depth, summed
from specsamp.training.objectives.groups import take


class Wanted(NamedTuple):
  """What is asked after each token of a text.

  Attributes:
    logits: float32 [B, T, K], the target's of the tokens that can be drafted.
    normalizer: [B, T], logsumexp of its logits of all tokens.
    best_row: int [B, T], row of its most probable token; K if that has none.
    next_row: likewise of the text's next token.
  """

  logits: jax.Array
  normalizer: jax.Array
  best_row: jax.Array
  next_row: jax.Array


def loss(module, params, target_head, batch: Batch, weights: Weights):
  """Sum over steps of their losses as they weigh, and metrics.

  Only places teach where the target's most probable token, or the text's for a
  loss of the text, is one that can be drafted: others would teach what the
  layer cannot say.

  Args:
    module: an `Eagle3Layer`.
    params: its own, `draft_rows` among them.
    target_head: the target's embedding and LM head.
    batch: the features are those of the module's taps.
    weights: the paper's loss is kl, its decay 0.8 for 7 steps: step j weighs
      0.8^j.
  """
  length = batch.tokens.shape[1] - 1
  outputs = unrolled(
    module,
    params,
    target_head,
    batch.features + batch.noise,
    batch.tokens[:, :-1],
    batch.starts,
    steps(batch.starts.shape[1], weights.unroll, weights.retention),
  )
  wanted = _wanted(module, params, target_head, batch)
  depths = []
  for j, hidden_bmd in enumerate(outputs):
    reads_bm = batch.starts[:, : hidden_bmd.shape[1]] + j
    logits_bmk = module.apply(
      {'params': params}, hidden_bmd, method='row_logits'
    )
    there = Wanted(*(take(array, reads_bm) for array in wanted))
    loss_bm, log_alpha_bm = acceptance.per_position(
      weights.loss,
      logits_bmk,
      there.logits,
      jnp.minimum(there.next_row, module.draft_vocab - 1),
      eta=weights.eta,
      p_normalizer=there.normalizer,
    )
    asked_bm = there.next_row if weights.loss == 'text' else there.best_row
    inside_bm = reads_bm < length
    depths.append(
      Depth(
        loss=loss_bm,
        log_alpha=log_alpha_bm,
        hit=jnp.argmax(logits_bmk, axis=-1) == there.best_row,
        inside=inside_bm,
        teaches=inside_bm & (asked_bm < module.draft_vocab),
      )
    )
  return summed(weights, depths)


def steps(num_starts: int, count: int, retention: float) -> list[int]:
  """Places that have step 0, 1, ..; see `groups.sizes`."""
  return [int(np.ceil(num_starts * retention**j)) for j in range(count)]


def unrolled(
  module, params, target_head, features_bte, tokens_bt, starts_bm, counts
) -> list[jax.Array]:
  """The layer's outputs of step 0, 1, ..: [B, M_j, D] each.

  Output j of place t predicts the token after t + j, whose token it has read.
  It sees the text's pairs up to t and those that it drafted from t: T + j
  scores. What it would read beyond the text is the last token again.

  Args:
    module: an `Eagle3Layer`.
    params: its own.
    target_head: the target's embedding and LM head.
    features_bte: the target's at the tokens.
    tokens_bt: int [B, T].
    starts_bm: int [B, M], the places.
    counts: M_j of each step, static; the first M_j places have it.
  """
  drafter = Eagle3Drafter(
    params=params,
    target_head=target_head,
    module=module,
    tree=TokenTree.chain(1),
    law='iid',
    trained_for='',
  )
  apply = lambda *args, **kwargs: module.apply(
    {'params': params}, *args, **kwargs
  )
  batch, length = tokens_bt.shape
  # As a prompt is read.
  hidden_btd, cache = feed_text(
    drafter,
    module.init_cache(params, batch, length),
    tokens_bt,
    features.shifted(drafter.read(features_bte)),
    jnp.zeros(batch, jnp.int32),
  )
  entries = [
    attention.PrivateEntries(cache.entry(i))
    for i in range(module.config.num_layers)
  ]
  outputs = [take(hidden_btd, starts_bm[:, : counts[0]])]
  for j, count in enumerate(counts[1:], start=1):
    roots_bm = starts_bm[:, :count]
    tokens_bm = take(tokens_bt, roots_bm + j)
    embedded_bmd = drafter.embed(tokens_bm, roots_bm + j)
    entries = [
      entry.replace(
        keys=tuple(array[:, :, :count] for array in entry.keys),
        values=tuple(array[:, :, :count] for array in entry.values),
      )
      for entry in entries
    ]
    pairs_bme = apply(embedded_bmd, outputs[-1][:, :count], method='text')
    hidden_bmd, entries = apply(
      pairs_bme, roots_bm + j, roots_bm, entries, method='step'
    )
    outputs.append(hidden_bmd)
  return outputs


def _wanted(module, params, target_head, batch: Batch) -> Wanted:
  logits_btv = target_head.logits(batch.hidden)
  tokens_k = module.apply({'params': params}, method='row_tokens')
  logits_btk = lookup.along(logits_btv, tokens_k[None, None], axis=2)
  row_of = lambda tokens_bt: jnp.take(
    params['draft_rows'], tokens_bt, mode='clip'
  )
  return Wanted(
    logits=constrain(logits_btk, 'batch', None, 'vocab'),
    normalizer=jax.nn.logsumexp(logits_btv, axis=-1),
    best_row=row_of(jnp.argmax(logits_btv, axis=-1)),
    next_row=row_of(batch.tokens[:, 1:]),
  )
