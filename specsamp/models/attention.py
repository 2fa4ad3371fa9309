"""Attention over cached slots: masks, relative positions, the module.

Axes: B rows, T queries, S slots, H query heads, U key and value heads, G = H/U
query heads per group, Z width of a head, D width of the model, C tokens of a
context, N nodes of a token tree, J steps of a draft.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from specsamp.models import kernels, kv_cache, rotary
from specsamp.models.config import TransformerConfig


def causal_mask(positions_bt, num_slots: int):
  """Returns bool [B, T, S]: a query at position t sees the slots s <= t."""
  slots_s = jnp.arange(num_slots, dtype=jnp.int32)
  return slots_s[None, None, :] <= positions_bt[:, :, None]


def windowed(mask_bts, window: int, positions_bt, slot_positions_bs):
  """Returns the mask without entries `window` or more positions back."""
  if not window:
    return mask_bts
  distance_bts = positions_bt[:, :, None] - slot_positions_bs[:, None, :]
  return mask_bts & (distance_bts < window)


def tree_mask(start_b, ancestors_tn, num_slots: int):
  """Returns bool [B, T, S]: nodes see the prefix, their ancestors, themselves.

  Args:
    start_b: int [B], slot of the tree's root. All slots before it are prefix.
    ancestors_tn: bool [T, N] or [B, T, N], True if node n is query t or an
      ancestor of it. Node n is in slot `start + n`.
    num_slots: S.
  """
  slots_s = jnp.arange(num_slots, dtype=jnp.int32)
  node_bs = slots_s[None, :] - start_b[:, None]
  in_tree_bs = (node_bs >= 0) & (node_bs < ancestors_tn.shape[-1])
  if ancestors_tn.ndim == 3:
    inside_bts = jnp.take_along_axis(
      ancestors_tn, node_bs[:, None], axis=2, mode='clip'
    )
  else:
    ancestors_tn = jnp.asarray(ancestors_tn)
    inside_tbs = jnp.take(ancestors_tn, node_bs, axis=1, mode='clip')
    inside_bts = jnp.swapaxes(inside_tbs, 0, 1)
  return (node_bs < 0)[:, None] | (inside_bts & in_tree_bs[:, None])


def tree_pass(root_b, depths_n, ancestors_tn, first: int, num_slots: int):
  """Returns arguments of `Transformer` for a pass over nodes of a token tree.

  Args:
    root_b: int [B], slot and position of the tree's root.
    depths_n: int [N] or [B, N], depths of the nodes. Node n has slot
      `root + n`.
    ancestors_tn: bool [T, N] or [B, T, N], see `tree_mask`, of the T nodes that
      the pass is over.
    first: number of the first of these T consecutive nodes.
    num_slots: S.

  Returns:
    A dict of positions, mask, start and slot_positions.
  """
  depths_bn = jnp.atleast_2d(jnp.asarray(depths_n, jnp.int32))
  positions_bn = root_b[:, None] + depths_bn
  return dict(
    positions=positions_bn[:, first : first + ancestors_tn.shape[-2]],
    mask=tree_mask(root_b, ancestors_tn, num_slots),
    start=root_b + first,
    slot_positions=slot_positions(root_b, positions_bn, num_slots),
  )


def slot_positions(start_b, positions_bn, num_slots: int):
  """Returns int [B, S]: N positions from slot `start` on, else slot indices."""
  slots_s = jnp.arange(num_slots, dtype=positions_bn.dtype)
  return jax.vmap(
    lambda row, start: jax.lax.dynamic_update_slice(slots_s, row, (start,))
  )(positions_bn, start_b)


def rms(x, scale, epsilon: float):
  """Divides x by its root mean square along the last axis, and scales it.

  The computation is in float32, the result in the type of x.
  """
  x32 = x.astype(jnp.float32)
  x32 = x32 * jax.lax.rsqrt(
    jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon
  )
  scale = scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
  return (x32 * scale).astype(x.dtype)


def capped(x, cap: float | None):
  """Returns x bounded to (-cap, cap) by a tanh, or x if there is no cap."""
  return cap * jnp.tanh(x / cap) if cap else x


def sinusoids(length: int, width: int):
  """Returns float32 [length, width], sinusoids by distance (1901.02860)."""
  half = (width + 1) // 2
  frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies[None, :]
  both = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
  return both[:, :width]


def _distance_scores(q_bthz, table_hsz):
  """Returns float32 [B, H, T, S], scores of the S distances of a table."""
  return jnp.einsum(
    'bthz,hsz->bhts',
    q_bthz.astype(table_hsz.dtype),
    table_hsz,
    preferred_element_type=jnp.float32,
  )


def _relative_scores(q_bthz, table_hsz, positions_bt, slot_positions_bs):
  """Returns [B, H, T, S], scores of the distances from queries to slots."""
  by_distance = _distance_scores(q_bthz, table_hsz)
  distance_bts = positions_bt[:, :, None] - slot_positions_bs[:, None, :]
  distance_bts = jnp.clip(distance_bts, 0, table_hsz.shape[1] - 1)
  return jnp.take_along_axis(by_distance, distance_bts[:, None], axis=3)


@struct.dataclass
class PrivateEntries:
  """Slots that all queries share, plus entries that a single query sees.

  They let a drafter that reads its outputs train from every position of a
  sequence at once. The sequence is in the shared slots. The tokens drafted
  after a position are private to the query of that position.

  Attributes:
    slots: keys, values [B, U, S, Z] and the relative table or None, as in a
      cache. They are only read.
    keys: one array per step of the draft, [B, U, T, Z], a key per query.
    values: the same for values.
  """

  slots: tuple[jax.Array, jax.Array, Any]
  keys: tuple[jax.Array, ...] = ()
  values: tuple[jax.Array, ...] = ()

  def add(self, k_btuz, v_btuz) -> 'PrivateEntries':
    """Appends the entries of one more step."""
    return self.replace(
      keys=(*self.keys, jnp.swapaxes(k_btuz, 1, 2)),
      values=(*self.values, jnp.swapaxes(v_btuz, 1, 2)),
    )

  def scores(self, q_bugtz):
    """Returns float32 [B, U, G, T, J], products of queries and private keys."""
    # J is small: a matmul would have all queries as its batch.
    steps = [_products(q_bugtz, k_butz).sum(axis=-1) for k_butz in self.keys]
    return jnp.stack(steps, axis=-1)

  def mix(self, weights_bugtj):
    """Returns [B, U, G, T, Z], weighted sums of each query's private values."""
    return sum(
      _products(weights_bugtj[..., j : j + 1], v_butz)
      for j, v_butz in enumerate(self.values)
    )


