"""Meshes of devices, and arrays placed on them."""

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
  """Returns a mesh with the axes 'data' and 'model'.

  Args:
    data: number of shards of a batch.
    model: number of shards of a model.
    devices: devices of the mesh; by default all devices of all processes.

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
  """Returns the mesh of a flag such as '2x4', data x model.

  Args:
    text: the flag. '' is one device (None) in a single process, since not every
      model or batch divides into all devices of a machine. In several processes
      it is all devices.
    default_axis: the axis of '' in several processes, 'data' or 'model'.

  Raises:
    UserError: the text has another form, or the number of devices differs.
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
  """Returns the mesh of a tree's arrays, None if they are on one device."""
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, 'sharding', None)
    if isinstance(sharding, NamedSharding):
      return sharding.mesh
  return None


def use(mesh: Mesh | None):
  """Returns a context in which a mesh is in use; None changes nothing."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def put(array: np.ndarray, sharding: NamedSharding | Format) -> jax.Array:
  """Copies an array of the host to a mesh; each process copies its shards."""
  return jax.make_array_from_callback(
    array.shape, sharding, lambda index: array[index]
  )


def shard(params: Any, mesh: Mesh) -> Any:
  """Returns parameters that are placed on a mesh by `rules.param_formats`.

  Raises:
    UserError: heads or hidden units do not divide into the mesh's shards.
  """
  place = lambda array, leaf_format: put(np.asarray(array), leaf_format)
  return jax.tree.map(place, params, rules.param_formats(params, mesh))


def fetch(tree: Any) -> Any:
  """Copies whole arrays to the host of every process."""

  def to_host(array):
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)

  return jax.tree.map(to_host, tree)
