"""The target's features of a text, computed once and kept in files.

Several drafters of a target, a draft model among them, read the same features
in every epoch, and then cost no passes of the target.
"""

import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Iterator

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
  """Computes the features of a target that a drafter reads: [B, T, E].

  Features are those at the transformer's taps and, last, the LM head's input.
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
  """Results of `compute` for rows of tokens, computed on request and kept.

  features.npy keeps the results; done.npy marks the rows that are computed.
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
      folder: folder for N x T x E x 2 bytes.
      target: the model whose features they are.
      rows: int [N, T + 1]; the last token of each has no feature.
      taps: see `Transformer`.

    Raises:
      UserError: the folder has another target's or another text's features.
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
    folder = pathlib.Path(folder)
    files.claim(folder / 'features.json', settings)
    features, done = folder / 'features.npy', folder / 'done.npy'
    if not done.exists():
      np.lib.format.open_memmap(features, 'w+', _DTYPE, shape)
      content = io.BytesIO()
      np.save(content, np.zeros(len(rows), bool))
      files.replace(done, content.getvalue())  # after the features
    self._features = np.lib.format.open_memmap(features, 'r+')
    self._done = np.lib.format.open_memmap(done, 'r+')
    transformer = target.transformer.clone(taps=taps)
    # Features beyond the range of 16 bits become its largest number.
    self._compute = jax.jit(
      lambda params, tokens: jnp.clip(
        compute(transformer, params, tokens), -float16.LARGEST, float16.LARGEST
      ).astype(_DTYPE)
    )

  @property
  def num_bytes(self) -> int:
    return self._features.nbytes

  def __call__(self, index_b) -> np.ndarray:
    """Returns the features of these rows, [B, T, E]."""
    if not self._done[index_b].all():
      features = self._compute(self._params, self._rows[index_b, :-1])
      self._features[index_b] = np.asarray(features)
      self._done[index_b] = True  # after the features
    return self._features[index_b]


@dataclasses.dataclass(frozen=True)
class Sequences:
  """Batches of training sequences.

  A batch has `tokens`, int32 [B, T + 1], `seed`, uint32 [B], and `noise`,
  float32 [B], the largest noise on features, which is 0 in validation. It may
  have `features`, [B, T, E], and `counts`, bool [B, T].

  Attributes:
    rows: the sequences, shuffled again in each epoch.
    features: features of the rows; None for batches without features.
    counts: bool [N, T], True where the loss of the next token counts; None
      counts all.
    noise: largest noise on the features of training batches.
  """

  rows: packing.Rows
  features: FeatureCache | None
  counts: np.ndarray | None = None
  noise: float = 0.0

  def batch(self, step: int) -> dict[str, np.ndarray]:
    return self._make(self.rows.batch(step), step, self.noise)

  def in_order(self, num_batches: int) -> Iterator[dict[str, np.ndarray]]:
    for step, index_b in enumerate(self.rows.in_order(num_batches)):
      yield self._make(index_b, step, 0.0)

  def _make(
    self, index_b: np.ndarray, step: int, noise: float
  ) -> dict[str, np.ndarray]:
    size = len(index_b)
    batch = {
      'tokens': self.rows.tokens[index_b],
      'seed': np.arange(step * size, (step + 1) * size, dtype=np.uint32),
      'noise': np.full(size, noise, np.float32),
    }
    if self.features is not None:
      batch['features'] = self.features(index_b)
    if self.counts is not None:
      batch['counts'] = self.counts[index_b]
    return batch