def _products(x_bugtz, entries_butz):
  x_bugtz, entries_butz = (
    x.astype(jnp.float32) for x in (x_bugtz, entries_butz)
  )
  return x_bugtz * entries_butz[:, :, None]


class Attention(nn.Module):
  """Multi-head attention with U <= H key and value heads.

  Attributes:
    config: shape of the transformer.
    parts: number of streams that it reads, concatenated.
  """

  config: TransformerConfig
  parts: int = 1

  def setup(self):
    c = self.config
    heads, kv_heads = (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
    dense = nn.initializers.normal(c.width**-0.5)
    # Residual branches start small: their sum keeps the stream's scale.
    out = nn.initializers.normal((2 * c.num_layers * math.prod(heads)) ** -0.5)
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    width = self.parts * c.width
    self.q = self.param('q', dense, (*heads, width))
    self.kv = self.param('kv', dense, (2, *kv_heads, width))
    self.o = self.param('o', out, (c.width, *heads))
    if c.qk_norm:
      self.q_norm = self.param('q_norm', ones, (c.head_dim,))
      self.k_norm = self.param('k_norm', ones, (c.head_dim,))
    if c.biases != 'none':
      self.q_bias = self.param('q_bias', zeros, heads)
      self.kv_bias = self.param('kv_bias', zeros, (2, *kv_heads))
    if c.biases in ('attention', 'all'):
      self.o_bias = self.param('o_bias', zeros, (c.width,))
    if c.positions == 'relative':
      self.relative = self.param('relative', dense, (*heads, c.width))
      self.content_bias = self.param('content_bias', zeros, heads)
      self.distance_bias = self.param('distance_bias', zeros, heads)

  def relative_table(self, length: int):
    """Returns the projected distances 0..length-1, [H, length, Z]."""
    dtype = self.config.dtype
    distances = sinusoids(length, self.config.width).astype(dtype)
    table = kernels.project(distances, self.relative, dtype)
    return jnp.swapaxes(table, 0, 1).astype(dtype)

  def __call__(
    self,
    x_btd,
    positions_bt,
    start_b,
    mask_bts,
    slot_positions_bs,
    cache=None,
    context_bcd=None,
  ):
    """Writes the keys and values of this call, then attends to all slots.

    Args:
      x_btd: [B, T, parts * D], normed residual stream.
      positions_bt: int [B, T], or [B, C + T] with a context before it.
      start_b: int [B], slot of the first query, or of the context.
      mask_bts: bool [B, T, S], the slots that each query sees.
      slot_positions_bs: int [B, S], positions of the entries in the slots, for
        relative positions only.
      cache: keys and values [B, U, S, Z] and the relative table or None; or
        `PrivateEntries`, to whose shared slots the mask applies. None makes the
        T queries the slots.
      context_bcd: [B, C, parts * D], or None. The context has keys and values
        in the slots before those of x, but no queries.

    Returns:
      The output [B, T, D] and the updated (keys, values) or `PrivateEntries`.
    """
    q, k, v = self._project(x_btd, positions_bt, context_bcd)
    private = None
    # Write, then attend: attending to the old cache and the new entries
    # separately makes XLA copy the cache.
    if cache is None:
      keys, values = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
      table = None
    elif isinstance(cache, PrivateEntries):
      private = cache.add(k, v)
      keys, values, table = private.slots
    else:
      keys, values, table = cache
      keys = kv_cache.write(keys, k, start_b)
      values = kv_cache.write(values, v, start_b)
    out_btd = self._attend(
      q,
      (keys, values, table),
      private,
      mask_bts,
      positions_bt[:, -x_btd.shape[1] :],
      slot_positions_bs,
    )
    return out_btd, private or (keys, values)

  def _project(self, x_btd, positions_bt, context_bcd):
    """Returns queries, keys and values, [B, .., H or U, Z], after rotation."""
    c = self.config
    kv_input, q_positions_bt = x_btd, positions_bt
    if context_bcd is not None:
      kv_input = jnp.concatenate([context_bcd, x_btd], axis=1)
      q_positions_bt = positions_bt[:, context_bcd.shape[1] :]
    q = kernels.project(x_btd, self.q, c.dtype)
    kv = kernels.project(kv_input, self.kv, c.dtype)
    if c.biases != 'none':
      q = q + self.q_bias.astype(q.dtype)[None, None]
      kv = kv + self.kv_bias.astype(kv.dtype)[None, None]
    k, v = kv[:, :, 0], kv[:, :, 1]
    if c.qk_norm:
      q = rms(q, self.q_norm, c.norm_epsilon)
      k = rms(k, self.k_norm, c.norm_epsilon)
    if c.positions == 'rotary':
      q = rotary.rotate(q, q_positions_bt, c)
      k = rotary.rotate(k, positions_bt, c)
    if c.query_growth:
      spans_bt = q_positions_bt // c.rope_scaling.original_length
      growth_bt = 1 + c.query_growth * jnp.log1p(spans_bt.astype(jnp.float32))
      q = q * growth_bt[:, :, None, None].astype(q.dtype)
    return q, k.astype(c.dtype), v.astype(c.dtype)

  def _attend(
    self, q, slots, private, mask_bts, positions_bt, slot_positions_bs
  ):
    """Returns [B, T, D], the projected mix of values in slots and entries."""
    c = self.config
    keys, values, table = slots
    num_slots = keys.shape[2]
    if c.positions == 'relative':
      if table is None:
        table = self.relative_table(num_slots)
      biased = q + self.distance_bias.astype(q.dtype)[None, None]
      relative = _relative_scores(
        biased, table, positions_bt, slot_positions_bs
      )
      q = q + self.content_bias.astype(q.dtype)[None, None]
    q = q.astype(c.dtype)

    batch, length = q.shape[:2]
    # The G query heads of a group and the T queries share one axis. Both
    # products are then plain matmuls that read a head's keys and values in
    # their order in memory. Any other order of axes makes XLA transpose the
    # cache.
    groups = (c.num_kv_heads, c.num_heads // c.num_kv_heads)
    q_grouped = jnp.moveaxis(
      q.reshape(batch, length, *groups, c.head_dim), 1, 3
    )
    scores = kernels.scores(
      q_grouped.reshape(batch, groups[0], -1, c.head_dim), keys, length
    )
    # Scaled after the product, and masked by a sum: XLA on CPUs then fuses the
    # product with everything up to the exponential. For the keys of many rows
    # a product alone is several times slower. Unseen keys must be finite, and
    # so must values, even for a weight of zero.
    scale = c.query_scale or c.head_dim**-0.5
    scores = scores * scale
    scores = scores.reshape(batch, *groups, length, num_slots)
    if c.positions == 'relative':
      scores = scores + relative.reshape(scores.shape) * scale
    scores = capped(scores, c.score_cap)
    scores = scores + jnp.where(mask_bts, 0.0, -1e30)[:, None, None]
    if private:
      private_scores = private.scores(q_grouped)
      if c.positions == 'relative':
        # The distances to J private entries fall from J - 1 to 0.
        private_table = jnp.flip(table[:, : len(private.keys)], axis=1)
        relative = _distance_scores(biased, private_table)
        private_scores = private_scores + relative.reshape(private_scores.shape)
      private_scores = capped(private_scores * scale, c.score_cap)
      scores = jnp.concatenate([scores, private_scores], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
    slot_weights = weights[..., :num_slots] if private else weights
    mixed = jnp.einsum(
      'buqs,busz->buqz',
      slot_weights.reshape(batch, groups[0], -1, num_slots),
      values,
      preferred_element_type=jnp.float32,
    ).reshape(batch, *groups, length, c.head_dim)
    if private:
      mixed = mixed + private.mix(weights[..., num_slots:])
    mixed = jnp.moveaxis(mixed.astype(c.dtype), 3, 1)
    mixed = mixed.reshape(batch, length, c.num_heads, c.head_dim)
    out = kernels.project(mixed, self.o, c.dtype, num_summed=2)
    if c.biases in ('attention', 'all'):
      out = out + self.o_bias.astype(out.dtype)[None, None]
    return out
