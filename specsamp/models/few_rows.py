"""A few rows times a matrix, on CPUs without AVX-512.

XLA has a loop for one row there, which takes as long as the matrix takes to be
read, and a library for more, which packs the matrix anew in every product: five
rows take three times as long as one, and a draft of four tokens gains nothing.
A convolution of width one is the same sums by another kernel, Eigen's, whose
five rows take twice as long as one. Where there is AVX-512 the library is the
faster one.
"""

import functools
import math
import pathlib
import platform

import jax
import jax.numpy as jnp

from specsamp.sharding import rules

# Of 24 rows both kernels take as long.
_MOST_ROWS = 20
_CPU_FLAGS = pathlib.Path('/proc/cpuinfo')


def einsum(spec: str, x, weight):
  """einsum of activations with a weight, by the kernel that is fast here.

  Args:
    spec: of einsum: sums over the last axes of x, which are the first of weight
      in the same order, and keeps the others, those of x first.
    x: activations.
    weight: of the same type.

  Returns:
    As einsum. Only where the program is for a CPU, in float32, and no mesh is
    in use, are the kernels another's.
  """
  summed = len(set(spec.partition(',')[0]) - set(spec.partition('->')[2]))
  rows = math.prod(x.shape[: x.ndim - summed])
  plain = functools.partial(jnp.einsum, spec)
  if (
    x.dtype != jnp.float32
    or not 1 < rows <= _MOST_ROWS
    or not _lacks_avx512()
    or rules.mesh_in_use()
  ):
    return plain(x, weight)
  convolved = functools.partial(_convolved, summed=summed)
  return jax.lax.platform_dependent(x, weight, cpu=convolved, default=plain)


def _convolved(x, weight, summed: int):
  """[.., K] times [K, ..], K being as many axes as are summed over."""
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
def _lacks_avx512() -> bool:
  """Whether this is an x86 that says what it has, and has no AVX-512."""
  if platform.machine() != 'x86_64' or not _CPU_FLAGS.exists():
    return False
  return 'avx512f' not in _CPU_FLAGS.read_text()
