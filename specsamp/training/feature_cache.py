"""The target's features of a text, computed once and kept by one process.

Several drafters of one target, a draft model among them, and every epoch of
each, then cost what the drafter costs.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from specsamp.data import packing
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, float16
from specsamp.utils import files

# Rounded to 16 bits: a thousandth of a feature, less than the noise that
# training adds.
_DTYPE = np.float16


def check(folder: str) -> None:
  """Raises `UserError` if several processes would keep features in a folder."""
  count = jax.process_count()
  if folder and count > 1:
    raise UserError(
      f'features: got {folder} and {count} processes, expected one process or '
      'no folder'
    )


def read(transformer: Transformer, params, tokens_bt):
  """What a drafter is trained on of a target, side by side: [B, T, E].

  Args:
    transformer: the target, with the taps of the drafter.
    params: its parameters.
    tokens_bt: int [B, T].

  Returns:
    The features, and where these are those of taps the LM head's input behind
    them, of which the target's distribution is made.
  """
  out = transformer.apply({'params': params}, tokens_bt)
  if not transformer.taps:
    return out.hidden
  return jnp.concatenate([out.features, out.hidden], axis=-1)


def apart(read_bte, width: int):
  """Of what `read` returns: the features, and the LM head's input."""
  hidden_btd = read_bte[..., -width:]
  if read_bte.shape[-1] == width:
    return hidden_btd, hidden_btd
  return read_bte[..., :-width], hidden_btd


class FeatureCache:
  """What `read` makes of rows of tokens, filled as they are asked for."""

  def __init__(
    self,
    folder,
    target: LanguageModel,
    rows: np.ndarray,
    taps: tuple[int, ...] = (),
  ):
    """Opens or begins a cache.

    Args:
      folder: for the arrays, N x T x D x 2 bytes of them, with taps as often
        again as there are taps.
      target: whose features they are.
      rows: int [N, T + 1]; the last token of each has no feature.
      taps: see `Transformer`.

    Raises:
      UserError: the folder holds another target's or another text's features.
    """
    self._rows = rows
    self._params = target.params
    width = target.config.width * (1 + len(taps))
    shape = (len(rows), rows.shape[1] - 1, width)
    self._folder = pathlib.Path(folder)
    made_of = {
      'target': target.fingerprint,
      'text': hashlib.sha256(rows.tobytes()).hexdigest()[:16],
      'shape': shape,
    }
    if taps:
      made_of['taps'] = taps
    made_of = json.dumps(made_of)
    self._folder.mkdir(parents=True, exist_ok=True)
    path = self._folder / 'features.json'
    if path.exists() and path.read_bytes() != made_of.encode():
      raise UserError(
        f'features {folder}: of another target or text, or of other layers; '
        'name another folder'
      )
    files.replace(path, made_of)  # before what it describes
    self._features, self._done = _open(self._folder, shape)
    transformer = target.transformer.clone(taps=taps)
    # What is beyond 16 bits, in a residual stream, is their largest number.
    self._compute: Callable = jax.jit(
      lambda params, tokens: jnp.clip(
        read(transformer, params, tokens), -float16.LARGEST, float16.LARGEST
      ).astype(_DTYPE)
    )

  def __call__(self, index_b) -> np.ndarray:
    """What `read` makes of these rows, [B, T, E]."""
    if not self._done[index_b].all():
      found = self._compute(self._params, self._rows[index_b, :-1])
      self._features[index_b] = np.asarray(found)
      self._done[index_b] = True  # after what it vouches for
    return self._features[index_b]


@dataclasses.dataclass(frozen=True)
class Sequences:
  """Rows in batches: `tokens`, int32 [B, T + 1], and what is kept of them.

  Attributes:
    rows: shuffled anew in each epoch.
    features: of the rows, [B, T, E] beside the tokens; None is none.
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
