"""How parameters lie in tensors that others have written.

A layout names, for every parameter, the tensors that it is made of and the
order of their axes, so that any part of a parameter can be read from just those
parts of the tensors, and the tensors be written from the parameters.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specsamp.checkpoints.tensor_files import Stored
from specsamp.errors import UserError

_NAMED = 5  # tensors of each kind that an error lists


class Part(NamedTuple):
  """Where a parameter, or one of several that are stacked, lies in a tensor.

  Attributes:
    key: the tensor's name.
    axes: a word for each axis of the tensor, of the letters of the parameter's
      axes; those of one word lie in one axis, as in 'hk d'.
    start: where it begins in each axis of the tensor; () is at 0.
  """

  key: str
  axes: str
  start: tuple[int, ...] = ()


class Source(NamedTuple):
  """What a parameter is made of.

  Attributes:
    axes: a letter for each axis of the parameter, of the layout's own.
    parts: one, or one for each entry of the axis whose letter they lack.
  """

  axes: str
  parts: tuple[Part, ...]

  @property
  def stacked(self) -> str:
    """The letter of the axis that the parts are stacked along, '' if none."""
    return ''.join(set(self.axes) - set(self.parts[0].axes))


Layout = dict[str, Source]


def one(axes: str, key: str, there: str) -> Source:
  """A parameter that is a tensor."""
  return Source(axes, (Part(key, there),))


def stack(axes: str, keys: list[str], there: str) -> Source:
  """A parameter of which each tensor is a part."""
  return Source(axes, tuple(Part(key, there) for key in keys))


def norm(own: str, theirs: str) -> Layout:
  """Scale and bias of a layer norm."""
  return {
    f'{own}.scale': one('d', f'{theirs}.weight', 'd'),
    f'{own}.bias': one('d', f'{theirs}.bias', 'd'),
  }


def check(
  what: str, layout: Layout, shapes, tensors: dict[str, Stored]
) -> None:
  """Refuses tensors that are not those of a layout, no more and no fewer.

  Args:
    what: they are, for the error.
    layout: of the parameters.
    shapes: parameter -> shape.
    tensors: what there is.

  Raises:
    UserError: lists what is missing, what is left over and what has another
      shape or no numbers.
  """
  expected = tensor_shapes(layout, shapes)
  missing = sorted(expected.keys() - tensors.keys())
  unused = sorted(tensors.keys() - expected.keys())
  wrong = [
    f'{name} {list(tensors[name].shape)} instead of {list(shape)}'
    for name, shape in sorted(expected.items())
    if name in tensors and tensors[name].shape != shape
  ]
  kinds = [
    f'{name} {tensors[name].dtype}'
    for name in sorted(expected.keys() & tensors.keys())
    if tensors[name].dtype not in ('F32', 'F16', 'BF16')
  ]
  faults = [
    f'{len(names)} {kind}: {", ".join(names[:_NAMED])}'
    + (', ..' if len(names) > _NAMED else '')
    for kind, names in (
      ('missing', missing),
      ('not used', unused),
      ('of another shape', wrong),
      ('that are no floats of 16 or 32 bits', kinds),
    )
    if names
  ]
  if faults:
    raise UserError(
      f'{what}: tensors do not fit the config; {"; ".join(faults)}'
    )


def read(
  tensors: dict[str, Stored], source: Source, shape: tuple[int, ...], index=()
) -> np.ndarray:
  """A part of a parameter.

  Args:
    tensors: checked against the layout.
    source: of the parameter.
    shape: of the whole parameter; along an axis where it is longer than the
      tensor, the rest is 0.
    index: slices of step 1, one for each axis; () is all of it.
  """
  index = index or (slice(None),) * len(shape)
  bounds = {
    letter: part.indices(size)[:2]
    for letter, part, size in zip(source.axes, index, shape, strict=True)
  }
  sizes = dict(zip(source.axes, shape, strict=True))
  stacked, parts = source.stacked, source.parts
  if stacked:
    parts = parts[slice(*bounds.pop(stacked))]
  own = source.axes.replace(stacked, '')
  pieces = []
  for part in parts:
    letters = part.axes.replace(' ', '')
    piece = _read_slices(tensors[part.key], _slices(part, bounds, sizes))
    piece = piece.reshape([bounds[x][1] - bounds[x][0] for x in letters])
    pieces.append(piece.transpose([letters.index(x) for x in own]))
  if not stacked:
    return pieces[0]
  return np.stack(pieces, axis=source.axes.index(stacked))


def make(
  layout: Layout,
  key: str,
  shape: tuple[int, ...],
  fetch: Callable[[str], np.ndarray],
) -> np.ndarray:
  """A tensor of a layout, made of the parameters that lie in it.

  Args:
    layout: of the parameters.
    key: the tensor's name.
    shape: of the tensor; what no parameter fills is 0.
    fetch: parameter -> its values, on this host.
  """
  tensor = None
  for name, source in layout.items():
    for i, part in enumerate(source.parts):
      if part.key != key:
        continue
      value, own = fetch(name), source.axes
      if tensor is None:
        tensor = np.zeros(shape, value.dtype)
      sizes = dict(zip(own, value.shape, strict=True))
      if source.stacked:
        value = value.take(i, axis=own.index(source.stacked))
        own = own.replace(source.stacked, '')
      value = value.transpose([own.index(x) for x in part.axes if x != ' '])
      at = _slices(part, _whole(sizes), sizes)
      tensor[at] = value.reshape([s.stop - s.start for s in at])
  return tensor


def tensor_shapes(layout: Layout, shapes) -> dict[str, tuple[int, ...]]:
  """Tensor -> its shape, of the last entries that any part takes."""
  found: dict[str, tuple[int, ...]] = {}
  for name, source in layout.items():
    sizes = dict(zip(source.axes, shapes[name], strict=True))
    for part in source.parts:
      ends = tuple(s.stop for s in _slices(part, _whole(sizes), sizes))
      found[part.key] = tuple(map(max, ends, found.get(part.key, ends)))
  return found


def _slices(part: Part, bounds, sizes) -> tuple[slice, ...]:
  """What to take of each axis of a part's tensor."""
  words = part.axes.split()
  starts = part.start or (0,) * len(words)
  slices = []
  for start, (first, *rest) in zip(starts, words, strict=True):
    # Of axes that lie in one, only the slowest can be cut without gaps.
    assert all(bounds[letter] == (0, sizes[letter]) for letter in rest)
    step = math.prod(sizes[letter] for letter in rest)
    low, high = bounds[first]
    slices.append(slice(start + low * step, start + high * step))
  return tuple(slices)


def _read_slices(tensor: Stored, at: tuple[slice, ...]) -> np.ndarray:
  """As `tensor.read`, with zeros past the tensor's end."""
  there = tuple(
    slice(min(s.start, size), min(s.stop, size))
    for s, size in zip(at, tensor.shape, strict=True)
  )
  short = [
    s.stop - s.start - (t.stop - t.start)
    for s, t in zip(at, there, strict=True)
  ]
  if not any(short):
    return tensor.read(at)
  if any(t.start == t.stop for t in there):
    # An empty part is only read of a tensor's begin.
    there = (slice(0, 0),) * len(at)
    short = [s.stop - s.start for s in at]
  return np.pad(tensor.read(there), [(0, n) for n in short])


def _whole(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
  return {letter: (0, size) for letter, size in sizes.items()}
