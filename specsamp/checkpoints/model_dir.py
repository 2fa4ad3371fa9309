"""A model as a folder: config.json, model.safetensors and a tokenizer."""

import dataclasses
import json
import pathlib
from typing import Literal

import jax
from jax.sharding import Mesh

from specsamp.checkpoints import weights
from specsamp.data import tokenizer_dir
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig
from specsamp.sharding import distributed

CONFIG, WEIGHTS = 'config.json', weights.FILE


def save(
  model: LanguageModel,
  path,
  storage: Literal['float32', 'int8'] = 'float32',
) -> None:
  """Writes the folder; one that is there is replaced by a rename.

  Of several processes all must call this, and the first one writes.

  Args:
    model: what to write.
    path: folder.
    storage: of matrices; all else is float32.
  """
  with weights.replace_folder(path) as folder:
    if distributed.is_first():
      config = {'model': dataclasses.asdict(model.config)}
      (folder / CONFIG).write_text(json.dumps(config, indent=2) + '\n')
      model.tokenizer.save(folder)
    weights.save(model.params, folder, storage)


def load(path, mesh: Mesh | None = None) -> LanguageModel:
  """Reads what `save` wrote.

  Matrices get the dtype that the model computes in, all else is float32.

  Args:
    path: folder.
    mesh: where to lay the model; each process then reads its own shards and
      no more. None is one device.

  Raises:
    UserError: a file is missing, truncated or corrupt, the tensors are not
      the ones that the config calls for, or the model does not divide into the
      mesh's shards.
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
  tokenizer = tokenizer_dir.load(path)  # soon read, unlike weights
  shapes = jax.eval_shape(transformer.init_params, jax.random.key(0))
  params = weights.load(path, shapes, config.dtype, mesh)
  if tokenizer.vocab_size != config.vocab_size:
    raise UserError(
      f'model {path}: the tokenizer has {tokenizer.vocab_size} pieces, the '
      f'model {config.vocab_size}'
    )
  return LanguageModel(transformer, params, tokenizer)
