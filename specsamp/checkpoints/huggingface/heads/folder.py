"""What the readers of published drafters share: a folder into a module."""

from typing import Any

import flax.linen as nn
import numpy as np

from specsamp.checkpoints import dtypes, layouts, tensor_files, weights
from specsamp.checkpoints.huggingface.families.family import BUFFERS
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError
from specsamp.models import TransformerConfig, param_shapes


def read(
  path,
  module: nn.Module,
  layout: Layout,
  tensors: dict[str, Stored],
  given: dict[str, np.ndarray] | None = None,
) -> DraftModule:
  """A module with its parameters, those of the layout and those given.

  Raises:
    UserError: tensors are missing, left over or of another shape.
  """
  shapes = param_shapes(module)
  flat = weights.flat(shapes)
  sizes = sizes_of(layout, {name: a.shape for name, a in flat.items()})
  layouts.check(f'drafter {path}', layout, sizes, tensors)
  dtype = dtypes.default_dtype(tensors.values())
  matmul_dtypes = weights.matmul_dtypes(flat, dtype)

  def one(name: str, index) -> np.ndarray:
    if name not in layout:
      return given[name]
    whole = layouts.read(tensors, layout[name], sizes[name])
    return whole.reshape(flat[name].shape).astype(matmul_dtypes[name])

  params = weights.tree(weights.place(shapes, None, None, one))
  return DraftModule(module, params, target='')


def sizes_of(
  layout: Layout, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
  """Shapes of parameters by the axes of their sources.

  An axis along which parts are stacked is cut into them.
  """
  sizes = {}
  for name, source in layout.items():
    shape, count = shapes[name], len(source.parts)
    if len(source.axes) > len(shape):
      at = source.axes.index(source.stacked)
      cut = (count, shape[at] // count)
      shape = (*shape[:at], *cut, *shape[at + 1 :])
    sizes[name] = shape
  return sizes


def tensors_of(path) -> dict[str, Stored]:
  """The tensors of a folder, without buffers."""
  return {
    name: stored
    for name, stored in tensor_files.of_folder(path).items()
    if not BUFFERS.search(name)
  }


def drop_copy(
  path, tensors: dict[str, Stored], name: str, config: TransformerConfig
) -> None:
  """Takes out a copy of the target's embedding or LM head, which is read.

  Raises:
    UserError: it is of another shape.
  """
  copy = tensors.pop(name, None)
  expected = config.vocab_size, config.width
  if copy and copy.shape != expected:
    raise UserError(
      f'drafter {path}: {name}: got {copy.shape}, expected {expected}'
    )


def check_layers(key: str, ids: Any, least: int) -> None:
  """Refuses what are no layers, or may be these or those next to them.

  Args:
    key: of a config.json.
    ids: its value.
    least: the first of them may be.

  Raises:
    UserError: they are no numbers that ascend, or the first is below it.
  """
  if (
    not isinstance(ids, list)
    or any(type(each) is not int for each in ids)
    or sorted(set(ids)) != ids
    or not ids
  ):
    raise UserError(f'{key}: got {ids!r}, expected layers, ascending')
  if ids[0] < least:
    raise UserError(
      f'{key}: got {ids}, of which nothing tells whether inputs or outputs of '
      f'these layers are meant; expected a first one of at least {least}'
    )


def count(values: dict[str, Any], key: str, least: int = 1) -> int:
  """A whole number of a config.json.

  Raises:
    UserError: it is none, or below the least.
    KeyError: it is missing.
  """
  if type(values[key]) is not int or values[key] < least:
    raise UserError(f'{key}: got {values[key]!r}, expected at least {least}')
  return values[key]


def token(values: dict[str, Any], key: str, config: TransformerConfig) -> int:
  """A token of a config.json, of the target's vocabulary; see `count`."""
  found = count(values, key, 0)
  if found >= config.vocab_size:
    raise UserError(
      f'{key}: got {found}, expected below the vocab_size {config.vocab_size}'
    )
  return found


def flag(values: dict[str, Any], key: str, default: bool = False) -> bool:
  """A truth value of a config.json; `UserError` where it is none."""
  value = default if values.get(key) is None else values[key]
  if type(value) is not bool:
    raise UserError(f'{key}: got {value!r}, expected true or false')
  return value


def matrix(key: str) -> Source:
  """Returns the source of a linear map, [outputs, inputs]."""
  return Source('wd', (Part(key, 'w d'),))


def vector(key: str) -> Source:
  return Source('d', (Part(key, 'd'),))
