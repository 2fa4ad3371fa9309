"""A model as a folder: config.json, model.safetensors and a tokenizer."""

import dataclasses
import json
import pathlib
from typing import Any

from jax.sharding import Mesh

from specsamp.checkpoints import dtypes, folders, tensor_files, weights
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.data import tokenizer_dir
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, param_shapes
from specsamp.models.config import Dtype
from specsamp.utils import distributed, files

CONFIG, WEIGHTS = weights.CONFIG, weights.FILE


def save(
  model: LanguageModel,
  path,
  storage: weights.Storage = 'float32',
  keep=None,
) -> None:
  """Writes the folder; a model of ours that is there is replaced by a rename.

  Of several processes all must call this, and the first one writes.

  Args:
    model: what to write.
    path: folder.
    storage: see `weights.save`.
    keep: a folder that may not be replaced; None is none.

  Raises:
    UserError: the folder cannot be written, or holds something else.
  """
  with files.replace_folder(path, weights.is_ours, keep) as folder:
    if distributed.is_first():
      config = {'model': dataclasses.asdict(model.config)}
      (folder / CONFIG).write_text(json.dumps(config, indent=2) + '\n')
      model.tokenizer.save(folder)
    weights.save(model.params, folder, storage)


def load(
  path,
  mesh: Mesh | None = None,
  dtype: Dtype | None = None,
) -> LanguageModel:
  """Reads what `save` wrote, or a folder of Hugging Face's libraries.

  Matrices get the dtype that the model computes in, all else is float32.

  Args:
    path: folder, or a name of the Hugging Face hub as `folders.find` has it.
    mesh: where to place the model; each process then reads its own shards and
      no more. None is one device.
    dtype: what to compute in; None is what the folder has, and for those of
      Hugging Face as `checkpoints.huggingface.model.load` has it. Where that is
      bfloat16 and the GPU has none it is float16, or float32 of a model that
      float16 does not hold; the log has which.

  Raises:
    UserError: a file is missing, truncated or corrupt, the tensors are not
      the ones that the config calls for, or the model does not divide into the
      mesh's shards; float16 was asked for and does not hold the model; for
      other people's folders also as `huggingface.model`.
  """
  path = folders.find('model', path)
  values = _read_config(path)
  if 'model' not in values:
    return huggingface.load(path, mesh, dtype)
  config = _own_config(path, values)
  config = dataclasses.replace(
    config,
    dtype=dtype
    or dtypes.dtype_on(f'model {path}', config.dtype, dtypes.device_of(mesh)),
  )
  tokenizer = tokenizer_dir.load(path)  # soon read, unlike weights
  shapes = param_shapes(Transformer(config))
  config, params, stored_as = dtypes.read_in_range(
    f'model {path}',
    config,
    dtype is not None,
    lambda dtype: weights.stream(path, shapes, dtype, mesh),
  )
  if tokenizer.vocab_size < config.num_tokens:
    raise UserError(
      f'model {path}: the tokenizer has {tokenizer.vocab_size} pieces, the '
      f'model {config.num_tokens}'
    )
  return LanguageModel(Transformer(config), params, tokenizer, stored_as)


def stored_dtype(path) -> str:
  """That of a folder's model, as `save` wrote it, or of its largest tensor.

  Raises:
    UserError: there is no config.json, or no model's; or no weights.
  """
  path = folders.find('model', path)
  values = _read_config(path)
  if 'model' in values:
    return _own_config(path, values).dtype
  return dtypes.stored_dtype(tensor_files.of_folder(path).values())


def _own_config(path: pathlib.Path, values) -> TransformerConfig:
  try:
    return TransformerConfig.from_dict(values['model'])
  except (ValueError, TypeError) as error:
    raise UserError(
      f'model {path / CONFIG}: not a model config: {error}'
    ) from None


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  try:
    values = files.read_json(path / CONFIG)
    if not isinstance(values, dict):
      raise ValueError('expected a JSON object')
  except OSError as error:
    raise UserError(f'model {path / CONFIG}: {error.strerror}') from None
  except ValueError as error:
    raise UserError(
      f'model {path / CONFIG}: not a model config: {error}'
    ) from None
  return values
