"""The dtype that a loaded model computes in if the user does not choose one.

Weights of 16 bits compute in bfloat16, but in float32 on CPUs. GPUs without
bfloat16 compute in float16, or in float32 if the weights exceed float16.
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
from specsamp.models import TransformerConfig, float16, quantized
from specsamp.sharding import devices


def stored_dtype(tensors: Iterable[Stored]) -> str:
  """Returns the dtype of the largest tensor, or bfloat16 if it is float16."""
  largest = max(tensors, key=lambda tensor: math.prod(tensor.shape))
  return 'float32' if largest.dtype == 'F32' else 'bfloat16'


def default_dtype(tensors: Iterable[Stored]) -> str:
  """Returns the default compute dtype of weights in a published format."""
  return 'float32' if jax.default_backend() == 'cpu' else stored_dtype(tensors)


def choose(
  what: str, requested: str | None, default: str, mesh: Mesh | None
) -> str:
  """Returns the requested dtype or the default.

  A default of bfloat16 becomes float16 on a device without it, with a warning
  that begins with `what`.
  """
  device = device_of(mesh)
  if requested or default != 'bfloat16' or devices.has_bfloat16(device):
    return requested or default
  logging.warning(
    '%s: computes in float16, for %s has no bfloat16 (compute capability %s)',
    what,
    device.device_kind,
    device.compute_capability,
  )
  return float16.NAME


def device_of(mesh: Mesh | None) -> jax.Device:
  """Returns one of the devices that a model on this mesh computes on."""
  return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def read_in_range(
  what: str,
  config: TransformerConfig,
  is_requested: bool,
  read: Callable[[str | None], Iterable[tuple[str, jax.Array]]],
  kind: str = '',
) -> tuple[TransformerConfig, Any, dict[str, str]]:
  """Reads parameters, in float32 if the config's float16 cannot hold them.

  Weights are quantized one by one if `kind` is a `quantized.Kind`.

  Args:
    what: name of the model in the log and in errors.
    config: config of the model.
    is_requested: True if the user chose the dtype; excess is then an error.
    read: maps a dtype to parameters as `weights.place` yields them.
    kind: how to quantize weights, '' for not.

  Returns:
    The config with the dtype to compute in, the parameters, and their
    `LanguageModel.stored_as`.
  """
  if config.dtype != float16.NAME and not kind:
    return config, weights.tree(read(config.dtype)), {}
  try:
    params, rows, shapes = {}, {}, {}
    for name, value in read(None):  # at most one parameter is in memory twice
      last = name.rpartition('.')[2]
      rows[name] = _source_rows({last: value})[last]
      shapes[name] = jax.ShapeDtypeStruct(value.shape, value.dtype)
      params[name] = _rounded(name, value, config.dtype, kind)
      if params[name] is not value and not quantized.is_quantized(value):
        value.delete()
  except float16.OutOfRange as error:
    fault = f'{error}, beyond the {float16.LARGEST:.0f} of float16'
  else:
    params, num_tokens = weights.tree(params), config.num_tokens
    stored = fingerprint.of(
      weights.tree(shapes), num_tokens, weights.tree(rows)
    )
    return config, params, {fingerprint.of(params, num_tokens): stored}
  if is_requested:
    raise UserError(
      f'{what}: got dtype float16, expected float32 or bfloat16: {fault}'
    )
  logging.warning('%s: computes in float32: %s', what, fault)
  del params  # before all of them are read again
  config = dataclasses.replace(config, dtype='float32')
  return read_in_range(what, config, False, read, kind)


@jax.jit
def _source_rows(params: Any) -> Any:
  return fingerprint.rows(quantized.dequantize(params))


def _rounded(name: str, value, dtype: str, kind: str):
  """Returns a parameter as the model reads it, on its devices."""
  last = name.rpartition('.')[2]
  if kind and quantized.num_summed(last):
    return quantized.quantize({last: value}, kind)[last]
  if dtype == float16.NAME:
    return float16.cast(name, value)
  return float16.cast_to(
    value, dtype if float16.is_matrix(name, value) else 'float32'
  )
