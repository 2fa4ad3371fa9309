"""Weights in 8 bits: integers, and a float32 scale for each output channel.

A `Quantized` takes the place of a weight in the parameters of any module.
`kernels` multiplies it: the scale is applied to the product, so the integers
are only converted on their way into it.
"""

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import struct
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from specsamp.errors import check_name

# int8: weights alone. w8a8: activations too, with a scale for each token.
Kind = Literal['int8', 'w8a8']

# The weights that become integers, with the number of their summed axes. Of an
# embedding a row is an output of the LM head, and what a lookup reads.
_NUM_SUMMED = {
  'embedding': 1,
  'head': 1,
  'q': 1,
  'kv': 1,
  'o': 2,
  'up': 1,
  'down': 1,
  'expert_gate': 1,
  'expert_up': 1,
  'expert_down': 1,
  'fuse': 1,
}
MAX = 127


@struct.dataclass
class Quantized:
  """A weight in 8 bits.

  Attributes:
    values: int8 [N.., K..], of the weight's shape; K are the summed axes.
    scale: float32 [N..]; a weight is values * scale.
    kind: how it is multiplied, static.
  """

  values: jax.Array
  scale: jax.Array
  kind: Kind = struct.field(pytree_node=False, default='int8')

  @property
  def shape(self) -> tuple[int, ...]:
    return self.values.shape

  @property
  def ndim(self) -> int:
    return self.values.ndim

  @property
  def size(self) -> int:
    return self.values.size

  @property
  def dtype(self):
    return self.values.dtype

  def delete(self) -> None:
    """Frees the memory of both arrays."""
    self.values.delete()
    self.scale.delete()


def num_summed(name: str) -> int:
  """Returns the number of summed axes of a weight, 0 if it stays a float.

  Args:
    name: last part of the parameter's name.
  """
  return _NUM_SUMMED.get(name, 0)


def is_quantized(value: Any) -> bool:
  return isinstance(value, Quantized)


def kind_of(params: Any) -> str:
  """Returns the kind of the quantized weights in a tree, '' if it has none."""
  leaves = jax.tree.leaves(params, is_leaf=is_quantized)
  return next((leaf.kind for leaf in leaves if is_quantized(leaf)), '')


def quantize(params: Any, kind: Kind) -> Any:
  """Quantizes the weights in nested dicts of parameters, on their devices.

  Weights that are quantized already keep their integers and scales.

  Raises:
    UserError: the kind is unknown.
  """
  check_name('weights', kind, get_args(Kind))

  def leaf(path, value):
    name = path[-1].key
    if is_quantized(value):
      return value.replace(kind=kind)
    return quantize_weight(name, value, kind) if num_summed(name) else value

  return jax.tree_util.tree_map_with_path(leaf, params, is_leaf=is_quantized)


def quantize_weight(name: str, value: Any, kind: Kind) -> Quantized:
  """Rounds a weight to the nearest multiples of its scales.

  The largest weight of an output channel is 127 times its scale.
  """
  value = jnp.asarray(value)
  kept = value.ndim - num_summed(name)
  formats = None
  if value.committed:
    # By default results may be split, or ordered in memory, in another way.
    order = value.format.layout.major_to_minor
    scale = value.sharding
    if isinstance(scale, NamedSharding):
      scale = NamedSharding(scale.mesh, PartitionSpec(*scale.spec[:kept]))
    formats = Format(Layout(order), value.sharding), scale
  return Quantized(*_rounded(formats, kept)(value), kind)


@functools.cache
def _rounded(formats, kept: int):
  def rounded(value):
    value = value.astype(jnp.float32)
    axes = tuple(range(kept, value.ndim))
    largest = jnp.abs(value).max(axis=axes, keepdims=True)
    # XLA would multiply by 1 / MAX, whose scales are not those of folders.
    scale = largest / jax.lax.optimization_barrier(jnp.full_like(largest, MAX))
    scale = jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)
    values = jnp.rint(value / scale).astype(jnp.int8)
    return values, scale.reshape(value.shape[:kept])

  return jax.jit(rounded, out_shardings=formats)


def dequantize(params: Any) -> Any:
  """Returns parameters whose quantized weights are float32 again."""

  def leaf(value):
    if not is_quantized(value):
      return value
    num_summed = value.ndim - value.scale.ndim
    scale = value.scale.reshape(value.scale.shape + (1,) * num_summed)
    return value.values.astype(jnp.float32) * scale

  return jax.tree.map(leaf, params, is_leaf=is_quantized)
