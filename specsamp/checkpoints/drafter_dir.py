"""A trained drafter as a folder: config.json, model.safetensors.

Those of others, Medusa's, EAGLE's, DFlash's and speculators', are read as well.
"""

import dataclasses
import json
from typing import Literal

from specsamp.checkpoints import folders, weights
from specsamp.checkpoints.huggingface import heads
from specsamp.drafting.features import DraftModule
from specsamp.drafting.trained import KINDS, kind_of, make
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig, param_shapes
from specsamp.utils import distributed, files

_CONFIG = weights.CONFIG


def save(
  trained: DraftModule, path, storage: Literal['float32', 'int8'] = 'float32'
) -> None:
  """Writes the folder; see `model_dir.save`.

  Raises:
    UserError: it does not tell which target it is for, as heads that were read
      in another format.
  """
  if not trained.target:
    raise UserError(
      'drafter: heads in the format of others do not tell what they were '
      'trained for and cannot be saved; keep the folder they are in'
    )
  kind = kind_of(trained.module)
  fields = {name: getattr(trained.module, name) for name in kind.fields}
  config = {
    'drafter': {
      'kind': kind.name,
      'ahead': trained.module.ahead or 1,
      'target': trained.target,
      **fields,
    },
    'model': dataclasses.asdict(trained.module.config),
  }
  with files.replace_folder(path, weights.is_ours) as folder:
    if distributed.is_first():
      (folder / _CONFIG).write_text(json.dumps(config, indent=2) + '\n')
    weights.save(trained.params, folder, storage)


def load(path) -> DraftModule:
  """Reads what `save` wrote; `trained_drafter` shards it over a mesh.

  A folder of others as `huggingface.heads` describes them is read too. It does
  not tell for which weights they were trained: `target` is '', and any target
  of their width and vocabulary will be taken for theirs. Its text stays what it
  is without them; if it is the wrong one, little of what they draft is
  accepted, of which launchers warn.

  Args:
    path: folder, or a name of the Hugging Face hub as `folders.find` has it.

  Raises:
    UserError: a file is missing or corrupt, or not a drafter's.
  """
  path = folders.find('drafter', path)
  try:
    values = files.read_json(path / _CONFIG)
    read = heads.reader(values)
    if read is None:
      config = TransformerConfig.from_dict(values['model'])
      about = values['drafter']
      check_name('drafter', about['kind'], KINDS)
      module = make(
        about['kind'],
        config,
        about['ahead'],
        config.num_layers,
        **{name: about[name] for name in KINDS[about['kind']].fields},
      )
      target = about['target']
  except OSError as error:
    raise UserError(f'drafter {path / _CONFIG}: {error.strerror}') from None
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f'drafter {path / _CONFIG}: not a drafter config: {error}'
    ) from None
  if read:
    return read(path)
  shapes = param_shapes(module)
  params = weights.load(path, shapes, config.dtype)
  return DraftModule(module, params, target)
