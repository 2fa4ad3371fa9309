"""The target's features of a text, computed once and kept in files.

Several drafters of a target, a draft model among them, read the same features
in every epoch, and then cost no passes of the target.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.data import packing
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, float16
from specsamp.utils import files

# Rounding to 16 bits changes a feature by a thousandth, less than the noise
# that training adds.
_DTYPE = np.float16


def check_processes(folder: str) -> None:
  """Raises `UserError` if several processes would write a folder's features."""
  count = jax.process_count()
  if folder and count > 1:
    raise UserError(
      f'features: got {folder} and {count} processes, expected one process or '
      'no folder'
    )


def compute(transformer: Transformer, params, tokens_bt):
  """Computes what a drafter reads of a target: [B, T, E].

  Args:
    transformer: the target, with the taps of the drafter.
    params: of the target.
    tokens_bt: int [B, T].

  Returns:
    The input of the LM head, of which the target's distribution is made. If the
    drafter has taps, their features come before it.
  """
  out = transformer.apply({'params': params}, tokens_bt)
  if not transformer.taps:
    return out.hidden
  return jnp.concatenate([out.features, out.hidden], axis=-1)


def split(read_bte, width: int):
  """Splits the result of `compute` into features and the LM head's input."""
  hidden_btd = read_bte[..., -width:]
  if read_bte.shape[-1] == width:
    return hidden_btd, hidden_btd
  return read_bte[..., :-width], hidden_btd


class FeatureCache:
  """Results of `compute` for rows of tokens, filled as they are requested.

  Two files keep them: features.npy and done.npy, the rows that are computed.
  """

  def __init__(
    self,
    folder,
    target: LanguageModel,
    rows: np.ndarray,
    taps: tuple[int, ...] = (),
  ):
    """Opens or makes a cache.

    Args:
      folder: for the arrays, N x T x E x 2 bytes.
      target: the model whose features they are.
      rows: int [N, T + 1]; the last token of each has no feature.
      taps: see `Transformer`.

    Raises:
      UserError: the folder has another target's or another text's features, or
        cannot be written.
    """
    self._rows = rows
    self._params = target.params
    width = target.config.width * (1 + len(taps))
    shape = (len(rows), rows.shape[1] - 1, width)
    settings = {
      'target': target.fingerprint,
      'text': hashlib.sha256(rows.tobytes()).hexdigest()[:16],
      'shape': shape,
    }
    if taps:
      settings['taps'] = taps
    settings = json.dumps(settings)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'features.json'
    if path.exists() and path.read_bytes() != settings.encode():
      raise UserError(
        f'features {folder}: has those of another target or text, or of other '
        'layers; name another folder'
      )
    files.replace(path, settings)  # before the files that it describes
    self._features, self._done = _open(folder, shape)
    transformer = target.transformer.clone(taps=taps)
    # Features beyond the range of 16 bits become its largest number.
    self._compute = jax.jit(
      lambda params, tokens: jnp.clip(
        compute(transformer, params, tokens), -float16.LARGEST, float16.LARGEST
      ).astype(_DTYPE)
    )

  def __call__(self, index_b) -> np.ndarray:
    """Returns the features of these rows, [B, T, E]."""
    if not self._done[index_b].all():
      features = self._compute(self._params, self._rows[index_b, :-1])
      self._features[index_b] = np.asarray(features)
      self._done[index_b] = True  # after the features
    return self._features[index_b]


@dataclasses.dataclass(frozen=True)
class Sequences:
  """Batches of rows: `tokens`, int32 [B, T + 1], and their `features`.

  Attributes:
    rows: the sequences, shuffled again in each epoch.
    features: of the rows, [B, T, E]; None for batches without features.
  """

  rows: packing.Rows
  features: FeatureCache | None

  def batch(self, step: int) -> dict[str, np.ndarray]:
    return self._make(self.rows.batch(step))

  def in_order(self, num_batches: int) -> Iterable[dict[str, np.ndarray]]:
    return map(self._make, self.rows.in_order(num_batches))

  def _make(self, index_b: np.ndarray) -> dict[str, np.ndarray]:
    batch = {'tokens': self.rows.tokens[index_b]}
    if self.features is not None:
      batch['features'] = self.features(index_b)
    return batch


def _open(folder: pathlib.Path, shape) -> list[np.memmap]:
  """Opens features.npy and done.npy; makes both again if one is damaged."""
  wanted = {'features.npy': (_DTYPE, shape), 'done.npy': (bool, shape[:1])}
  arrays = [_read(folder / name, *layout) for name, layout in wanted.items()]
  if all(array is not None for array in arrays):
    return arrays
  return [
    np.lib.format.open_memmap(folder / name, 'w+', dtype, size)
    for name, (dtype, size) in wanted.items()
  ]


def _read(path: pathlib.Path, dtype, shape) -> np.memmap | None:
  """Returns a writable array of a file; None if it has no such array."""
  if not path.exists():
    return None
  try:
    np.lib.format.open_memmap(path, 'r')  # r+ would extend a short file
    array = np.lib.format.open_memmap(path, 'r+')
  except OSError as error:
    raise UserError(f'features {path}: {error.strerror}') from None
  except Exception:  # numpy raises the errors of several parsers
    return None
  return array if (array.dtype, array.shape) == (dtype, shape) else None
