"""Self-distillation: a target's continuations as a drafter's training text.

A drafter drafts the target's text, not the corpus. See Medusa (2401.10774),
section 2.3.2, and ParallelSpec (2410.05589), section 5.3.
"""

import functools
import hashlib
import io
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
    folder: folder that keeps the batches.
    count: number of sequences, a multiple of `batch_size`.
    prompt_length: tokens of the text at the start of each sequence.
    length: tokens of each sequence, the prompt included.
    temperature: temperature of the target; 0 is greedy.
    batch_size: sequences that are decoded at once.
    seed: seed of the choice of prompts and of the draws.

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
  files.claim(
    folder / _SETTINGS,
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
    # The first process decides, because others may see its files later.
    if not distributed.of_first(int(path.exists())):
      batch = prompts[start : start + batch_size]
      out = generate(
        target,
        batch.tolist(),
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=length - prompt_length,
        stop_tokens=(),
        seed=seed + start,
      )
      content = io.BytesIO()
      whole = np.concatenate([batch, out.tokens], axis=1)
      np.save(content, whole.astype(np.int32))
      write = functools.partial(files.replace, path, content.getvalue())
      distributed.first_does(write, str(path))
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
    UserError: the folder has no continuations, or those of another target or
      length.
  """
  parts = sorted(pathlib.Path(folder).glob(f't*/{name}'))
  shards = [sorted(part.glob('tokens-*.npy')) for part in parts]
  if not shards or not all(shards):
    raise UserError(
      f'continuations {folder}: got no t*/{name}/{_SHARD.format(0)}, expected '
      'the files that launch/distill.py writes'
    )
  expected = {'target': target.fingerprint, 'length': length}
  for part in parts:
    settings = files.read_json(part / _SETTINGS)
    for key, value in expected.items():
      if settings[key] != value:
        raise UserError(
          f'continuations {part}: {key}: got {settings[key]}, expected {value}'
        )
  rows = [np.concatenate(list(map(np.load, paths))) for paths in shards]
  order = np.concatenate([np.arange(len(part)) for part in rows])
  return np.concatenate(rows)[np.argsort(order, kind='stable')]
