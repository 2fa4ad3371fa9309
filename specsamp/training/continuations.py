"""Self-distillation: a target's own continuations as a drafter's text.

Medusa (2401.10774), section 2.3.2; ParallelSpec (2410.05589), section 5.3: what
a drafter meets when it drafts is the target's text, not the corpus'.
"""

import hashlib
import io
import json
import pathlib

import numpy as np

from specsamp.decoding.generate import generate
from specsamp.decoding.request import Request, compile_programs
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files, progress

_SHARD = 'tokens-{:05}.npy'
_MADE_OF = 'continuations.json'


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
  """Prompts cut from a text, each with what the target makes of it.

  Every batch is written as soon as it is done; what the folder holds is not
  decoded again. No stop token is honoured, so all are of one length.

  Args:
    target: writes them.
    tokens: int [tokens], a text.
    folder: for the batches.
    count: how many sequences, whole batches.
    prompt_length: tokens of text in each.
    length: tokens in each, the prompt's included.
    temperature: of the target; 0 is greedy.
    batch_size: sequences decoded at once.
    seed: of the prompts and the draws.

  Returns:
    Int32 [count, length].

  Raises:
    UserError: a text without that many prompts, sizes that do not fit, or a
      folder that holds other continuations.
  """
  available = len(tokens) // prompt_length if prompt_length > 0 else 0
  _check(target, count, available, prompt_length, length, batch_size)
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
  bar = progress.bar(
    f'continuing {folder.name}, t={temperature:g}',
    range(0, count, batch_size),
    unit='batch',
  )
  for start in bar:
    path = folder / _SHARD.format(start // batch_size)
    batch = prompts[start : start + batch_size]
    done = distributed.is_first() and _is_whole(
      path, batch, length, target.config.num_tokens
    )
    if not distributed.of_first(int(done)):
      arguments = dict(
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=length - prompt_length,
        stop_tokens=(),
      )
      request = Request.make(target, batch.tolist(), **arguments)
      if not request.is_compiled:
        compile_programs([request])
        bar.unpause()
      found = generate(target, batch.tolist(), seed=seed + start, **arguments)
      whole = np.concatenate([batch, found.tokens], axis=1).astype(np.int32)
      distributed.first_does(lambda: _write(path, whole), f'{path}')  # noqa: B023
    rows.append(np.load(path))
  return np.concatenate(rows)


def written(
  folder, name: str, target: LanguageModel, length: int
) -> np.ndarray:
  """Reads the continuations that `launch/distill.py` keeps for its drafters.

  Args:
    folder: its `--config.continuations`, with a folder for each temperature.
    name: `train` or `held_out`.
    target: the model that wrote them.
    length: tokens in each sequence, the prompt's included.

  Returns:
    Int32 [N, length], the temperatures by turns, in rising order: what
    `launch/distill.py` trains on where it takes all of them in that order.

  Raises:
    UserError: a folder without any, of another target or of another length, or
      with a file that cannot be read.
  """
  parts = sorted(pathlib.Path(folder).glob(f't*/{name}'))
  shards = [sorted(part.glob('tokens-*.npy')) for part in parts]
  if not shards or not all(shards):
    raise UserError(
      f'continuations {folder}: got no t*/{name}/{_SHARD.format(0)}, expected '
      'what launch/distill.py has the target write there'
    )
  try:
    made_of = [files.read_json(part / _MADE_OF) for part in parts]
    rows = [np.concatenate([np.load(path) for path in own]) for own in shards]
  except (OSError, ValueError) as error:
    raise UserError(
      f'continuations {folder}: {" ".join(str(error).split())}'
    ) from error
  wanted = {'target': target.fingerprint, 'length': length}
  for part, got in zip(parts, made_of, strict=True):
    for key, value in wanted.items():
      if got[key] != value:
        raise UserError(
          f'continuations {part}: {key}: got {got[key]}, expected {value}'
        )
  for part, own in zip(parts, rows, strict=True):
    if own.dtype != np.int32 or own.shape[1:] != (length,):
      raise UserError(
        f'continuations {part}: got {own.dtype} {list(own.shape)}, expected '
        f'int32 [N, {length}]'
      )
  whole = np.concatenate(rows)
  turns = np.concatenate([np.arange(len(own)) for own in rows])
  return whole[np.argsort(turns, kind='stable')]


def _check(target, count, available, prompt_length, length, batch_size):
  if count < 1 or count % batch_size:
    raise UserError(
      f'continuations: count: got {count}, expected a multiple of '
      f'batch_size={batch_size}'
    )
  if not 0 < prompt_length < length <= target.config.max_length:
    raise UserError(
      f'continuations: a prompt of {prompt_length} tokens in sequences of '
      f'{length} for a target of {target.config.max_length} positions'
    )
  if count > available:
    raise UserError(
      f'continuations: count: got {count}, but the text has {available} '
      f'prompts of prompt_length={prompt_length} tokens'
    )


def _claim(folder: pathlib.Path, made_of: dict) -> None:
  """Writes or compares the folder's description."""
  path, text = folder / _MADE_OF, json.dumps(made_of, indent=2)

  def write():
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      files.replace(path, text + '\n')

  distributed.first_does(write, f'continuations {folder}')
  if path.read_bytes().strip() != text.encode():
    raise UserError(
      f'continuations {folder}: of another target, text or size; name another '
      'folder'
    )


def _write(path: pathlib.Path, rows: np.ndarray) -> None:
  content = io.BytesIO()
  np.save(content, rows)
  files.replace(path, content.getvalue())


def _is_whole(path, prompts: np.ndarray, length: int, num_tokens: int) -> bool:
  """Whether a batch is there; what is no batch is set aside."""
  if not path.exists():
    return False
  try:
    rows = np.load(path)
    if (
      rows.dtype == np.int32
      and rows.shape == (len(prompts), length)
      and np.array_equal(rows[:, : prompts.shape[1]], prompts)
      and 0 <= rows.min() <= rows.max() < num_tokens
    ):
      return True
  except Exception:  # numpy raises what its format's parsers raise
    pass
  files.set_aside(path, 'holds no sequences of this run')
  return False
