"""float16 without its small range: what bfloat16 holds does not overflow.

For devices that multiply matrices in float16 and not in bfloat16. Matrices,
caches and what a norm returns are float16, whose largest number is 65504. What
may be larger is float32: the residual stream, the hidden units of an MLP and
all results of matmuls. A matmul that reads such activations reads float16 of
them over a power of two, of each token. For other dtypes every function here
does what one line without it would. `kernels` has the products.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specsamp.models.config import TransformerConfig

NAME = 'float16'
LARGEST = 65504.0
_INFINITE = 65520.0  # is rounded to infinity, and what is less to LARGEST
_EXPONENT = 15  # largest entries become 2**14 to 2**15


class OutOfRange(Exception):
  """Names an array that float16 has no numbers for, and its largest value."""


def is_matrix(name: str, value) -> bool:
  """Whether this parameter is a matmul's weight: no norm's scale, no bias."""
  return value.ndim > 1 and not name.endswith('bias')


def wide(dtype: str) -> str:
  """What streams and sums are computed in: float32 of float16, else dtype."""
  return 'float32' if dtype == NAME else dtype


def narrow(x, dtype: str):
  """Wide activations as a cache or a matmul reads them.

  Of float16 the largest number stands for all beyond: none becomes infinite,
  and so none NaN. `beyond_reach` refuses models that come so far.
  """
  if dtype != NAME:
    return x.astype(dtype)
  return jnp.clip(x, -LARGEST, LARGEST).astype(dtype)


def scaled(x):
  """float16 of x over a power of two, by row; the powers, without last axis."""
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  _, exponent = jnp.frexp(largest)
  # So low that its inverse is a number too.
  exponent = jnp.maximum(exponent, -100) - _EXPONENT
  one = jnp.ones_like(largest)
  x = (x * jnp.ldexp(one, -exponent)).astype(NAME)
  return x, jnp.ldexp(one, exponent)[..., 0]


def cast(name: str, value: jax.Array) -> jax.Array:
  """A parameter where it lies, a matmul's weight in float16, else in float32.

  Raises:
    OutOfRange: it is a weight with an entry beyond float16.
  """
  if not is_matrix(name, value):
    return _astype(value, 'float32')
  largest = float(_largest(value))
  if not largest < _INFINITE:
    raise OutOfRange(f'{name} has a value of {largest:.4g}')
  return _astype(value, NAME)


def _astype(value: jax.Array, dtype: str) -> jax.Array:
  if value.dtype == dtype:
    return value
  # A cast may otherwise leave it in another order of its axes.
  where = value.format if value.committed else None
  return jax.jit(_convert, static_argnums=1, out_shardings=where)(value, dtype)


def _convert(x, dtype):
  return x.astype(dtype)


@jax.jit
def _largest(x):
  return jnp.max(jnp.abs(x.astype(jnp.float32)))


def cast_matrices(params: Any, dtype: str) -> Any:
  """Nested dicts of parameters, every matmul's weight in this dtype.

  Raises:
    OutOfRange: as `cast`, of float16.
  """

  def leaf(path, value):
    name = '.'.join(entry.key for entry in path)
    if not is_matrix(name, value):
      return value
    value = jnp.asarray(value)
    return cast(name, value) if dtype == NAME else _astype(value, dtype)

  return jax.tree_util.tree_map_with_path(leaf, params)


def beyond_reach(config: TransformerConfig, params: Any) -> str:
  """What a text might make that float16 does not hold; '' if nothing.

  Of what a norm returns, and of the queries, keys and values made of it, the
  largest possible value follows from the parameters: a normed vector is no
  longer than the root of its width.

  Args:
    config: of the model.
    params: of a `Transformer`.

  Returns:
    The parameter it would be made with, and how large it might be.
  """
  reaches = jax.jit(_reaches, static_argnums=0)(config, params)
  for name, reach in reaches.items():
    if not float(reach) <= LARGEST:
      return f'what {name} makes may be {float(reach):.4g}'
  return ''


def _reaches(config: TransformerConfig, params: Any) -> dict[str, jax.Array]:
  """By parameter: a bound of what is made with it."""
  found = {'final_norm': _norm_reach(config, params['final_norm'])}
  for i in range(config.num_layers):
    name = f'layers_{i}'
    layer = params[name]
    found[f'{name}.mlp_norm'] = _norm_reach(config, layer['mlp_norm'])
    norm, attention = layer['attention_norm'], layer['attention']
    found[f'{name}.attention_norm'] = _norm_reach(config, norm)
    for part, reach in _attention_reaches(config, norm, attention).items():
      found[f'{name}.attention.{part}'] = reach
  return found


def _attention_reaches(config, norm, attention) -> dict[str, jax.Array]:
  """As `_reaches`: queries, keys, values and projected distances."""
  # A rotation of two entries makes at most the sum of both of one.
  turned = 2 if config.positions == 'rotary' else 1
  biases = {
    'q': ('q_bias', 'content_bias', 'distance_bias'),
    'kv': ('kv_bias',),
  }
  found = {}
  for part, names in biases.items():
    if part == 'q' and config.qk_norm:
      continue  # float32 until it is normed
    reach = _product_reach(config, norm, attention[part])
    for bias in names:
      if bias in attention:
        reach += jnp.max(jnp.abs(attention[bias]))
    # Keys that are normed have the norm's: this is then that of values.
    found[part] = reach if config.qk_norm else turned * reach
  for part in ('q_norm', 'k_norm'):
    if part in attention:
      largest = jnp.max(jnp.abs(attention[part].astype(jnp.float32)))
      found[part] = turned * config.head_dim**0.5 * largest
  if 'relative' in attention:
    # Of a distance's sinusoids, no longer than a normed vector.
    found['relative'] = config.width**0.5 * _length(attention['relative'])
  return found


def _length(weight):
  """Returns the length of the longest vector of a weight [.., D]."""
  squares = jnp.square(weight.astype(jnp.float32))
  return jnp.sqrt(jnp.max(jnp.sum(squares, axis=-1)))


def _norm_reach(config, norm):
  reach = config.width**0.5 * jnp.max(jnp.abs(norm['scale']))
  return reach + jnp.max(jnp.abs(norm['bias'])) if 'bias' in norm else reach


def _product_reach(config, norm, weight):
  """Returns the largest entry of a normed vector times a weight [.., D]."""
  scale = norm['scale'].astype(jnp.float32)
  weight = weight.astype(jnp.float32).reshape(-1, config.width)
  # Cauchy-Schwarz, by output.
  lengths = jnp.sqrt(jnp.square(weight) @ jnp.square(scale))
  reach = config.width**0.5 * jnp.max(lengths)
  if 'bias' in norm:
    reach += jnp.max(jnp.abs(weight @ norm['bias'].astype(jnp.float32)))
  return reach
