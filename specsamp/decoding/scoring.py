"""The target's pass over a draft: as one tree, or path by path.

Both leave the entries of node n in slot `root + n` of the cache, so that what
follows does not know which it was.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import TokenTree, lineage
from specsamp.errors import UserError
from specsamp.models import KVCache, Transformer, attention, kv_cache
from specsamp.models.transformer import Output


class Scorer(Protocol):
  """Scores every node of a draft in one pass of the target."""

  def __call__(
    self,
    transformer: Transformer,
    params,
    tree: TokenTree,
    tokens_bn,
    root_b,
    cache: KVCache,
    parents_bn=None,
  ) -> Output:
    """Logits, hidden states and features [B, N, ..] of each node; the cache.

    Args:
      transformer: the target; static.
      params: its parameters.
      tree: of N nodes; static.
      tokens_bn: int [B, N].
      root_b: int [B], position of the root.
      cache: holds the text before the root.
      parents_bn: int [B, N], of a dynamic tree; see `Draft`.
    """
    ...


def tree_attention(
  transformer, params, tree, tokens_bn, root_b, cache, parents_bn=None
) -> Output:
  """All nodes in one sequence: each sees the text and its own ancestors."""
  if not tree.is_chain or parents_bn is not None:
    related = tree.depths, tree.ancestor_mask
    if parents_bn is not None:
      related = lineage(parents_bn, tree.depth)
    arguments = attention.tree_pass(root_b, *related, 0, cache.capacity)
    return transformer.apply(
      {'params': params}, tokens_bn, cache=cache, **arguments
    )

  # The causal mask is cheaper to make.
  def score(tokens_bn, root_b, cache):
    at_n = jnp.arange(tokens_bn.shape[1], dtype=jnp.int32)
    positions_bn = root_b[:, None] + at_n[None, :]
    return transformer.apply({'params': params}, tokens_bn, positions_bn, cache)

  if tree.size > 1:
    return score(tokens_bn, root_b, cache)

  def padded(tokens_b1, root_b, cache):
    # What stands in the next slot is unseen, and written over next round.
    out = score(jnp.repeat(tokens_b1, 2, axis=1), root_b, cache)
    first = (array[:, :1] for array in (out.logits, out.hidden, out.features))
    return Output(*first, out.cache)

  # All but CPUs are slow at one token: see `LanguageModelDrafter._feed_next`.
  return jax.lax.platform_dependent(
    tokens_bn, root_b, cache, cpu=score, default=padded
  )


def replicated(
  transformer, params, tree, tokens_bn, root_b, cache, parents_bn=None
) -> Output:
  """A row and a copy of its cache for every path from the root to a leaf.

  What one does without tree attention (the ablation of Yang et al. 2401.06706,
  table 4): nodes that paths share are fed once for each.

  Raises:
    UserError: a dynamic tree, whose paths are not known when this is compiled.
  """
  if parents_bn is not None:
    raise UserError(
      'tree_attention: got False, and the tree is one that drafts choose'
    )
  leaves = sorted(set(range(tree.size)) - set(tree.internal))
  path_kt = np.maximum(tree.paths[leaves], 0)  # the padding is never read
  count, length = path_kt.shape
  # Any path that runs through a node holds its entries.
  row_n = np.asarray(
    [np.argmax(tree.ancestor_mask[leaves, node]) for node in range(tree.size)]
  )
  depth_n = np.asarray(tree.depths)
  batch = root_b.shape[0]

  repeat = lambda array: jnp.repeat(array, count, axis=0)
  at_t = jnp.arange(length, dtype=jnp.int32)
  out = transformer.apply(
    {'params': params},
    tokens_bn[:, path_kt].reshape(-1, length),
    repeat(root_b)[:, None] + at_t[None, :],
    cache.replace(
      keys=tuple(map(repeat, cache.keys)),
      values=tuple(map(repeat, cache.values)),
    ),
  )

  def nodes(array_rt):
    shape = (batch, count, *array_rt.shape[1:])
    return array_rt.reshape(shape)[:, row_n, depth_n]

  def write(slots_busz, rows_rusz):
    slot_b = jnp.arange(length, dtype=jnp.int32)[None, :] + root_b[:, None]
    new_rutz = jnp.take_along_axis(
      rows_rusz, repeat(slot_b)[:, None, :, None], axis=2
    )
    new_bnuz = nodes(jnp.swapaxes(new_rutz, 1, 2))
    return kv_cache.write(slots_busz, new_bnuz, root_b)

  return Output(
    logits=nodes(out.logits),
    hidden=nodes(out.hidden),
    features=nodes(out.features),
    cache=cache.replace(
      keys=jax.tree.map(write, cache.keys, out.cache.keys),
      values=jax.tree.map(write, cache.values, out.cache.values),
    ),
  )
