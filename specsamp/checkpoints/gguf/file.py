"""The metadata of a GGUF file, and reads of any slice of its tensors.

The library `gguf` dequantizes. Its reader is not used: it keeps an object for
each entry of an array, which takes 40 s and 1.3 GB for the tokens of Gemma 3.
"""

import functools
import math
import mmap
import pathlib
import struct
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from specsamp.errors import UserError
from specsamp.utils import files

_VERSIONS = (2, 3)
# Types of values by their number in the file, as numpy writes them.
_SCALARS = dict(
  enumerate(('<u1', '<i1', '<u2', '<i2', '<u4', '<i4', '<f4', '?'))
) | {10: '<u8', 11: '<i8', 12: '<f8'}
_STRING, _ARRAY = 8, 9
# Tensors that are stored as they are; ml_dtypes has bfloat16.
_FLOATS = {'F32': '<f4', 'F16': '<f2', 'BF16': ml_dtypes.bfloat16}


class Stored(NamedTuple):
  """A tensor in a GGUF file, with the interface of `tensor_files.Stored`.

  Attributes:
    file: the file.
    offset: first byte of the tensor.
    shape: one or two axes; rows are contiguous.
    kind: name of the type in llama.cpp: F32, Q4_K, ..
    block: number of values in a block of the type.
    block_bytes: bytes of a block.
  """

  file: pathlib.Path
  offset: int
  shape: tuple[int, ...]
  kind: str
  block: int
  block_bytes: int

  @property
  def dtype(self) -> str:
    """F32, F16 or BF16; BF16 for quantized weights, which have fewer bits."""
    return self.kind if self.kind in _FLOATS else 'BF16'

  @property
  def num_bytes(self) -> int:
    return math.prod(self.shape) // self.block * self.block_bytes

  def read(self, index=()) -> np.ndarray:
    """Reads the part at an index of slices of step 1; () is all of it.

    Quantized tensors become float32. Only the blocks of the part are read.
    """
    rows, columns = (slice(None),) * (2 - len(index)) + tuple(index)
    start, stop, _ = columns.indices(self.shape[-1])
    first, last = start // self.block, -(-stop // self.block)
    with files.reading(f'model {self.file}'):
      shape = (-1, self.shape[-1] // self.block * self.block_bytes)
      data = np.memmap(
        self.file, np.uint8, 'r', self.offset, (self.num_bytes,)
      ).reshape(shape)
      # A copy, so that no page stays mapped.
      data = np.array(
        data[rows, first * self.block_bytes : last * self.block_bytes]
      )
    if self.kind in _FLOATS:
      values = data.view(_FLOATS[self.kind])
    elif data.size:
      values = _dequantize(self.kind, data)
    else:
      values = np.zeros((len(data), 0), np.float32)
    values = values[:, start - first * self.block : stop - first * self.block]
    return values[0] if len(self.shape) == 1 else values


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Stored]]:
  """Returns the metadata and the tensors of a file; reads only its header.

  Numbers of 32 bits are the shortest decimals that round to them. Arrays of
  numbers are numpy's, those of strings are lists.

  Raises:
    UserError: the file is missing, truncated, corrupt, or one of several; a
      tensor has a type that `gguf` does not dequantize; or `gguf` is not
      installed.
  """
  gguf = _library()
  with files.reading(f'model {path}'), open(path, 'rb') as file:
    if file.read(4) != b'GGUF':
      raise ValueError('not a GGUF file')
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
      try:
        values, infos, end = _parse(content)
      except (struct.error, IndexError, KeyError):
        raise ValueError('truncated or corrupt') from None
      size = len(content)
  if values.get('split.count', 1) > 1:
    raise UserError(
      f'model {path}: one of {values["split.count"]} files; '
      '`llama-gguf-split --merge` joins them'
    )
  tensors = {}
  with files.reading(f'model {path}'):
    step = values.get('general.alignment', 32)
    begin = -(-end // step) * step
    for name, (shape, number, offset) in infos.items():
      kind = gguf.GGMLQuantizationType(number)
      stored = Stored(
        path, begin + offset, shape, kind.name, *gguf.GGML_QUANT_SIZES[kind]
      )
      if not shape or shape[-1] % stored.block or 0 in shape:
        raise ValueError(f'{name}: a {kind.name} of shape {list(shape)}')
      if not _is_read(kind.name):
        raise ValueError(f'{name}: gguf does not dequantize {kind.name}')
      if stored.offset + stored.num_bytes > size:
        raise ValueError(f'truncated: {name} ends after the file')
      tensors[name] = stored
  return values, tensors


def _library():
  try:
    import gguf
  except ImportError:
    raise UserError(
      "GGUF files need gguf, a library: pip install 'specsamp[gguf]'"
    ) from None
  return gguf


@functools.cache
def _is_read(kind: str) -> bool:
  """Returns True if tensors of this type become floats."""
  block_bytes = _library().GGML_QUANT_SIZES[_kind(kind)][1]
  try:
    _dequantize(kind, np.zeros((1, block_bytes), np.uint8))
  except NotImplementedError:
    return False
  return True


def _dequantize(kind: str, data: np.ndarray) -> np.ndarray:
  return _library().quants.dequantize(data, _kind(kind))


def _kind(name: str):
  return _library().GGMLQuantizationType[name]


def _parse(content) -> tuple[dict[str, Any], dict[str, tuple], int]:
  """Returns values, name -> (shape, type, offset), and where these end."""
  at = 4

  def take(form: str):
    nonlocal at
    (value,) = struct.unpack_from(form, content, at)
    at += struct.calcsize(form)
    return value

  def string() -> str:
    nonlocal at
    end = take('<Q') + at
    if end > len(content):
      raise IndexError
    text, at = content[at:end], end
    return text.decode()

  def array(kind: int, count: int) -> np.ndarray:
    nonlocal at
    dtype = np.dtype(_SCALARS[kind])
    if at + count * dtype.itemsize > len(content):
      raise IndexError
    # A copy, since the map is closed while arrays live.
    result = np.frombuffer(content, dtype, count, at).copy()
    at += result.nbytes
    return result

  def value():
    kind = take('<I')
    if kind == _STRING:
      return string()
    if kind != _ARRAY:
      (number,) = array(kind, 1)
      return float(str(number)) if number.dtype == 'f4' else number.item()
    kind, count = take('<I'), take('<Q')
    if kind == _STRING:
      return [string() for _ in range(count)]
    return array(kind, count)

  version = take('<I')
  if version not in _VERSIONS:
    raise ValueError(f'version {version} of GGUF, expected 2 or 3')
  num_tensors, num_values = take('<Q'), take('<Q')
  values, infos = {}, {}
  for _ in range(num_values):
    key = string()
    if key in values:
      raise ValueError(f'{key}: twice')
    values[key] = value()
  for _ in range(num_tensors):
    name = string()
    if name in infos:
      raise ValueError(f'{name}: twice')
    shape = tuple(take('<Q') for _ in range(min(take('<I'), 8)))
    infos[name] = shape[::-1], take('<I'), take('<Q')
  return values, infos, at
