"""Loss of EAGLE-3: in training the layer drafts as it does at inference.

From every start in a text the layer drafts a few steps (Li et al. 2503.01840,
3.2). Step 0 reads the target's features. Each later step reads the layer's
output of the step before, at the same position, next to the text's token. The
label of each step is the target's distribution; features are not compared.
"""

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
from specsamp.training.objectives import depths


def loss(module, params, target_head, batch, config):
  """Sums the losses of all steps.

  A position has a loss only if the layer can draft its label: the target's most
  probable token, or the text's token for the loss `text`. The layer cannot
  express other labels. The paper uses the loss `kl` and a decay of 0.8 for 7
  steps: step j weighs 0.8^j.
  """
  length, count = batch.tokens.shape[1] - 1, batch.starts.shape[1]
  hidden_by_step = unrolled(
    module,
    params,
    target_head,
    batch.features + batch.noise,
    batch.tokens[:, :-1],
    batch.starts,
    [int(np.ceil(count * config.retention**j)) for j in range(config.ahead)],
  )
  labels = depths.Labels.of(batch)
  logits_btv = target_head.logits(labels.hidden)
  normalizer_bt = jax.nn.logsumexp(logits_btv, axis=-1)
  # Columns are the K tokens that the layer can draft, and K for others.
  tokens_k = features.row_tokens(params['draft_rows'], module.draft_vocab)
  logits_btk = lookup.along(logits_btv, tokens_k[None, None], axis=2)
  logits_btk = constrain(logits_btk, 'batch', None, 'vocab')
  column = lambda tokens_bt: jnp.take(
    params['draft_rows'], tokens_bt, mode='clip'
  )
  next_bt = column(labels.next)
  best_bt = column(jnp.argmax(logits_btv, axis=-1))
  label_bt = next_bt if config.loss == 'text' else best_bt
  by_depth = []
  for j, hidden_bmd in enumerate(hidden_by_step):
    places_bm = batch.starts[:, : hidden_bmd.shape[1]] + j
    logits_bmk = module.apply(
      {'params': params}, hidden_bmd, method='row_logits'
    )
    loss_bm, log_alpha_bm, _ = depths.compare(
      config,
      logits_bmk,
      jnp.minimum(depths.take(next_bt, places_bm), module.draft_vocab - 1),
      depths.take(logits_btk, places_bm),
      depths.take(normalizer_bt, places_bm),
    )
    inside_bm = labels.is_inside(places_bm)
    depth = depths.Depth(
      start=places_bm - j,
      loss=loss_bm,
      log_alpha=log_alpha_bm,
      hit=jnp.argmax(logits_bmk, axis=-1) == depths.take(best_bt, places_bm),
      inside=inside_bm,
      teaches=inside_bm
      & (depths.take(label_bt, places_bm) < module.draft_vocab),
    )
    by_depth.append(depth)
  return depths.weighted_sum(config, by_depth, length)


def unrolled(
  module, params, target_head, features_bte, tokens_bt, starts_bm, counts
) -> list[jax.Array]:
  """Returns the layer's outputs of step 0, 1, ..: [B, M_j, D] each.

  Output j of start t predicts the token after t + j, and has read token t + j.
  It sees the text's pairs up to t and the pairs drafted from t, which takes
  T + j scores. Beyond the text it reads the last token again.

  Args:
    module: an `Eagle3Layer`.
    params: parameters of the module.
    target_head: the target's embedding and LM head.
    features_bte: the target's features at the tokens.
    tokens_bt: int [B, T].
    starts_bm: int [B, M].
    counts: M_j of each step, static; the first M_j starts have it.
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
  # Step 0 is the pass that reads a prompt.
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
  outputs = [depths.take(hidden_btd, starts_bm[:, : counts[0]])]
  for j, count in enumerate(counts[1:], start=1):
    roots_bm = starts_bm[:, :count]
    tokens_bm = depths.take(tokens_bt, roots_bm + j)
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
