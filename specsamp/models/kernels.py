"""Matrix products, each in the form that is fast on its platform.

Weights have their output axes first and the axes that are summed over last, as
in PyTorch. XLA on CPUs reads such weights fastest in two forms:

- One token, or more than 16: activations by rows.
- Two to 16 tokens in float32: weight times *columns*. The activations are
  transposed and padded to the width of a vector. XLA's library copies the
  second factor of a product into another order, here the small factor. The
  product for 8 tokens takes 1.5 times as long as that for one token; with
  activations by rows it takes 2 times as long. Without the barriers around the
  transposes, XLA would move them into the product and restore the slow form.

Accelerators get one `dot_general`.
"""

import functools
import math

import jax
import jax.numpy as jnp

from specsamp.models import float16
from specsamp.models.quantized import MAX, Quantized, is_quantized
from specsamp.sharding import lookup, rules

ACTIVATIONS = {
  'silu': jax.nn.silu,
  'gelu': lambda x: jax.nn.gelu(x, approximate=False),
  'gelu_tanh': jax.nn.gelu,
  'relu': jax.nn.relu,
}
# For more columns, the form by rows is as fast.
_MAX_COLUMNS = 16
# For more tokens, converting a quantized weight on a CPU pays.
_MAX_DIGIT_TOKENS = 64


def project(x, weight, dtype: str, num_summed: int = 1):
  """Multiplies activations with a weight, cast to `dtype`.

  Args:
    x: [B, T, K..] or [B, K..], in `dtype`, or float32 if `dtype` is float16.
    weight: [N.., K..], of any type, or a `Quantized`.
    dtype: type to compute in.
    num_summed: number of summed axes K, the last ones of both.

  Returns:
    [B, T, N..] or [B, N..], of type `float16.wide(dtype)`.
  """
  return _product(x, weight, dtype, float16.wide(dtype), num_summed)


def logits(hidden, head, dtype: str):
  """Multiplies hidden states with an LM head or embedding, as `project` does.

  Args:
    hidden: [.., D].
    head: [V, D].
    dtype: type to compute in.

  Returns:
    float32 [.., V].
  """
  return _product(hidden, head, dtype, 'float32', 1)


def gate_and_up(x_btd, up, dtype: str):
  """Multiplies activations with the first weights of an MLP.

  On TPUs gate and up are two products. If F of a shard is not a multiple of the
  128 lanes (LLaMA 7B in four shards), XLA would otherwise first copy both
  weights.

  Args:
    x_btd: [B, T, D], see `project`.
    up: gate and up [2, F, D], or up alone [1, F, D], of any type.
    dtype: type to compute in.

  Returns:
    [B, T, 2 or 1, F], of type `float16.wide(dtype)`.
  """
  together = functools.partial(project, dtype=dtype)
  if not is_quantized(up):
    up = up.astype(dtype)

  def apart(x_btd, up):
    part = lambda i: jax.tree.map(lambda array: array[i], up)
    parts = [together(x_btd, part(i)) for i in range(up.shape[0])]
    return jnp.stack(parts, axis=2)

  return jax.lax.platform_dependent(x_btd, up, tpu=apart, default=together)


def rows(table, index, dtype: str):
  """Returns rows of an embedding, which may be quantized; see `lookup.rows`.

  They have the type `float16.wide(dtype)`.
  """
  wide = float16.wide(dtype)
  if not is_quantized(table):
    return lookup.rows(table, index).astype(wide)

  def take(table, index):
    scale = jnp.take(table.scale, index, axis=0)[..., None]
    row = jnp.take(table.values, index, axis=0).astype(scale.dtype) * scale
    return row.astype(wide)  # the type that shards send

  return lookup.rows(table, index, take)


def scores(q_buqz, keys_busz, num_tokens: int):
  """Multiplies queries with the keys of their row and group.

  On CPUs the scores of a single token per row are computed by slot and then
  transposed: 20 to 40 % faster for 24 rows, but slower for more tokens.

  Args:
    q_buqz: queries, Q per row and group.
    keys_busz: keys, of the same type.
    num_tokens: number of tokens per row among the Q queries.

  Returns:
    float32 [B, U, Q, S].
  """
  einsum = functools.partial(jnp.einsum, preferred_element_type='float32')
  plain = functools.partial(einsum, 'buqz,busz->buqs')
  if num_tokens > 1 or rules.mesh_in_use():
    return plain(q_buqz, keys_busz)

  def by_slot(q_buqz, keys_busz):
    # Without the barrier, XLA moves the transpose into the product.
    scores_busq = einsum('busz,buqz->busq', keys_busz, q_buqz)
    return jnp.swapaxes(jax.lax.optimization_barrier(scores_busq), 2, 3)

  return jax.lax.platform_dependent(
    q_buqz, keys_busz, cpu=by_slot, default=plain
  )


