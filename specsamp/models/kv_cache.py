"""Keys and values of a batch whose rows have different lengths.

A token at slot s of a row's cache is visible to a query when the query's mask
says so: nothing is ever erased. Rewinding after a rejected draft is therefore
free: slots past the committed length are unseen and later written over.
"""

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.models.config import TransformerConfig


@struct.dataclass
class KVCache:
  """One entry a layer; a plain pytree, donated from round to round.

  Attributes:
    keys: L arrays [B, G, S, head_dim].
    values: L arrays [B, G, S, head_dim].
    relative: L tables [S, H, head_dim] of projected distances, for relative
      positions only. They depend on the parameters alone and would cost more
      than the rest of the model if computed in every pass.
  """

  # [B, G, S, head_dim] lets attention read a head's slots in one stretch; with
  # the slot axis outside, XLA transposes the whole cache in every step.
  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]
  relative: tuple[jax.Array, ...] = ()

  @property
  def capacity(self) -> int:
    """S, slots in a row."""
    return self.keys[0].shape[2]


def empty(config: TransformerConfig, batch: int, capacity: int) -> KVCache:
  """A cache of zeros, without the tables of relative positions."""
  shape = (batch, config.num_kv_heads, capacity, config.head_dim)
  zeros = lambda: tuple(
    jnp.zeros(shape, config.dtype) for _ in range(config.num_layers)
  )
  return KVCache(keys=zeros(), values=zeros())


def write(slots_bgsd, new_btgd, start_b):
  """Puts T new entries into consecutive slots of every row.

  Args:
    slots_bgsd: keys or values of one layer, [B, G, S, head_dim].
    new_btgd: the new entries, [B, T, G, head_dim].
    start_b: int [B], slot of each row's first new entry. `start + T` must not
      exceed S: XLA would shift the write to the left without a word.

  Returns:
    The updated [B, G, S, head_dim].
  """

  def write_row(slots, new, start):
    return jax.lax.dynamic_update_slice(slots, new, (0, start, 0))

  new_bgtd = jnp.swapaxes(new_btgd, 1, 2).astype(slots_bgsd.dtype)
  return jax.vmap(write_row)(slots_bgsd, new_bgtd, start_b)
