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
    if path.exists() and path.read_text() != made_of:
      raise UserError(
        f'features {folder}: of another target or text; name another folder'
      )
    partial = path.with_suffix('.partial')
    partial.write_text(made_of)
    partial.rename(path)  # whole, and before what it describes
    self._features = self._open('features.npy', _DTYPE, shape)
    self._done = self._open('done.npy', bool, shape[:1])
    transformer = target.transformer
    self._compute: Callable = jax.jit(
      lambda params, tokens: transformer.apply(
        {'params': params}, tokens
      ).hidden.astype(_DTYPE)
    )

  def _open(self, name: str, dtype, shape) -> np.memmap:
    path = self._folder / name
    mode = 'r+' if path.exists() else 'w+'
    return np.lib.format.open_memmap(path, mode, dtype, shape)

  def __call__(self, index_b) -> np.ndarray:
    """Features [B, T, D] of these rows."""
    if not self._done[index_b].all():
      found = self._compute(self._params, self._rows[index_b, :-1])
      self._features[index_b] = np.asarray(found)
      self._done[index_b] = True  # after what it vouches for
    return self._features[index_b]
