"""Attention over cached slots: masks, position encodings, the block itself."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specsamp.models import float16, kernels, kv_cache, rotary
from specsamp.models.config import TransformerConfig
from specsamp.sharding import rules


def causal_mask(positions_bt, num_slots: int):
  """Bool [B, T, S]: slot s is seen from position t where s <= t.

  Right for text and for chains, whose slots are their positions.
  """
  slots_s = jnp.arange(num_slots, dtype=jnp.int32)
  return slots_s[None, None, :] <= positions_bt[:, :, None]


def tree_mask(start_b, ancestors_tn, num_slots: int):
  """Bool [B, T, S]: the prefix, and the ancestors within a token tree.

  Args:
    start_b: int [B], slot of the tree's root; all slots before it are prefix.
    ancestors_tn: bool [T, N], whether node n is query t or an ancestor of it;
      node n sits in slot `start + n`. Or [B, T, N].
    num_slots: S.
  """
  slots_s = jnp.arange(num_slots, dtype=jnp.int32)
  node_bs = slots_s[None, :] - start_b[:, None]
  in_tree_bs = (node_bs >= 0) & (node_bs < ancestors_tn.shape[-1])
  if ancestors_tn.ndim == 3:
    inside_bts = jnp.take_along_axis(
      ancestors_tn, node_bs[:, None], axis=2, mode='clip'
    )
    return (node_bs < 0)[:, None] | (inside_bts & in_tree_bs[:, None])
  inside_tbs = jnp.take(jnp.asarray(ancestors_tn), node_bs, axis=1, mode='clip')
  inside_bts = jnp.swapaxes(inside_tbs, 0, 1) & in_tree_bs[:, None, :]
  return (node_bs < 0)[:, None, :] | inside_bts


def tree_pass(root_b, depths_n, ancestors_tn, first: int, num_slots: int):
  """Arguments of a pass over T nodes of a token tree.

  Args:
    root_b: int [B], slot and position of the tree's root.
    depths_n: int [N] or [B, N], depths of the nodes; node n has slot
      `root + n`.
    ancestors_tn: bool [T, N] or [B, T, N], see `tree_mask`, for the T nodes
      that are fed.
    first: the first of the T nodes; the others follow it.
    num_slots: S.

  Returns:
    positions, mask, start and slot_positions, by these names.
  """
  depths_bn = jnp.atleast_2d(jnp.asarray(depths_n, jnp.int32))
  fed_bt = depths_bn[:, first : first + ancestors_tn.shape[-2]]
  return dict(
    positions=root_b[:, None] + fed_bt,
    mask=tree_mask(root_b, ancestors_tn, num_slots),
    start=root_b + first,
    slot_positions=slot_positions(
      root_b, root_b[:, None] + depths_bn, num_slots
    ),
  )


def slot_positions(start_b, positions_bn, num_slots: int):
  """Int [B, S]: the positions of what stands in N slots; else a slot's index.

  Args:
    start_b: int [B], the first of the N slots.
    positions_bn: int [B, N].
    num_slots: S.
  """
  slots_s = jnp.arange(num_slots, dtype=positions_bn.dtype)
  return jax.vmap(
    lambda own, start: jax.lax.dynamic_update_slice(slots_s, own, (start,))
  )(positions_bn, start_b)


def rms(x, scale, epsilon: float):
  """x over its root mean square along the last axis, scaled; in float32."""
  x32 = x.astype(jnp.float32)
  x32 = x32 * jax.lax.rsqrt(
    jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon
  )
  scale = scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
  return (x32 * scale).astype(x.dtype)


def sinusoids(length: int, width: int):
  """Float32 [length, width], a row a distance (Dai et al. 1901.02860)."""
  half = (width + 1) // 2
  frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies[None, :]
  both = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
  return both[:, :width]


def _relative_scores(q_bthz, table_hsz, positions_bt, slot_positions_bs):
  """Scores [B, H, T, S] of the distance from each query to each slot."""
  q_bthz = float16.narrow(q_bthz, table_hsz.dtype)
  by_distance = jnp.einsum(
    'bthz,hsz->bhts', q_bthz, table_hsz, preferred_element_type=jnp.float32
  )
  distance_bts = positions_bt[:, :, None] - slot_positions_bs[:, None, :]
  distance_bts = jnp.clip(distance_bts, 0, table_hsz.shape[1] - 1)
  return jnp.take_along_axis(by_distance, distance_bts[:, None], axis=3)


def _own_relative_scores(q_bthz, table_hsz, count: int):
  """Scores [B, H, T, J] of J - 1 steps back to none."""
  return jnp.einsum(
    'bthz,hjz->bhtj',
    float16.narrow(q_bthz, table_hsz.dtype),
    jnp.flip(table_hsz[:, :count], axis=1),
    preferred_element_type=jnp.float32,
  )


class OwnEntries(NamedTuple):
  """Slots that all queries share, and beside them what each alone has.

  So a drafter that reads its own outputs is trained from every position of a
  text at once: the text's slots are one cache, and what it drafts after a
  position is that position's own.

  Attributes:
    slots: keys, values [B, U, S, Z] and relative table or None, as a cache has
      them; no query writes there.
    keys: those of its own, one step of the draft after the other, each
      [B, U, T, Z].
    values: likewise.
  """

  slots: tuple[jax.Array, jax.Array, Any]
  keys: tuple[jax.Array, ...] = ()
  values: tuple[jax.Array, ...] = ()

  def add(self, k_btuz, v_btuz) -> 'OwnEntries':
    """With those of one step more."""
    return self._replace(
      keys=(*self.keys, jnp.swapaxes(k_btuz, 1, 2)),
      values=(*self.values, jnp.swapaxes(v_btuz, 1, 2)),
    )

  def scores(self, q_bugtz):
    """Of each query with its own keys: float32 [B, U, G, T, J]."""
    # J is a few: no matmul, whose batch would be all queries.
    of_steps = [_products(q_bugtz, k_butz).sum(axis=-1) for k_butz in self.keys]
    return jnp.stack(of_steps, axis=-1)

  def mixed(self, weights_bugtj):
    """Of each query its own values in these proportions: [B, U, G, T, Z]."""
    return sum(
      _products(weights_bugtj[..., j : j + 1], v_butz)
      for j, v_butz in enumerate(self.values)
    )


def _products(of_queries, of_heads_butz):
  of_queries, of_heads_butz = (
    x.astype(jnp.float32) for x in (of_queries, of_heads_butz)
  )
  return of_queries * of_heads_butz[:, :, None]


rules.declare(
  q=('heads', 'head_dim', 'width'),
  q_bias=('heads', 'head_dim'),
  kv=('key_or_value', 'kv_heads', 'head_dim', 'width'),
  kv_bias=('key_or_value', 'kv_heads', 'head_dim'),
  o=('width', 'heads', 'head_dim'),
  o_bias=('width',),
  q_norm=('head_dim',),
  k_norm=('head_dim',),
  relative=('heads', 'head_dim', 'width'),
  content_bias=('heads', 'head_dim'),
  distance_bias=('heads', 'head_dim'),
)


class Attention(nn.Module):
  """Multi-head attention with U <= H key and value heads.

  Attributes:
    config: its shape.
    parts: streams that it reads, side by side.
  """

  config: TransformerConfig
  parts: int = 1

  def setup(self):
    c = self.config
    dense = nn.initializers.normal(c.width**-0.5)
    # Residual branches start small: their sum keeps the stream's scale.
    out = nn.initializers.normal(
      (2 * c.num_layers * c.num_heads * c.head_dim) ** -0.5
    )
    width = self.parts * c.width
    self.q = self.param('q', dense, (c.num_heads, c.head_dim, width))
    self.kv = self.param('kv', dense, (2, c.num_kv_heads, c.head_dim, width))
    self.o = self.param('o', out, (c.width, c.num_heads, c.head_dim))
    zeros = nn.initializers.zeros
    if c.qk_norm:
      self.q_norm = self.param('q_norm', nn.initializers.ones, (c.head_dim,))
      self.k_norm = self.param('k_norm', nn.initializers.ones, (c.head_dim,))
    if c.biases != 'none':
      self.q_bias = self.param('q_bias', zeros, (c.num_heads, c.head_dim))
      self.kv_bias = self.param(
        'kv_bias', zeros, (2, c.num_kv_heads, c.head_dim)
      )
    if c.biases in ('attention', 'all'):
      self.o_bias = self.param('o_bias', zeros, (c.width,))
    if c.positions == 'relative':
      heads = (c.num_heads, c.head_dim)
      self.relative = self.param('relative', dense, (*heads, c.width))
      self.content_bias = self.param('content_bias', zeros, heads)
      self.distance_bias = self.param('distance_bias', zeros, heads)

  def relative_table(self, length: int):
    """Projected distances 0..length-1, [H, length, Z]."""
    dtype = self.config.dtype
    distances = sinusoids(length, self.config.width).astype(dtype)
    table = kernels.project(distances, self.relative, dtype)
    return float16.narrow(jnp.swapaxes(table, 0, 1), dtype)

  def _projected(self, x_btd, positions_bt, context_bcd):
    """Queries, keys and values, [B, .., H or U, Z], turned by their places."""
    c = self.config
    read_btd, own_bt = x_btd, positions_bt
    if context_bcd is not None:
      read_btd = jnp.concatenate([context_bcd, x_btd], axis=1)
      own_bt = positions_bt[:, context_bcd.shape[1] :]
    q = kernels.project(x_btd, self.q, c.dtype)
    kv = kernels.project(read_btd, self.kv, c.dtype)
    if c.biases != 'none':
      q = q + self.q_bias.astype(q.dtype)[None, None]
      kv = kv + self.kv_bias.astype(kv.dtype)[None, None]
    k, v = kv[:, :, 0], kv[:, :, 1]
    if c.qk_norm:
      q = rms(q, self.q_norm, c.norm_epsilon)
      k = rms(k, self.k_norm, c.norm_epsilon)
    if c.positions == 'rotary':
      frequencies = rotary.frequencies(c)
      q = rotary.rotate(q, own_bt, frequencies)
      k = rotary.rotate(k, positions_bt, frequencies)
    k, v = float16.narrow(k, c.dtype), float16.narrow(v, c.dtype)
    return q, k, v

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
    """Writes this call's keys and values, then attends to all slots.

    Args:
      x_btd: [B, T, parts * D], normed residual stream.
      positions_bt: int [B, T], or [B, C + T] with a context before it.
      start_b: int [B], slot of the first query, or of the context.
      mask_bts: bool, which slots each query sees.
      slot_positions_bs: int, positions of what stands in the slots; only
        relative positions read it.
      cache: keys, values [B, U, S, Z] and relative table or None; with
        no cache at all the slots are the T queries themselves. Of
        `OwnEntries` the slots stay as they are: the mask is for them, and each
        query sees all of its own.
      context_bcd: [B, C, parts * D], what has keys and values in the slots
        before those of x, and no queries; None for nothing.

    Returns:
      The block's output [B, T, D] and the updated (keys, values), or
      `OwnEntries`.
    """
    q, k, v = self._projected(x_btd, positions_bt, context_bcd)
    own = None
    # Write, then attend: attending to the old cache and the new entries apart
    # makes XLA copy the cache.
    if cache is None:
      keys, values = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
      table = None
    elif isinstance(cache, OwnEntries):
      own = cache.add(k, v)
      keys, values, table = own.slots
    else:
      keys, values, table = cache
      keys = kv_cache.write(keys, k, start_b)
      values = kv_cache.write(values, v, start_b)
    attended_btd = self._attended(
      q,
      (keys, values, table),
      own,
      mask_bts,
      positions_bt[:, -x_btd.shape[1] :],
      slot_positions_bs,
    )
    return attended_btd, own or (keys, values)

  def _attended(self, q, slots, own, mask_bts, positions_bt, slot_positions_bs):
    """What queries find in slots, and in entries of their own: [B, T, D]."""
    c = self.config
    keys, values, table = slots
    num_slots = keys.shape[2]
    if c.positions == 'relative':
      if table is None:
        table = self.relative_table(num_slots)
      biased = q + self.distance_bias.astype(q.dtype)[None, None]
      scores = _relative_scores(biased, table, positions_bt, slot_positions_bs)
      q = q + self.content_bias.astype(q.dtype)[None, None]
    q = float16.narrow(q, c.dtype)

    batch, length = q.shape[:2]
    # The H / U query heads of a group and the T queries share one axis, so
    # that both products are plain matmuls with a head's keys and values as
    # they lie; any other order of axes makes XLA transpose the cache.
    groups = (c.num_kv_heads, c.num_heads // c.num_kv_heads)
    q_grouped = jnp.moveaxis(
      q.reshape(batch, length, *groups, c.head_dim), 1, 3
    )
    content = kernels.scores(
      q_grouped.reshape(batch, groups[0], -1, c.head_dim), keys, length
    )
    # Scaled here and masked by a sum: so XLA on CPUs takes the product and all
    # up to the exponential at once; a product left alone is several times
    # slower for the keys of many rows. Unseen keys must be finite, as values
    # must be for a weight of zero.
    content = content * c.head_dim**-0.5
    content = content.reshape(batch, *groups, length, num_slots)
    if c.positions == 'relative':
      content = content + scores.reshape(content.shape) * c.head_dim**-0.5
    content = content + jnp.where(mask_bts, 0.0, -1e30)[:, None, None]
    if own:
      own_content = own.scores(q_grouped)
      if c.positions == 'relative':
        scores = _own_relative_scores(biased, table, len(own.keys))
        own_content = own_content + scores.reshape(own_content.shape)
      own_content = own_content * c.head_dim**-0.5
      content = jnp.concatenate([content, own_content], axis=-1)
    weights = jax.nn.softmax(content, axis=-1).astype(c.dtype)
    to_slots = weights[..., :num_slots] if own else weights
    mixed = jnp.einsum(
      'buqs,busz->buqz',
      to_slots.reshape(batch, groups[0], -1, num_slots),
      values,
      preferred_element_type=jnp.float32,
    ).reshape(batch, *groups, length, c.head_dim)
    if own:
      mixed = mixed + own.mixed(weights[..., num_slots:])
    mixed = float16.narrow(mixed, c.dtype)
    mixed = jnp.moveaxis(mixed, 3, 1)
    mixed = mixed.reshape(batch, length, c.num_heads, c.head_dim)
    out = kernels.project(mixed, self.o, c.dtype, num_summed=2)
    if c.biases in ('attention', 'all'):
      out = out + self.o_bias.astype(out.dtype)[None, None]
    return out
