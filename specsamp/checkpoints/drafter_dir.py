"""A trained drafter as a folder: config.json, model.safetensors."""

import dataclasses
import json
import pathlib
from typing import Literal

import jax

from specsamp.checkpoints import weights
from specsamp.drafting import modules
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError
from specsamp.models import TransformerConfig
from specsamp.sharding import distributed

_CONFIG = 'config.json'


def save(
  trained: DraftModule, path, storage: Literal['float32', 'int8'] = 'float32'
) -> None:
  """Writes the folder; see `model_dir.save`."""
  kind, ahead = modules.kind_of(trained.module)
  config = {
    'drafter': {'kind': kind, 'ahead': ahead, 'target': trained.target},
    'model': dataclasses.asdict(trained.module.config),
  }
  with weights.replace_folder(path) as folder:
    if distributed.is_first():
      (folder / _CONFIG).write_text(json.dumps(config, indent=2) + '\n')
    weights.save(trained.params, folder, storage)


def load(path) -> DraftModule:
  """Reads what `save` wrote; `modules.trained_drafter` lays it on a mesh.

  Raises:
    UserError: a file is missing or corrupt, or not a drafter's.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise UserError(f'drafter {path}: no such folder')
  try:
    values = json.loads((path / _CONFIG).read_text())
    config = TransformerConfig.from_dict(values['model'])
    module = modules.make(
      values['drafter']['kind'], config, values['drafter']['ahead']
    )
    target = values['drafter']['target']
  except OSError as error:
    raise UserError(f'drafter {path / _CONFIG}: {error.strerror}') from None
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f'drafter {path / _CONFIG}: not a drafter config: {error}'
    ) from None
  shapes = jax.eval_shape(module.init_params, jax.random.key(0))
  params = weights.load(path, shapes, config.dtype)
  return DraftModule(module, params, target)
