"""Maps parameters to tensors in the formats of other libraries.

A layout names the tensors that a parameter consists of and the order of their
axes. So any slice of a parameter is read from only the needed slices of
tensors, and tensors are built from parameters.
"""

import itertools
import json
import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specsamp.checkpoints import tensor_files, weights
from specsamp.checkpoints.tensor_files import Stored
from specsamp.utils import distributed


class TensorSlice(NamedTuple):
  """The place of a parameter, or of one entry of a stacked axis, in a tensor.

  Attributes:
    key: the tensor's name.
    axes: a word for each axis of the tensor, made of the letters of the
      parameter's axes; 'hk d' merges two axes into one.
    start: first index in each axis of the tensor; () is 0 in all.
  """

  key: str
  axes: str
  start: tuple[int, ...] = ()


class Source(NamedTuple):
  """The tensors that make up a parameter.

  Attributes:
    axes: a letter for each axis of the parameter. With spaces between axes, all
      letters of a word but the last have 2 entries: 'h pi d' has the halves p
      of a head, whose entries some formats interleave, and 'h npi d' those of
      each half n of a head.
    slices: one, or one for each entry of the axis whose letter they lack.
    added: number that the parameter exceeds its tensor by.
  """

  axes: str
  slices: tuple[TensorSlice, ...]
  added: float = 0.0

  @property
  def words(self) -> list[str]:
    """The letters of each axis of the parameter."""
    return self.axes.split() if ' ' in self.axes else list(self.axes)

  @property
  def letters(self) -> str:
    return ''.join(self.words)

  @property
  def stacked(self) -> str:
    """The letter of the axis along which slices are stacked, or ''."""
    return ''.join(set(self.letters) - set(self.slices[0].axes))

  def sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
    """Returns the size of each letter in a parameter of a shape."""
    result = {}
    for word, size in zip(self.words, shape, strict=True):
      halvings = len(word) - 1
      parts = (2,) * halvings + (size >> halvings,)
      result |= dict(zip(word, parts, strict=True))
    return result


Layout = dict[str, Source]


def single(axes: str, key: str, tensor_axes: str) -> Source:
  """Returns the source of a parameter that is one tensor."""
  return Source(axes, (TensorSlice(key, tensor_axes),))


def stack(axes: str, keys: list[str], tensor_axes: str) -> Source:
  """Returns the source of a parameter that stacks several tensors."""
  return Source(axes, tuple(TensorSlice(key, tensor_axes) for key in keys))


def matrix(key: str) -> Source:
  """Returns the source of a linear map, stored as [outputs, inputs]."""
  return single('wd', key, 'w d')


def vector(key: str) -> Source:
  return single('d', key, 'd')


def fused(axes: str, key: str, tensor_axes: str, starts: list[int]) -> Source:
  """Returns the source of a stack that one tensor has from its rows on."""
  rest = (0,) * (len(tensor_axes.split()) - 1)
  parts = tuple(TensorSlice(key, tensor_axes, (n, *rest)) for n in starts)
  return Source(axes, parts)


def layer_norm(name: str, key: str) -> Layout:
  """Returns the layout of a norm's scale and bias."""
  layout = {'scale': vector('weight'), 'bias': vector('bias')}
  return prefixed(layout, f'{name}.', f'{key}.')


def prefixed(layout: Layout, name: str, key: str) -> Layout:
  """Returns a layout whose parameters and tensors have prefixes."""
  return {
    name + parameter: source._replace(
      slices=tuple(part._replace(key=key + part.key) for part in source.slices)
    )
    for parameter, source in layout.items()
  }


def repeated(layer: Layout, count: int, key: str) -> Layout:
  """Returns the layout of equal layers; layer i has the prefix `key` + i."""
  layout = {}
  for i in range(count):
    layout |= prefixed(layer, f'layers_{i}.', f'{key}{i}.')
  return layout


def check(
  what: str, layout: Layout, shapes, tensors: dict[str, Stored]
) -> None:
  """Checks that the tensors are those of a layout and are floats.

  `shapes` has the parameters' shapes, and `what` begins the error.
  """
  expected = tensor_shapes(layout, shapes)
  got = {name: stored.shape for name, stored in tensors.items()}
  wrong_dtypes = [
    f'{name} {stored.dtype}'
    for name, stored in sorted(tensors.items())
    if name in expected and stored.dtype not in ('F32', 'F16', 'BF16')
  ]
  tensor_files.check_shapes(
    what, expected, got, {'not floats of 16 or 32 bits': wrong_dtypes}
  )


