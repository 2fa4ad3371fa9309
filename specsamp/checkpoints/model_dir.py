"""A model as a folder: config.json, model.safetensors, tokenizer.model.

Weights are stored as they are or in 8 bits with a float32 scale for every
output channel; they are float32 again once loaded.
"""

import dataclasses
import json
import pathlib
import shutil
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig

CONFIG, WEIGHTS, TOKENIZER = (
  'config.json',
  'model.safetensors',
  'tokenizer.model',
)
_SCALE = ':scale'


def save(
  model: LanguageModel,
  path,
  storage: Literal['float32', 'int8'] = 'float32',
) -> None:
  """Writes the folder; one that is there is replaced by a rename.

  Args:
    model: what to write.
    path: folder.
    storage: of matrices; all else is float32.
  """
  path = pathlib.Path(path)
  partial = path.with_name(path.name + '.partial')
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  config = {'model': dataclasses.asdict(model.config)}
  (partial / CONFIG).write_text(json.dumps(config, indent=2) + '\n')
  model.tokenizer.save(partial / TOKENIZER)
  tensors = {}
  for name, value in _flat(model.params).items():
    value = np.asarray(value, np.float32)
    if storage == 'int8' and is_matrix(name, value):
      tensors[name], tensors[name + _SCALE] = _quantize(name, value)
    else:
      tensors[name] = value
  # `save_file` would leave a file that only its owner can read.
  (partial / WEIGHTS).write_bytes(safetensors.numpy.save(tensors))
  old = path.with_name(path.name + '.old')
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)
  partial.rename(path)
  shutil.rmtree(old, ignore_errors=True)


def load(path) -> LanguageModel:
  """Reads what `save` wrote.

  Raises:
    UserError: a file is missing, truncated or corrupt, or the tensors are not
      the ones that the config calls for.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise UserError(f'model {path}: no such folder')
  try:
    values = json.loads((path / CONFIG).read_text())['model']
    config = TransformerConfig.from_dict(values)
  except OSError as error:
    raise UserError(f'model {path / CONFIG}: {error.strerror}') from None
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f'model {path / CONFIG}: not a model config: {error}'
    ) from None
  transformer = Transformer(config)
  try:
    tensors = safetensors.numpy.load_file(path / WEIGHTS)
  except OSError as error:
    raise UserError(f'model {path / WEIGHTS}: {error}') from None
  except safetensors.SafetensorError as error:
    raise UserError(f'model {path / WEIGHTS}: corrupt: {error}') from None
  params = {
    name: _dequantize(path / WEIGHTS, name, value, tensors)
    for name, value in tensors.items()
    if not name.endswith(_SCALE)
  }
  _check_shapes(path / WEIGHTS, transformer, params)
  tokenizer = Tokenizer.load(path / TOKENIZER)
  if tokenizer.vocab_size != config.vocab_size:
    raise UserError(
      f'model {path}: the tokenizer has {tokenizer.vocab_size} pieces, the '
      f'model {config.vocab_size}'
    )
  params = {name: jnp.asarray(value) for name, value in params.items()}
  params = traverse_util.unflatten_dict(params, sep='.')
  return LanguageModel(transformer, params, tokenizer)


def is_matrix(name: str, value) -> bool:
  """Whether this parameter is a matmul's weight: no norm's scale, no bias."""
  return value.ndim > 1 and not name.endswith('bias')


def _flat(params: Any) -> dict[str, Any]:
  return traverse_util.flatten_dict(params, sep='.')


def _check_shapes(path, transformer: Transformer, params) -> None:
  shapes = jax.eval_shape(transformer.init_params, jax.random.key(0))
  expected = {k: v.shape for k, v in _flat(shapes).items()}
  got = {k: v.shape for k, v in params.items()}
  wrong = sorted(
    name
    for name in expected.keys() | got.keys()
    if expected.get(name) != got.get(name)
  )
  if wrong:
    name = wrong[0]
    raise UserError(
      f'model {path}: {len(wrong)} tensors do not fit the config, first '
      f'{name}: got {got.get(name)}, expected {expected.get(name)}'
    )


def _input_axes(name: str) -> tuple[int, ...]:
  """Axes that a matmul with this weight sums over; channels are the rest."""
  return {'embedding': (1,), 'o': (0, 1)}.get(name.rpartition('.')[2], (0,))


def _quantize(name: str, value: np.ndarray):
  scale = np.abs(value).max(axis=_input_axes(name), keepdims=True) / 127
  scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
  return np.rint(value / scale).astype(np.int8), scale


def _dequantize(path, name: str, value: np.ndarray, tensors) -> np.ndarray:
  scale = tensors.get(name + _SCALE)
  if scale is None and value.dtype != np.float32:
    raise UserError(
      f'model {path}: {name}: got {value.dtype} without a scale, expected '
      'float32'
    )
  if scale is None:
    return value
  axes = _input_axes(name)
  shape = tuple(1 if i in axes else n for i, n in enumerate(value.shape))
  if scale.shape != shape:
    raise UserError(
      f'model {path}: {name}{_SCALE}: got {scale.shape}, expected {shape}'
    )
  return value.astype(np.float32) * scale
