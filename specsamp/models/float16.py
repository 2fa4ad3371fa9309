"""float16 for devices that do not multiply bfloat16 matrices.

Weights, caches and the outputs of norms are float16, whose largest number is
65504. Activations that may be larger are float32: the residual stream, the
hidden units of an MLP and the results of all products. A product reads such
activations as float16 times a power of two per token (see `kernels`).

Nothing prevents all other overflows. Queries, keys, values and outputs of norms
beyond 65504 are infinite, which makes the logits NaN. Decoding then raises
`FloatingPointError`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specsamp.models.quantized import is_quantized

NAME = 'float16'
LARGEST = 65504.0
_INFINITE = 65520.0  # smallest number that is rounded to infinity
_EXPONENT = 15  # `scaled` makes the largest entries 2**14 to 2**15


class OutOfRange(Exception):
  """A weight beyond the range of float16."""


def is_matrix(name: str, value) -> bool:
  """Returns True for the weight of a product, False for scales and biases."""
  return value.ndim > 1 and not name.endswith('bias')


def wide(dtype: str) -> str:
  """Returns the dtype of residual streams and sums: float32 for float16."""
  return 'float32' if dtype == NAME else dtype


def scaled(x):
  """Splits activations [.., D] into float16 and a power of two [..] per row."""
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  _, exponent = jnp.frexp(largest)
  # The inverse of the smallest power is a number too.
  exponent = jnp.maximum(exponent, -100) - _EXPONENT
  one = jnp.ones_like(largest)
  x = (x * jnp.ldexp(one, -exponent)).astype(NAME)
  return x, jnp.ldexp(one, exponent)[..., 0]


def cast(name: str, value: jax.Array) -> jax.Array:
  """Casts a weight to float16, any other parameter to float32, on its devices.

  Raises:
    OutOfRange: a weight has an entry beyond float16.
  """
  if not is_matrix(name, value):
    return cast_to(value, 'float32')
  largest = float(_largest(value))
  if not largest < _INFINITE:
    raise OutOfRange(f'{name} has a value of {largest:.4g}')
  return cast_to(value, NAME)


def cast_matrices(params: Any, dtype: str) -> Any:
  """Casts the weights in nested dicts of parameters to `dtype`.

  Raises:
    OutOfRange: a weight has an entry beyond float16, and that is the dtype.
  """

  def cast_leaf(path, value):
    name = '.'.join(entry.key for entry in path)
    if is_quantized(value) or not is_matrix(name, value):
      return value
    value = jnp.asarray(value)
    return cast(name, value) if dtype == NAME else cast_to(value, dtype)

  return jax.tree_util.tree_map_with_path(
    cast_leaf, params, is_leaf=is_quantized
  )


def overflow_hint(dtype: str) -> str:
  """Returns advice on NaN logits for float16, and '' for other dtypes."""
  hint = "; load the model with dtype='float32' if float16 overflows"
  return hint if dtype == NAME else ''


def cast_to(value: jax.Array, dtype: str) -> jax.Array:
  """Casts an array on its devices, in its order of axes in memory."""
  if value.dtype == dtype:
    return value
  # By default a cast may change the order of the axes in memory.
  layout = value.format if value.committed else None
  convert = jax.lax.convert_element_type
  return jax.jit(convert, static_argnums=1, out_shardings=layout)(value, dtype)


@jax.jit
def _largest(x):
  return jnp.max(jnp.abs(x.astype(jnp.float32)))