def _product(x, weight, dtype: str, result: str, num_summed: int):
  if is_quantized(weight):
    out = _quantized_product(x, weight, dtype, num_summed, result)
    return out.astype(result)
  weight = weight.astype(dtype)
  if dtype == float16.NAME:
    return _float16_product(x, weight, num_summed)
  plain = functools.partial(_dot, num_summed=num_summed, result=result)
  if dtype == 'bfloat16':
    on_cpu = lambda x, weight: _sum_in_float32(x, weight, num_summed).astype(
      result
    )
  elif (
    dtype == 'float32'
    and 1 < _num_tokens(x, num_summed) <= _MAX_COLUMNS
    # The tokens of columns share one axis, which would lose its sharding.
    and rules.mesh_in_use() is None
  ):
    on_cpu = functools.partial(_by_columns, num_summed=num_summed)
  else:
    return plain(x, weight)
  return jax.lax.platform_dependent(x, weight, cpu=on_cpu, default=plain)


def _dot(x, weight, num_summed: int, result: str):
  """Sums over the last axes of both: [R.., K..], [N.., K..] -> [R.., N..]."""
  kept, outputs = x.shape[:-num_summed], weight.shape[:-num_summed]
  size = math.prod(x.shape[-num_summed:])
  # XLA for CPUs copies a second factor with more than two axes into another
  # order. A mesh needs the axes that it splits; there the weight comes first.
  if rules.mesh_in_use() is None:
    x, weight = x.reshape(-1, size), weight.reshape(-1, size)
    return _sum_last(x, weight, 1, result).reshape(*kept, *outputs)

  def on_cpu(x, weight):
    x, weight = x.reshape(*kept, size), weight.reshape(*outputs, size)
    if weight.ndim == 2:
      return _sum_last(x, weight, 1, result)
    out = _sum_last(weight, x, 1, result)
    axes = range(out.ndim)
    return out.transpose((*axes[len(outputs) :], *axes[: len(outputs)]))

  plain = functools.partial(_sum_last, num_summed=num_summed, result=result)
  return jax.lax.platform_dependent(x, weight, cpu=on_cpu, default=plain)


def _sum_last(a, b, num_summed: int, result: str):
  axes = lambda array: tuple(range(array.ndim - num_summed, array.ndim))
  return jax.lax.dot_general(
    a, b, ((axes(a), axes(b)), ((), ())), preferred_element_type=result
  )


def _num_tokens(x, num_summed: int) -> int:
  return math.prod(x.shape[: x.ndim - num_summed])


def _by_columns(x, weight, num_summed: int):
  """Computes `_dot` of float32 or int8 as weight times columns."""
  kept, outputs = x.shape[:-num_summed], weight.shape[:-num_summed]
  size = math.prod(weight.shape[-num_summed:])
  count = _num_tokens(x, num_summed)
  # Vectors of 4 or 8 tokens. Vectors of 16 are slower, also with AVX-512.
  # A product of integers is slow for a single column, and fast for two.
  is_integer = weight.dtype == jnp.int8
  padding = -count % (
    2 if is_integer and count <= 2 else 4 if count <= 4 else 8
  )
  columns = jnp.pad(x.reshape(count, size).T, ((0, 0), (0, padding)))
  columns = jax.lax.optimization_barrier(columns)
  product = jnp.dot(
    weight.reshape(-1, size),
    columns,
    preferred_element_type='int32' if is_integer else None,
  )
  product = jax.lax.optimization_barrier(product)
  return product[:, :count].T.reshape(*kept, *outputs)


def _quantized_product(
  x, weight: Quantized, dtype: str, num_summed: int, result: str
):
  """Multiplies integers, and then the product with their scales, in float32."""
  # Chips of a mesh add their products before the scale, in the type of floats.
  if rules.mesh_in_use() is None or dtype == float16.NAME:
    result = 'float32'
  values, outputs = weight.values, weight.scale.shape
  if weight.kind == 'w8a8':
    out = _digit_product(x, values, num_summed, 1)
  else:
    out = jax.lax.platform_dependent(
      x,
      values,
      cpu=functools.partial(_product_on_cpu, dtype, num_summed, result),
      default=functools.partial(_convert_and_dot, dtype, num_summed, result),
    )
  scale = weight.scale.reshape((1,) * (out.ndim - len(outputs)) + outputs)
  return out.astype(jnp.float32) * scale


def _convert_and_dot(dtype: str, num_summed: int, result: str, x, values):
  """Computes `_dot` of converted integers; XLA converts them as it reads."""
  if dtype == float16.NAME:
    return _float16_product(x, values, num_summed)
  return _dot(x, values.astype(dtype), num_summed, result)


