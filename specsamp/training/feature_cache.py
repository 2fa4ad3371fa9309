"""The target's features of a text, computed once and kept by one process.

Several drafters of one target, and every epoch of each, then cost what the
drafter costs.
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from specsamp import files
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel

# Rounded to 16 bits: a thousandth of a feature, less than the noise that
# training adds.
_DTYPE = np.float16


class FeatureCache:
  """Features of rows of tokens, filled as they are asked for."""

  def __init__(self, folder, target: LanguageModel, rows: np.ndarray):
    """Opens or begins a cache.

    Args:
      folder: for the arrays, N x T x D x 2 bytes of them.
      target: whose features they are.
      rows: int [N, T + 1]; the last token of each has no feature.

    Raises:
      UserError: the folder holds another target's or another text's features.
    """
    self._rows = rows
    self._params = target.params
    shape = (len(rows), rows.shape[1] - 1, target.config.width)
    self._folder = pathlib.Path(folder)
    made_of = json.dumps(
      {
        'target': target.fingerprint,
        'text': hashlib.sha256(rows.tobytes()).hexdigest()[:16],
        'shape': shape,
      }
    )
    self._folder.mkdir(parents=True, exist_ok=True)
    path = self._folder / 'features.json'
    if path.exists() and path.read_bytes() != made_of.encode():
      raise UserError(
        f'features {folder}: of another target or text; name another folder'
      )
    files.replace(path, made_of)  # before what it describes
    self._features, self._done = _open(self._folder, shape)
    transformer = target.transformer
    self._compute: Callable = jax.jit(
      lambda params, tokens: transformer.apply(
        {'params': params}, tokens
      ).hidden.astype(_DTYPE)
    )

  def __call__(self, index_b) -> np.ndarray:
    """Features [B, T, D] of these rows."""
    if not self._done[index_b].all():
      found = self._compute(self._params, self._rows[index_b, :-1])
      self._features[index_b] = np.asarray(found)
      self._done[index_b] = True  # after what it vouches for
    return self._features[index_b]


def _open(folder: pathlib.Path, shape) -> tuple[np.memmap, np.memmap]:
  """The features, and of which rows they are computed.

  Both begin anew where one of them is not whole.
  """
  paths = folder / 'features.npy', folder / 'done.npy'
  if all(path.exists() for path in paths):
    features, done = (_read(path) for path in paths)
    if (
      features is not None
      and done is not None
      and (features.dtype, features.shape) == (_DTYPE, shape)
      and (done.dtype, done.shape) == (bool, shape[:1])
      and done.view(np.uint8).max() <= 1
    ):
      return features, done
    for path in paths:
      files.set_aside(path, 'is corrupt, or what belongs to it')
  open_new = functools.partial(np.lib.format.open_memmap, mode='w+')
  return (
    open_new(paths[0], dtype=_DTYPE, shape=shape),
    open_new(paths[1], dtype=bool, shape=shape[:1]),
  )


def _read(path: pathlib.Path) -> np.memmap | None:
  """An array of a file that is written to; None if it holds none."""
  try:
    np.lib.format.open_memmap(path, 'r')  # r+ would fill up a short file
    return np.lib.format.open_memmap(path, 'r+')
  except OSError as error:
    raise UserError(f'features {path}: {error.strerror}') from None
  except Exception:  # numpy raises what its format's parsers raise
    return None
