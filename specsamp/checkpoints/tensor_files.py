"""Tensors in safetensors files, read by parts where they are taken."""

import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import ml_dtypes  # noqa: F401, numpy learns bfloat16 from it
import numpy as np
import safetensors

from specsamp.errors import UserError
from specsamp.utils import files

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_PICKLES = ('.bin', '.pt', '.pth', '.ckpt')


class Stored(NamedTuple):
  """A tensor that lies in a file.

  Attributes:
    file: which.
    name: of the tensor.
    shape: of the tensor.
    dtype: as safetensors calls it: F32, BF16, I8, ..
  """

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str

  def read(self, index=()) -> np.ndarray:
    """A part of the tensor, or all of it; slices of step 1 alone.

    The file is opened anew each time: what has been read of one that stays
    open counts as this process's memory.
    """
    with _opened(self.file) as file:
      return file.get_slice(self.name)[index or ...]


def of_files(paths: Iterable[pathlib.Path]) -> dict[str, Stored]:
  """The tensors of some files, by name; nothing but their headers is read.

  Raises:
    UserError: a file is missing or no safetensors file, or truncated; or two
      of them hold the same name.
  """
  found: dict[str, Stored] = {}
  for file in paths:
    with _opened(file) as opened:
      for name in opened.keys():  # noqa: SIM118
        if name in found:
          raise UserError(
            f'weights {file}: holds {name}, as {found[name].file.name} does'
          )
        part = opened.get_slice(name)
        shape = tuple(part.get_shape())
        found[name] = Stored(file, name, shape, part.get_dtype())
  return found


def of_folder(folder) -> dict[str, Stored]:
  """The tensors of a folder as Hugging Face's libraries write them.

  They are in model.safetensors, or in the files that an index names.

  Raises:
    UserError: as `of_files`; there are only pickled weights; or the index
      does not fit the files.
  """
  folder = pathlib.Path(folder)
  if (folder / SINGLE).exists():
    return of_files([folder / SINGLE])
  if not (folder / INDEX).exists():
    _refuse_pickles(folder)
    raise UserError(
      f'weights {folder}: found none, expected {SINGLE} or {INDEX}'
    )
  placed = _read_index(folder / INDEX)
  tensors = of_files(folder / name for name in sorted(set(placed.values())))
  got = {name: stored.file.name for name, stored in tensors.items()}
  wrong = sorted(
    name for name in placed.keys() | got if placed.get(name) != got.get(name)
  )
  if wrong:
    name = wrong[0]
    raise UserError(
      f'weights {folder / INDEX}: {len(wrong)} tensors are elsewhere, first '
      f'{name}: got {got.get(name)}, the index has {placed.get(name)}'
    )
  return tensors


def _read_index(path: pathlib.Path) -> dict[str, str]:
  """Tensor -> file name of an index."""
  try:
    placed = files.read_json(path)['weight_map']
    # A name of another folder's file would read what it should not.
    if not placed or any(
      pathlib.PurePath(name).name != name for name in placed.values()
    ):
      raise ValueError
  except OSError as error:
    raise UserError(f'weights {path}: {error.strerror}') from None
  except (ValueError, KeyError, TypeError, AttributeError):
    raise UserError(
      f"weights {path}: not an index, expected a 'weight_map' of tensors to "
      'files'
    ) from None
  return placed


def _refuse_pickles(folder: pathlib.Path) -> None:
  found = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
  if found:
    raise UserError(
      f'weights {folder / found[0]}: pickles run code when they are read; '
      'expected safetensors, which safetensors.torch.save_file makes of what '
      'torch.load(.., weights_only=True) reads'
    )


def _opened(file: pathlib.Path):
  try:
    files.check_regular(file)
    return safetensors.safe_open(file, framework='numpy')
  except FileNotFoundError:
    raise UserError(f'weights {file}: no such file') from None
  except (OSError, ValueError) as error:  # ValueError: no name of a file
    raise UserError(f'weights {str(file)!a}: {error}') from None
  except safetensors.SafetensorError as error:
    raise UserError(f'weights {file}: truncated or corrupt: {error}') from None
