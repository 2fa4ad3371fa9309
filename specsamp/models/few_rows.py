"""A few rows times a matrix, on CPUs.

XLA multiplies one row there in a loop that is bound by memory, and more rows by
a library that copies the matrix into another layout in every product: a pass
over a draft then costs about as many steps as the draft gains. A convolution of
width one is the same product by another kernel, Eigen's, which takes the less
of the library's time the fewer rows there are. With AVX-512 the library is
faster again from some 26 rows on.
"""

import functools
import math
import pathlib
import platform

import jax
import jax.numpy as jnp

from specsamp.sharding import rules

# Of more rows the library is nearly as fast, or faster.
_MOST_ROWS, _MOST_WITH_AVX512 = 48, 16
_CPU_FLAGS = pathlib.Path('/proc/cpuinfo')


def einsum(spec: str, x, weight):
  """einsum of activations with a weight, by the faster kernel.

  It is a convolution in programs for x86 CPUs, in float32, of 2 to 48 rows, or
  to 16 with AVX-512, and without a mesh, over which only products are split;
  else einsum.

  Args:
    spec: of einsum. It sums over the last axes of x, which are the first ones
      of weight in the same order, and keeps all others, those of x first.
    x: [R.., K..], rows by what is summed over.
    weight: [K.., N..], of the same type.

  Returns:
    [R.., N..], of the same type.
  """
  summed = len(set(spec.partition(',')[0]) - set(spec.partition('->')[2]))
  rows = math.prod(x.shape[: x.ndim - summed])
  plain = functools.partial(jnp.einsum, spec)
  if (
    x.dtype != jnp.float32
    or not 1 < rows <= _most_rows()
    or rules.mesh_in_use()
  ):
    return plain(x, weight)
  convolved = functools.partial(_convolved, summed=summed)
  return jax.lax.platform_dependent(x, weight, cpu=convolved, default=plain)


def _convolved(x, weight, summed: int):
  """[R.., K..] times [K.., N..], where K are so many axes."""
  kept, size = x.shape[: x.ndim - summed], math.prod(weight.shape[:summed])
  out = jax.lax.conv_general_dilated(
    x.reshape(1, -1, size),
    weight.reshape(1, size, -1),
    window_strides=(1,),
    padding='VALID',
    dimension_numbers=('NWC', 'WIO', 'NWC'),
  )
  return out.reshape(kept + weight.shape[summed:])


@functools.cache
def _most_rows() -> int:
  """Of which a convolution is the faster product, on this CPU.

  0 where /proc/cpuinfo does not list the features of an x86.
  """
  if platform.machine() != 'x86_64' or not _CPU_FLAGS.exists():
    return 0
  has_avx512 = 'avx512f' in _CPU_FLAGS.read_text()
  return _MOST_WITH_AVX512 if has_avx512 else _MOST_ROWS
