"""The target's pass over a draft: as one tree, or path by path.

Both ways write the entries of node n to slot `root + n` of the cache.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.drafting.draft import lineage
from specsamp.errors import UserError
from specsamp.models import attention, kv_cache
from specsamp.models.transformer import Output

Scorer = Callable[..., Output]
"""Scores every node of a draft in one pass of the target.

The arguments are those of `tree_attention`. The cache holds the text before the
root, whose position is `root_b`. `parents_bn` are those of a dynamic tree.
"""


def tree_attention(
  transformer, params, tree, tokens_bn, root_b, cache, parents_bn=None
) -> Output:
  """Scores all nodes in one sequence. A node sees the text and ancestors."""
  if not tree.is_chain or parents_bn is not None:
    if parents_bn is None:
      relations = tree.depths, tree.ancestor_mask
    else:
      relations = lineage(parents_bn, tree.depth)
    where = attention.tree_pass(root_b, *relations, 0, cache.capacity)
    return transformer.apply(
      {'params': params}, tokens_bn, cache=cache, **where
    )

  # A causal mask is cheaper.
  def score(tokens_bn, root_b, cache):
    at_n = jnp.arange(tokens_bn.shape[1], dtype=jnp.int32)
    positions_bn = root_b[:, None] + at_n[None, :]
    return transformer.apply({'params': params}, tokens_bn, positions_bn, cache)

  if tree.size > 1:
    return score(tokens_bn, root_b, cache)

  def padded(tokens_b1, root_b, cache):
    # Nothing sees the second token, and the next round overwrites its slot.
    out = score(jnp.repeat(tokens_b1, 2, axis=1), root_b, cache)
    first = (array[:, :1] for array in (out.logits, out.hidden, out.features))
    return Output(*first, out.cache)

  # Only CPUs are fast at one token: see `LanguageModelDrafter._feed_second`.
  return jax.lax.platform_dependent(
    tokens_bn, root_b, cache, cpu=score, default=padded
  )


def replicated(
  transformer, params, tree, tokens_bn, root_b, cache, parents_bn=None
) -> Output:
  """Scores each path from the root to a leaf in a row with a copy of the cache.

  The result is decoding without tree attention (the ablation of Yang et al.
  2401.06706, table 4). Dynamic trees are refused: their paths are not static.
  """
  if parents_bn is not None:
    raise UserError(
      'tree_attention: got False with a dynamic tree, expected True'
    )
  leaves = sorted(set(range(tree.size)) - set(tree.internal))
  path_kt = np.maximum(tree.paths[leaves], 0)  # the padding is never read
  count, length = path_kt.shape
  # The first path through each node; all of them hold its entries.
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

  def by_node(array_rt):
    shape = (batch, count, *array_rt.shape[1:])
    return array_rt.reshape(shape)[:, row_n, depth_n]

  def write(slots_busz, rows_rusz):
    slot_b = jnp.arange(length, dtype=jnp.int32)[None, :] + root_b[:, None]
    new_rutz = jnp.take_along_axis(
      rows_rusz, repeat(slot_b)[:, None, :, None], axis=2
    )
    new_bnuz = by_node(jnp.swapaxes(new_rutz, 1, 2))
    return kv_cache.write(slots_busz, new_bnuz, root_b)

  return Output(
    logits=by_node(out.logits),
    hidden=by_node(out.hidden),
    features=by_node(out.features),
    cache=cache.replace(
      keys=jax.tree.map(write, cache.keys, out.cache.keys),
      values=jax.tree.map(write, cache.values, out.cache.values),
    ),
  )