def read(
  tensors: dict[str, Stored], source: Source, shape: tuple[int, ...], index=()
) -> np.ndarray:
  """Reads a part of a parameter; entries past the end of a tensor are 0.

  `shape` is that of the whole parameter. `index` has a slice of step 1 for each
  axis; () reads all of it.
  """
  index = index or (slice(None),) * len(shape)
  sizes = source.sizes(shape)
  bounds = {letter: (0, size) for letter, size in sizes.items()}
  for word, axis, size in zip(source.words, index, shape, strict=True):
    limits = axis.indices(size)[:2]
    assert len(word) == 1 or limits == (0, size)  # split axes are read whole
    bounds |= {word: limits} if len(word) == 1 else {}
  part_shape = [
    math.prod(bounds[x][1] - bounds[x][0] for x in word)
    for word in source.words
  ]
  stacked, slices = source.stacked, source.slices
  if stacked:
    slices = slices[slice(*bounds.pop(stacked))]
  axes = source.letters.replace(stacked, '')
  pieces = []
  for part in slices:
    letters = part.axes.replace(' ', '')
    piece = _read_padded(tensors[part.key], _tensor_index(part, sizes, bounds))
    piece = piece.reshape([bounds[x][1] - bounds[x][0] for x in letters])
    pieces.append(piece.transpose([letters.index(x) for x in axes]))
  value = pieces[0]
  if stacked:
    value = np.stack(pieces, axis=source.letters.index(stacked))
  value = value.reshape(part_shape)
  return value.astype(np.float32) + source.added if source.added else value


def build_tensor(
  layout: Layout,
  key: str,
  shape: tuple[int, ...],
  fetch: Callable[[str], np.ndarray],
  dtype: np.dtype,
) -> np.ndarray:
  """Builds a tensor of a layout from the parameters that it contains.

  Entries without a parameter are 0. `fetch` returns a parameter by its name.
  """
  tensor = np.zeros(shape, dtype)
  for name, source in layout.items():
    for i, part in enumerate(source.slices):
      if part.key != key:
        continue
      value, axes = fetch(name), source.letters
      if source.added:  # before the cast, which would round the sum
        value = value.astype(np.float32) - np.float32(source.added)
      sizes = source.sizes(value.shape)
      value = value.reshape(tuple(sizes.values()))
      if source.stacked:
        value = value.take(i, axis=axes.index(source.stacked))
        axes = axes.replace(source.stacked, '')
      value = value.transpose([axes.index(x) for x in part.axes if x != ' '])
      index = _tensor_index(part, sizes)
      tensor[index] = value.reshape([s.stop - s.start for s in index])
  return tensor


def export(
  folder: pathlib.Path,
  layout: Layout,
  sizes,
  fetch: Callable[[str], np.ndarray],
  dtype: np.dtype,
  extra: dict[str, np.ndarray] | None = None,
) -> None:
  """Writes the tensors of a layout, with an index if they need several files.

  All processes of a run must call this, and the first one writes.

  Args:
    folder: the destination.
    layout: layout of the parameters.
    sizes: parameter -> shape, by the axes of its source.
    fetch: maps a parameter's name to its values on this host.
    dtype: type of the tensors.
    extra: tensors that are not parameters.
  """
  shapes = tensor_shapes(layout, sizes)
  tensors = (
    (key, build_tensor(layout, key, shape, fetch, dtype))
    for key, shape in shapes.items()
  )
  places, num_bytes = weights.write(
    folder,
    itertools.chain((extra or {}).items(), tensors),
    'model-{1:05}-of-{2:05}.safetensors',
    weights.EXPORTED,
  )
  if distributed.is_first() and len(set(places.values())) > 1:
    index = {'metadata': {'total_size': num_bytes}, 'weight_map': places}
    (folder / tensor_files.INDEX).write_text(json.dumps(index, indent=2))


def tensor_shapes(layout: Layout, shapes) -> dict[str, tuple[int, ...]]:
  """Returns the smallest shape of each tensor that contains all its slices."""
  result: dict[str, tuple[int, ...]] = {}
  for name, source in layout.items():
    sizes = source.sizes(shapes[name])
    for part in source.slices:
      index = _tensor_index(part, sizes)
      ends = tuple(axis.stop for axis in index)
      result[part.key] = tuple(map(max, ends, result.get(part.key, ends)))
  return result


def _tensor_index(part: TensorSlice, sizes, bounds=None) -> tuple[slice, ...]:
  """Returns a slice's index into its tensor; `bounds` limit parameter axes."""
  whole = {letter: (0, size) for letter, size in sizes.items()}
  bounds = bounds or whole
  words = part.axes.split()
  starts = part.start or (0,) * len(words)
  slices = []
  for start, (first, *rest) in zip(starts, words, strict=True):
    # Only the slowest of several merged axes can be cut without gaps.
    assert all(bounds[letter] == whole[letter] for letter in rest)
    step = math.prod(sizes[letter] for letter in rest)
    low, high = bounds[first]
    slices.append(slice(start + low * step, start + high * step))
  return tuple(slices)


def _read_padded(tensor: Stored, index: tuple[slice, ...]) -> np.ndarray:
  """Reads a part of a tensor, with zeros past the tensor's end."""
  inside = tuple(
    slice(min(axis.start, size), min(axis.stop, size))
    for axis, size in zip(index, tensor.shape, strict=True)
  )
  if inside == index:  # no copy, which a pad of nothing would make
    return tensor.read(index)
  if any(axis.start == axis.stop for axis in inside):
    # safetensors reads an empty slice only at the beginning of a tensor.
    inside = (slice(0, 0),) * len(index)
  missing = [
    axis.stop - axis.start - (part.stop - part.start)
    for axis, part in zip(index, inside, strict=True)
  ]
  return np.pad(tensor.read(inside), [(0, count) for count in missing])
