"""Writes parameters as safetensors files that other libraries read."""

import json
import math
import pathlib
from collections.abc import Callable

import numpy as np
import safetensors.numpy

from specsamp.checkpoints import layouts, tensor_files, weights
from specsamp.checkpoints.layouts import Layout
from specsamp.utils import distributed

_FILE_BYTES = 5 * 10**9  # as in transformers


def write(
  folder: pathlib.Path,
  layout: Layout,
  sizes,
  dtype: np.dtype,
  fetch: Callable[[str], np.ndarray],
  extra: dict[str, np.ndarray] | None = None,
) -> None:
  """Writes the tensors of a layout, with an index if they need several files.

  All processes of a run must call this, and the first one writes.

  Args:
    folder: the destination.
    layout: of the parameters.
    sizes: parameter -> shape, by the axes of its source.
    dtype: of the tensors.
    fetch: maps a parameter's name to its values on this host, of this shape and
      dtype.
    extra: tensors of the first file that are not parameters.
  """
  shapes = layouts.tensor_shapes(layout, sizes)
  num_bytes = {
    key: math.prod(shape) * dtype.itemsize for key, shape in shapes.items()
  }
  shards: list[list[str]] = [[]]
  for key, size in num_bytes.items():
    room = _FILE_BYTES - sum(num_bytes[other] for other in shards[-1])
    if shards[-1] and size > room:
      shards.append([])
    shards[-1].append(key)
  extra = extra or {}
  weight_map = {}
  for i, keys in enumerate(shards, start=1):
    name = tensor_files.SINGLE
    if len(shards) > 1:
      name = f'model-{i:05}-of-{len(shards):05}.safetensors'
    tensors = dict(extra) if i == 1 else {}
    for key in keys:
      tensor = layouts.build_tensor(layout, key, shapes[key], fetch)
      if distributed.is_first():  # the others only hand over their shards
        tensors[key] = tensor
    weight_map |= dict.fromkeys(tensors, name)
    if distributed.is_first():
      content = safetensors.numpy.save(tensors, weights.EXPORTED)
      (folder / name).write_bytes(content)
  if distributed.is_first() and len(shards) > 1:
    metadata = {'total_size': sum(num_bytes.values())}
    index = {'metadata': metadata, 'weight_map': weight_map}
    (folder / tensor_files.INDEX).write_text(json.dumps(index, indent=2))
