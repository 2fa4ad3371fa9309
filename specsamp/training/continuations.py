"""Self-distillation: a target's continuations as a drafter's training text.

A drafter drafts the target's text, not the corpus. See Medusa (2401.10774),
section 2.3.2, and ParallelSpec (2410.05589), section 5.3.
"""

import hashlib
import io
import json
import pathlib

import numpy as np

from specsamp.decoding.generate import generate
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files, progress

_SHARD = 'tokens-{:05}.npy'
_SETTINGS = 'continuations.json'


def continuations(
  target: LanguageModel,
  tokens: np.ndarray,
  folder,
  *,
  count: int,
  prompt_length: int,
  length: int,
  temperature: float,
  batch_size: int,
  seed: int,
) -> np.ndarray:
  """Returns prompts cut from a text, each continued by the target.

  Every batch is written as soon as it is decoded, and is not decoded again. No
  token stops a sequence, so all sequences have one length.

  Args:
    target: the model that writes.
    tokens: int [tokens], a text.
    folder: for the batches.
    count: number of sequences, a multiple of `batch_size`.
    prompt_length: tokens of the text at the start of each sequence.
    length: tokens of each sequence, the prompt included.
    temperature: of the target; 0 is greedy.
    batch_size: sequences that are decoded at once.
    seed: of the choice of prompts and the draws.

  Returns:
    int32 [count, length].

  Raises:
    UserError: the text has too few prompts, or the folder has other
      continuations.
  """
  available = len(tokens) // prompt_length
  if count > available:
    raise UserError(
      f'continuations: count: got {count}, but the text has {available} '
      f'prompts of prompt_length={prompt_length} tokens'
    )
  chosen = np.random.default_rng(seed).permutation(available)[:count]
  prompts = tokens[: available * prompt_length].reshape(-1, prompt_length)
  prompts = prompts[chosen]
  folder = pathlib.Path(folder)
  _claim(
    folder,
    {
      'target': target.fingerprint,
      'text': hashlib.sha256(tokens.tobytes()).hexdigest()[:16],
      'length': length,
      'prompt_length': prompt_length,
      'temperature': temperature,
      'batch_size': batch_size,
      'seed': seed,
    },
  )
  rows = []
  for start in progress.bar(
    f'continuing {folder.name}, t={temperature:g}',
    range(0, count, batch_size),
    unit='batch',
  ):
    path = folder / _SHARD.format(start // batch_size)
    batch = prompts[start : start + batch_size]
    is_done = distributed.is_first() and _has_continuations(path, batch, length)
    if not distributed.of_first(int(is_done)):
      out = generate(
        target,
        batch.tolist(),
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=length - prompt_length,
        stop_tokens=(),
        seed=seed + start,
      )
      whole = np.concatenate([batch, out.tokens], axis=1).astype(np.int32)
      distributed.first_does(lambda: _write(path, whole), f'{path}')  # noqa: B023
    rows.append(np.load(path))
  return np.concatenate(rows)


def read(folder, name: str, target: LanguageModel, length: int) -> np.ndarray:
  """Reads the continuations that `launch/distill.py` keeps.

  Args:
    folder: its `--config.continuations`, with a folder for each temperature.
    name: `train` or `held_out`.
    target: the model that wrote them.
    length: tokens in each sequence, the prompt included.

  Returns:
    int32 [N, length], the temperatures interleaved in rising order, as
    `launch/distill.py` trains on them.

  Raises:
    UserError: the folder has no continuations, those of another target or
      length, or a file that cannot be read.
  """
  parts = sorted(pathlib.Path(folder).glob(f't*/{name}'))
  shards = [sorted(part.glob('tokens-*.npy')) for part in parts]
  if not shards or not all(shards):
    raise UserError(
      f'continuations {folder}: got no t*/{name}/{_SHARD.format(0)}, expected '
      'the files that launch/distill.py writes'
    )
  try:
    settings = [files.read_json(part / _SETTINGS) for part in parts]
    rows = [np.concatenate(list(map(np.load, paths))) for paths in shards]
  except (OSError, ValueError) as error:
    raise UserError(
      f'continuations {folder}: {" ".join(str(error).split())}'
    ) from error
  for part, values in zip(parts, settings, strict=True):
    for key, expected in (('target', target.fingerprint), ('length', length)):
      if values[key] != expected:
        raise UserError(
          f'continuations {part}: {key}: got {values[key]}, expected {expected}'
        )
  order = np.concatenate([np.arange(len(part)) for part in rows])
  return np.concatenate(rows)[np.argsort(order, kind='stable')]


def _claim(folder: pathlib.Path, settings: dict) -> None:
  """Writes the settings of a folder, or compares them with its own."""
  path, text = folder / _SETTINGS, json.dumps(settings, indent=2)

  def write():
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      files.replace(path, text + '\n')

  distributed.first_does(write, f'continuations {folder}')
  if path.read_bytes().strip() != text.encode():
    raise UserError(
      f'continuations {folder}: has those of another target, text or size; '
      'name another folder'
    )


def _write(path: pathlib.Path, rows: np.ndarray) -> None:
  content = io.BytesIO()
  np.save(content, rows)
  files.replace(path, content.getvalue())


def _has_continuations(
  path: pathlib.Path, prompts: np.ndarray, length: int
) -> bool:
  """Returns True if a file has whole sequences that start with the prompts."""
  if not path.exists():
    return False
  try:
    rows = np.load(path)
  except Exception:  # numpy raises the errors of several parsers
    return False
  return rows.shape == (len(prompts), length) and np.array_equal(
    rows[:, : prompts.shape[1]], prompts
  )
