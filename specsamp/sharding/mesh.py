"""Meshes of devices, and the arrays that lie on them."""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.layout import Format
from jax.sharding import AxisType, Mesh, NamedSharding

from specsamp.errors import UserError
from specsamp.sharding import rules


def make(
  data: int, model: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """A mesh of these axes.

  Args:
    data: shards of a batch.
    model: shards of a model.
    devices: all devices of all processes if left out.

  Raises:
    UserError: data x model is not the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  if data < 1 or model < 1 or data * model != len(devices):
    raise UserError(
      f'mesh {data}x{model} takes {data * model} devices, got {len(devices)}'
    )
  return jax.make_mesh(
    (data, model),
    (rules.DATA, rules.MODEL),
    (AxisType.Auto, AxisType.Auto),
    devices=devices,
  )


def parse(text: str, default_axis: str) -> Mesh | None:
  """The mesh of a flag such as '2x4', data x model; None for one device.

  Args:
    text: '' is one device, since not every model or batch divides into what a
      machine happens to have; of several processes it is all devices.
    default_axis: on this axis, 'data' or 'model'.

  Raises:
    UserError: another form, or another number of devices.
  """
  if not text:
    if jax.process_count() == 1:
      return None
    count = jax.device_count()
    return make(count, 1) if default_axis == rules.DATA else make(1, count)
  match = re.fullmatch(r'(\d+)x(\d+)', text)
  if not match:
    raise UserError(f'mesh: got {text!r}, expected DATAxMODEL such as 2x4')
  data, model = map(int, match.groups())
  return make(data, model)


def of(tree: Any) -> Mesh | None:
  """The mesh that the arrays of a tree lie on, None if they lie on no mesh."""
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, 'sharding', None)
    if isinstance(sharding, NamedSharding):
      return sharding.mesh
  return None


def use(mesh: Mesh | None):
  """A context in which the mesh is in use; None is no mesh."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def put(array: np.ndarray, sharding: NamedSharding | Format) -> jax.Array:
  """An array of the host on a mesh; each process copies its own shards."""
  return jax.make_array_from_callback(
    array.shape, sharding, lambda index: array[index]
  )


def shard(params: Any, mesh: Mesh) -> Any:
  """Parameters sharded over a mesh as in `rules.param_formats`.

  Raises:
    UserError: heads or hidden units do not divide into the mesh's shards.
  """
  formats = rules.param_formats(params, mesh)
  return jax.tree.map(
    lambda array, where: put(np.asarray(array), where), params, formats
  )


def fetch(tree: Any) -> Any:
  """The tree on the host of every process, each array whole."""

  def whole(array):
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)

  return jax.tree.map(whole, tree)
