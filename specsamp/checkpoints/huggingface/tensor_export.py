"""Parameters as safetensors files that other libraries read."""

import json
import math
import pathlib
from collections.abc import Callable

import numpy as np
import safetensors.numpy

from specsamp.checkpoints import layouts, tensor_files, weights
from specsamp.checkpoints.layouts import Layout
from specsamp.utils import distributed

_FILE_BYTES = 5 * 10**9  # as transformers cuts them


def write(
  folder: pathlib.Path,
  layout: Layout,
  sizes,
  dtype: np.dtype,
  fetch: Callable[[str], np.ndarray],
  others: dict[str, np.ndarray] | None = None,
) -> None:
  """Tensors in as many files as they need, with an index of several.

  Of several processes all must call this, and the first one writes.

  Args:
    folder: where to.
    layout: of the parameters.
    sizes: parameter -> its shape, by the axes of its source.
    dtype: of the tensors.
    fetch: parameter -> its values, on this host, of this size and dtype.
    others: tensors that are no parameters, for the first file.
  """
  shapes = layouts.tensor_shapes(layout, sizes)
  parts, room = [[]], _FILE_BYTES
  for key, shape in shapes.items():
    size = math.prod(shape) * dtype.itemsize
    if parts[-1] and size > room:
      parts.append([])
      room = _FILE_BYTES
    parts[-1].append(key)
    room -= size
  placed = {}
  for i, keys in enumerate(parts, start=1):
    name = tensor_files.SINGLE
    if len(parts) > 1:
      name = f'model-{i:05}-of-{len(parts):05}.safetensors'
    tensors = {}
    if others and i == 1 and distributed.is_first():
      tensors |= others
      placed |= dict.fromkeys(others, name)
    for key in keys:
      tensor = layouts.make(layout, key, shapes[key], fetch)
      if distributed.is_first():  # the others only hand over their shards
        tensors[key], placed[key] = tensor, name
    if tensors:
      content = safetensors.numpy.save(tensors, weights.EXPORTED)
      (folder / name).write_bytes(content)
  if distributed.is_first() and len(parts) > 1:
    total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    index = {'metadata': {'total_size': total}, 'weight_map': placed}
    (folder / tensor_files.INDEX).write_text(json.dumps(index, indent=2))
