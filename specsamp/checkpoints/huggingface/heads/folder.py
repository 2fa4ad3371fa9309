"""Reads the tensors of a published drafter into a module."""

import flax.linen as nn
import numpy as np

from specsamp.checkpoints import dtypes, layouts, tensor_files, weights
from specsamp.checkpoints.huggingface.families.family import BUFFERS
from specsamp.checkpoints.layouts import Layout
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError
from specsamp.models import TransformerConfig, param_shapes


def read(
  path,
  module: nn.Module,
  layout: Layout,
  tensors: dict[str, Stored],
  computed: dict[str, np.ndarray] | None = None,
) -> DraftModule:
  """Returns a module with the parameters of a layout and computed ones.

  Raises:
    UserError: tensors are missing, unused or of another shape.
  """
  shapes = param_shapes(module)
  flat = weights.flat(shapes)
  sizes = sizes_of(layout, {name: a.shape for name, a in flat.items()})
  layouts.check(f'drafter {path}', layout, sizes, tensors)
  dtype = dtypes.default_dtype(tensors.values())
  matmul_dtypes = weights.matmul_dtypes(flat, dtype)

  def read_one(name: str, index) -> np.ndarray:
    if name not in layout:
      return computed[name]
    value = layouts.read(tensors, layout[name], sizes[name])
    return value.reshape(flat[name].shape).astype(matmul_dtypes[name])

  params = weights.tree(weights.place(shapes, None, None, read_one))
  return DraftModule(module, params, target='')


def sizes_of(
  layout: Layout, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of parameters by the axes of their sources.

  A source may split an axis into the slices that are stacked along it.
  """
  sizes = {}
  for name, source in layout.items():
    shape, count = shapes[name], len(source.slices)
    if len(source.axes) > len(shape):
      at = source.axes.index(source.stacked)
      split = (count, shape[at] // count)
      shape = (*shape[:at], *split, *shape[at + 1 :])
    sizes[name] = shape
  return sizes


def tensors_of(path) -> dict[str, Stored]:
  """Returns the tensors of a folder, without buffers."""
  return {
    name: stored
    for name, stored in tensor_files.in_folder(path).items()
    if not BUFFERS.search(name)
  }


def drop_copy(
  path, tensors: dict[str, Stored], name: str, config: TransformerConfig
) -> None:
  """Removes a copy of the target's matrix, and checks its shape."""
  copy = tensors.pop(name, None)
  expected = config.vocab_size, config.width
  if copy and copy.shape != expected:
    raise UserError(
      f'drafter {path}: {name}: got {copy.shape}, expected {expected}'
    )
