"""Tensors in safetensors files, and reads of any slice of them."""

import pathlib
import re
from collections.abc import Iterable
from typing import NamedTuple

import ml_dtypes  # noqa: F401, registers bfloat16 with numpy
import numpy as np
import safetensors

from specsamp.errors import UserError
from specsamp.utils import files

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_MAX_NAMES = 5  # tensors of each kind that an error lists
# Buffers that older versions of transformers saved with the weights.
_BUFFERS = re.compile(r'(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$')
_PICKLES = ('.bin', '.pt', '.pth', '.ckpt')


class Stored(NamedTuple):
  """A tensor in a file; dtypes are those of safetensors: F32, BF16, I8, .."""

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str

  def read(self, index=()) -> np.ndarray:
    """Reads the tensor, or the part at an index of slices of step 1.

    Opens the file each time: pages of a file that stays open count as this
    process's memory.
    """
    with _opened(self.file) as file:
      return file.get_slice(self.name)[index or ...]


def in_files(paths: Iterable[pathlib.Path]) -> dict[str, Stored]:
  """Returns the tensors of files except module buffers; reads only headers.

  Raises:
    UserError: a file is missing, truncated or not a safetensors file, or two
      files hold the same name.
  """
  tensors: dict[str, Stored] = {}
  for file in paths:
    with _opened(file) as opened:
      for name in opened.keys():  # noqa: SIM118
        if _BUFFERS.search(name):
          continue
        if name in tensors:
          raise UserError(
            f'weights {file}: holds {name}, as {tensors[name].file.name} does'
          )
        part = opened.get_slice(name)
        shape = tuple(part.get_shape())
        tensors[name] = Stored(file, name, shape, part.get_dtype())
  return tensors


def in_folder(folder) -> dict[str, Stored]:
  """Returns the tensors of a folder in the format of Hugging Face's libraries.

  Tensors are in model.safetensors, or in the files that an index lists.

  Raises:
    UserError: see `in_files`; or weights are missing, or are only pickles.
  """
  folder = pathlib.Path(folder)
  if (folder / SINGLE).exists():
    return in_files([folder / SINGLE])
  if not (folder / INDEX).exists():
    for path in sorted(folder.iterdir()):
      if path.suffix in _PICKLES:
        raise UserError(
          f'weights {path}: reading a pickle may run code, expected '
          'safetensors; safetensors.torch.save_file writes the tensors that '
          'torch.load(.., weights_only=True) reads'
        )
    raise UserError(
      f'weights {folder}: found no weights, expected {SINGLE} or {INDEX}'
    )
  with files.reading(f'weights {folder / INDEX}'):
    names = sorted(set(files.read_json(folder / INDEX)['weight_map'].values()))
    # A file in another folder is not part of the model.
    if not names or any(pathlib.PurePath(n).name != n for n in names):
      raise ValueError("not an index with a 'weight_map' of tensors to files")
  return in_files(folder / name for name in names)


def check_shapes(
  what: str,
  expected: dict[str, tuple[int, ...]],
  got: dict[str, tuple[int, ...]],
  faults: dict[str, list[str]] | None = None,
) -> None:
  """Raises `UserError` unless tensors have the expected names and shapes.

  The message lists the first tensors of each kind of fault. `faults` maps
  further kinds to descriptions of tensors.
  """
  faults = {
    'missing': sorted(expected.keys() - got.keys()),
    'not used': sorted(got.keys() - expected.keys()),
    'of another shape': [
      f'{name} {list(got[name])} instead of {list(shape)}'
      for name, shape in sorted(expected.items())
      if got.get(name, shape) != shape
    ],
  } | (faults or {})
  lists = [
    f'{len(names)} {fault}: {", ".join(names[:_MAX_NAMES])}'
    + (', ..' if len(names) > _MAX_NAMES else '')
    for fault, names in faults.items()
    if names
  ]
  if lists:
    raise UserError(
      f'{what}: tensors do not fit the config; {"; ".join(lists)}'
    )


def _opened(file: pathlib.Path):
  with files.reading(f'weights {file}'):
    try:
      return safetensors.safe_open(file, framework='numpy')
    except safetensors.SafetensorError as error:
      raise ValueError(f'truncated or corrupt: {error}') from None