def _product_on_cpu(dtype: str, num_summed: int, result: str, x, values):
  """Multiplies integers with floats, which XLA for CPUs has no fast form for.

  With two digits of 8 bits, the error of an activation is that of 16-bit
  integers, less than that of bfloat16, and passes over up to 8 tokens take less
  time than with floats. Converting the weight first takes some 40 times as
  long, which many tokens share.
  """
  few = _num_tokens(x, num_summed) <= _MAX_DIGIT_TOKENS
  if few and rules.mesh_in_use() is None:
    return _digit_product(x, values, num_summed, 2)
  weight = jax.lax.optimization_barrier(values.astype(dtype))
  return _product(x, weight, dtype, result, num_summed)


def _digit_product(x, values, num_summed: int, num_digits: int):
  """Computes `_dot` of integers and activations that are split into digits.

  A token's activations are its scale times the sum of digits[i] / 254**i, each
  an integer of 8 bits: one digit rounds them to 8 bits, two to 16.
  Products of digits are added in int32.
  """
  kept, outputs = x.shape[:-num_summed], values.shape[:-num_summed]
  x = x.astype(jnp.float32)
  axes = tuple(range(x.ndim - num_summed, x.ndim))
  scale = jnp.abs(x).max(axis=axes, keepdims=True) / MAX
  scale = jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)
  rest, digits = x / scale, []
  for _ in range(num_digits):
    digits.append(jnp.rint(rest))
    rest = (rest - digits[-1]) * (2 * MAX)
  x = digits[0] if num_digits == 1 else jnp.stack(digits)
  x = x.astype(jnp.int8)
  plain = functools.partial(_dot, num_summed=num_summed, result='int32')
  if rules.mesh_in_use() is None:
    columns = functools.partial(_by_columns, num_summed=num_summed)
    sums = jax.lax.platform_dependent(x, values, cpu=columns, default=plain)
  else:
    sums = plain(x, values)
  sums = sums.astype(jnp.float32)
  out = sums
  if num_digits > 1:
    out = sum(part / (2 * MAX) ** i for i, part in enumerate(sums))
  return out * scale.reshape(kept + (1,) * len(outputs))


def _float16_product(x, weight, num_summed: int):
  """Multiplies in float16. float32 activations are first scaled per token."""
  power = None
  if x.dtype != jnp.float16:
    x, power = float16.scaled(x)
  # XLA for GPUs would otherwise concatenate weights that multiply the same
  # activations, such as those of queries, keys and values, in every pass.
  x, weight = jax.lax.optimization_barrier((x, weight))
  if weight.dtype == jnp.int8 and _num_tokens(x, num_summed) <= _MAX_COLUMNS:
    out = _sum_by_tokens(x, weight, num_summed)
  else:
    out = _sum_in_float32(x, weight.astype(float16.NAME), num_summed)
  if power is None:
    return out
  return out * power.reshape(power.shape + (1,) * (out.ndim - power.ndim))


def _sum_by_tokens(x, weight, num_summed: int):
  """Computes `_dot` of few tokens as one reduction with a result for each.

  It reads a weight once and converts it in registers. The matrix products of
  GPUs without bfloat16 cannot: XLA would write a float copy of the weight.
  """
  kept, outputs = x.shape[:-num_summed], weight.shape[:-num_summed]
  tokens = x.reshape(-1, *(1,) * len(outputs), *x.shape[-num_summed:])
  weight = weight.astype(jnp.float32)
  axes = tuple(range(len(outputs), weight.ndim))
  sums = [
    (weight * token).sum(axis=axes) for token in tokens.astype(jnp.float32)
  ]
  return jnp.stack(sums).reshape(*kept, *outputs)


def _sum_in_float32(x, weight, num_summed: int):
  """Computes `_dot` of 16-bit numbers, with float32 sums and result.

  A single row is computed as two. XLA for GPUs has no product of a vector with
  a matrix from float16 to float32, and would convert the matrix to float32 in
  every pass, three times the traffic. XLA for CPUs has a fast bfloat16 product
  for float32 results and at least two rows; any other takes eight times as
  long.
  """
  axis = min(1, x.ndim - 2)
  alone = math.prod(x.shape[: axis + 1]) == 1
  if alone:
    x = jnp.pad(x, [(0, int(i == axis)) for i in range(x.ndim)])
  out = _dot(x, weight, num_summed, 'float32')
  return jax.lax.slice_in_dim(out, 0, 1, axis=axis) if alone else out


def spread_rows(logits_btk, rows_v):
  """Returns logits by token, [B, T, V], from those of an LM head's K rows.

  Tokens whose row is K, in `rows_v`, have none: their logits are -1e30.
  """
  # All rows on every shard, for each shard reads any of them. Most drafts have
  # few; a draft with another tokenizer has all rows of its vocabulary.
  logits_btk = rules.constrain(logits_btk, 'batch', None, None)
  padding = (0, 0), (0, 0), (0, 1)
  logits_btk = jnp.pad(logits_btk, padding, constant_values=-1e30)
  return jnp.take(logits_btk, rows_v, axis=-1, mode='clip')
