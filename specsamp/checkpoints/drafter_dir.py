"""A trained drafter as a folder: config.json and model.safetensors.

Published formats are read too: Medusa, EAGLE, DFlash and speculators.
"""

import dataclasses
from typing import Literal

from specsamp.checkpoints import folders, weights
from specsamp.checkpoints.huggingface import heads
from specsamp.drafting.features import DraftModule
from specsamp.drafting.trained import KINDS, kind_of, make
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig, param_shapes
from specsamp.utils import files


def save(
  trained: DraftModule, path, storage: Literal['float32', 'int8'] = 'float32'
) -> None:
  """Writes a drafter to a folder; see `model_dir.save`.

  Raises:
    UserError: the drafter was read in a published format, which does not name
      its target.
  """
  if not trained.target:
    raise UserError(
      'drafter: a drafter in a published format does not name its target and '
      'cannot be saved; keep its folder'
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
  with weights.new_folder(path, config) as folder:
    weights.save(trained.params, folder, storage)


def load(path) -> DraftModule:
  """Reads a drafter, which `trained_drafter` shards over a mesh.

  Folders in published formats do not name the weights of their target: `target`
  is '', and any target of their width and vocabulary is accepted. Completions
  stay correct with a wrong one, but few draft tokens are accepted, of which
  launchers warn.

  Args:
    path: folder, or a name of the Hugging Face hub; see `folders.find`.

  Raises:
    UserError: a file is missing or corrupt, or not a drafter's.
  """
  path = folders.find('drafter', path)
  values = folders.read_config('drafter', path)
  with files.reading(f'drafter {path / folders.CONFIG}'):
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
  if read:
    return read(path)
  leaves = weights.stream(path, param_shapes(module), config.dtype)
  return DraftModule(module, weights.tree(leaves), target)
