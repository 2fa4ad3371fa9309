"""KV cache of a batch whose rows have different lengths.

The mask of a query decides which slots it sees, so nothing is ever erased.
Rewinding after a rejected draft is free: slots past the committed length are
unseen, and overwritten later.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.models.config import TransformerConfig
from specsamp.sharding import rules

_SLOTS = ('batch', 'kv_heads', 'slots', 'head_dim')


@struct.dataclass
class KVCache:
  """Keys and values of all layers, a plain pytree that every step donates.

  Attributes:
    keys: one array per layer, [B, U, S, Z].
    values: one array per layer, [B, U, S, Z].
    relative: for relative positions, one table of projected distances per
      layer, [H, S, Z]. The tables depend on the parameters alone; computing
      them in every pass would cost more than the rest of the model.
  """

  # In the order [B, U, S, Z] attention reads a head's slots contiguously. With
  # the slot axis outside, XLA transposes the whole cache in every step.
  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]
  relative: tuple[jax.Array, ...] = ()

  @property
  def capacity(self) -> int:
    """S, the number of slots per row."""
    return self.keys[0].shape[2]

  def entry(self, layer: int) -> tuple[jax.Array, jax.Array, Any]:
    """Returns keys, values and the table (or None) of a layer."""
    table = self.relative[layer] if self.relative else None
    return self.keys[layer], self.values[layer], table


def empty(config: TransformerConfig, batch: int, capacity: int) -> KVCache:
  """Returns a cache of zeros, without tables of relative positions."""
  shape = (batch, config.num_kv_heads, capacity, config.head_dim)
  zeros = lambda: tuple(
    jnp.zeros(shape, config.dtype) for _ in range(config.num_layers)
  )
  return KVCache(keys=zeros(), values=zeros())


def with_axes(cache: KVCache, apply: Callable[..., Any]) -> KVCache:
  """Maps `apply(array, *axes)`, such as `rules.constrain`, over a cache."""
  slots = lambda array: apply(array, *_SLOTS)
  table = lambda array: apply(array, 'heads', 'slots', 'head_dim')
  return KVCache(
    keys=tuple(map(slots, cache.keys)),
    values=tuple(map(slots, cache.values)),
    relative=tuple(map(table, cache.relative)),
  )


def cleared(cache: KVCache, end_b) -> KVCache:
  """Returns the cache with zeros in the slots from `end` on, int [B].

  Slots that no query sees are multiplied by a probability of 0, so entries of
  another text, which may be NaN there, must not stay.
  """

  def clear(slots_busz):
    slot_s = jnp.arange(slots_busz.shape[2], dtype=jnp.int32)
    is_kept_bs = slot_s[None] < end_b[:, None]
    return jnp.where(is_kept_bs[:, None, :, None], slots_busz, 0)

  return cache.replace(
    keys=tuple(map(clear, cache.keys)), values=tuple(map(clear, cache.values))
  )


def write(slots_busz, new_btuz, start_b):
  """Writes T new entries into consecutive slots of every row.

  Args:
    slots_busz: keys or values of one layer, [B, U, S, Z].
    new_btuz: the new entries, [B, T, U, Z].
    start_b: int [B], slot of each row's first new entry. `start + T` must not
      exceed S: XLA would silently shift the write to the left.

  Returns:
    The updated [B, U, S, Z].
  """
  new_btuz = new_btuz.astype(slots_busz.dtype)
  if rules.mesh_in_use() is None:
    return jax.lax.platform_dependent(
      slots_busz, new_btuz, start_b, cpu=_scatter, default=_update_slices
    )
  # A scatter would gather the new entries of all shards. A mesh of virtual CPU
  # devices thus runs the same program as accelerators.
  written_busz = _update_slices(slots_busz, new_btuz, start_b)
  return rules.constrain(written_busz, *_SLOTS)


def _update_slices(slots_busz, new_btuz, start_b):
  # On a TPU a scatter takes more memory and time than this.
  write_row = lambda slots, new, start: jax.lax.dynamic_update_slice(
    slots, new, (0, start, 0)
  )
  return jax.vmap(write_row)(slots_busz, jnp.swapaxes(new_btuz, 1, 2), start_b)


def _scatter(slots_busz, new_btuz, start_b):
  # On a CPU, slice updates make XLA copy the whole cache of a batch of one. So
  # does a scatter of whole slots, which XLA turns into a slice update.
  batch, length, groups = new_btuz.shape[:3]
  iota = lambda size: jnp.arange(size, dtype=jnp.int32)
  row_b11 = iota(batch)[:, None, None]
  head_1u1 = iota(groups)[None, :, None]
  slot_b1t = (start_b[:, None] + iota(length)[None, :])[:, None, :]
  return slots_busz.at[row_b11, head_1u1, slot_b1t].set(
    jnp.swapaxes(new_btuz, 1, 2), mode='drop', unique_indices=True
  )


def keep_path(cache: KVCache, root_b, nodes_bt) -> KVCache:
  """Moves the entries of a path through a tree into consecutive slots.

  Args:
    cache: holds a tree, whose root is in slot `root`.
    root_b: int [B].
    nodes_bt: int [B, T]. The entry of slot `root + nodes[:, t]` moves to slot
      `root + 1 + t`. Entries past the end of the path may be noise.
  """
  from_bt = root_b[:, None] + nodes_bt

  def move(slots_busz):
    kept_butz = jnp.take_along_axis(
      slots_busz, from_bt[:, None, :, None], axis=2, mode='clip'
    )
    return write(slots_busz, jnp.swapaxes(kept_butz, 1, 2), root_b + 1)

  return cache.replace(
    keys=tuple(map(move, cache.keys)), values=tuple(map(move, cache.values))
  )
