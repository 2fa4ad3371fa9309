"""What a model that was read computes in, where a config or a user is silent.

bfloat16 for weights of 16 bits, but float32 on CPUs; float16 on GPUs without
bfloat16, and float32 there for a model that float16 does not hold.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh

from specsamp import fingerprint
from specsamp.checkpoints import weights
from specsamp.checkpoints.tensor_files import Stored
from specsamp.errors import UserError
from specsamp.models import TransformerConfig, float16
from specsamp.sharding import devices


def stored_dtype(tensors: Iterable[Stored]) -> str:
  """The type of the largest of them; bfloat16 for float16 too."""
  largest = max(tensors, key=lambda tensor: math.prod(tensor.shape))
  return 'float32' if largest.dtype == 'F32' else 'bfloat16'


def default_dtype(tensors: Iterable[Stored]) -> str:
  """What to compute in with such weights, unless told."""
  return 'float32' if jax.default_backend() == 'cpu' else stored_dtype(tensors)


def dtype_on(what: str, dtype: str, device: jax.Device) -> str:
  """This dtype, or float16 for the bfloat16 that a device does not have.

  Args:
    what: computes in it, for the log.
    dtype: that nobody asked for.
    device: of those that compute.
  """
  if dtype != 'bfloat16' or devices.has_bfloat16(device):
    return dtype
  logging.warning(
    '%s: computes in float16, for %s has no bfloat16 (compute capability %s)',
    what,
    device.device_kind,
    device.compute_capability,
  )
  return float16.NAME


def device_of(mesh: Mesh | None) -> jax.Device:
  """One of those that a model on this mesh computes on."""
  return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def read_in_range(
  what: str,
  config: TransformerConfig,
  is_told: bool,
  read: Callable[[str | None], Iterable[tuple[str, jax.Array]]],
) -> tuple[TransformerConfig, Any, dict[str, str]]:
  """Parameters, in float32 where the config's float16 does not hold a model.

  Args:
    what: the model, for the log and errors.
    config: of the model.
    is_told: whether the user asked for the dtype.
    read: dtype -> parameters, as `weights.place` yields them.

  Returns:
    The config with the dtype to compute in, the parameters, and
    `LanguageModel.stored_as` of them.

  Raises:
    UserError: the user asked for float16, and it does not hold the model.
  """
  if config.dtype != float16.NAME:
    return config, weights.tree(read(config.dtype)), {}
  try:
    params, stored_as = _halved(read(None), config.num_tokens)
    return config, params, stored_as
  except float16.OutOfRange as error:
    fault = f'{error}, beyond the {float16.LARGEST:.0f} of float16'
  if is_told:
    raise UserError(
      f'{what}: got dtype float16, expected float32 or bfloat16: {fault}'
    )
  logging.warning('%s: computes in float32: %s', what, fault)
  config = dataclasses.replace(config, dtype='float32')
  return config, weights.tree(read(config.dtype)), {}


def _halved(leaves, num_tokens: int) -> tuple[Any, dict[str, str]]:
  """Parameters in float16, and their fingerprint before the cast.

  At most one of them is there twice.
  """
  params, rows = {}, {}
  for name, value in leaves:
    last = name.rpartition('.')[2]
    rows[name] = fingerprint.rows({last: value})[last]
    params[name] = float16.cast(name, value)
    if params[name] is not value:
      value.delete()
  params = weights.tree(params.items())
  stored = fingerprint.of(params, num_tokens, weights.tree(rows.items()))
  return params, {fingerprint.of(params, num_tokens): stored}
