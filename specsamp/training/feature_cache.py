"""The target's features of a text, computed once and kept by one process.

Several drafters of one target, and every epoch of each, then cost what the
drafter costs.
"""

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
    self._features, self._done = _open(
      {
        self._folder / 'features.npy': (_DTYPE, shape),
        self._folder / 'done.npy': (bool, shape[:1]),
      }
    )
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


def _open(arrays: dict[pathlib.Path, tuple[type, tuple]]) -> list[np.memmap]:
  """Files of these types and shapes; all begin anew unless all are whole.

  One says which rows of the other are computed.
  """
  found = []
  for path, (dtype, shape) in arrays.items():
    try:
      np.lib.format.open_memmap(path, 'r')  # r+ would fill up a short file
      array = np.lib.format.open_memmap(path, 'r+')
    except OSError as error:
      if not isinstance(error, FileNotFoundError):
        raise UserError(f'features {path}: {error.strerror}') from None
    except Exception:  # numpy raises what its format's parsers raise
      pass
    else:
      if (array.dtype, array.shape) == (dtype, shape):
        found.append(array)
  if len(found) == len(arrays):
    return found
  for path in arrays:
    if path.exists():
      files.set_aside(path, 'is corrupt, or what belongs to it')
  return [
    np.lib.format.open_memmap(path, 'w+', dtype, shape)
    for path, (dtype, shape) in arrays.items()
  ]
