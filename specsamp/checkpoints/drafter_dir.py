"""A trained drafter as a folder: config.json and model.safetensors.

Published formats are read too, see `huggingface.heads`.
"""

import dataclasses
from typing import Literal

from specsamp.checkpoints import folders
from specsamp.checkpoints import weights as weight_files
from specsamp.checkpoints.huggingface import heads
from specsamp.drafting.features import DraftModule
from specsamp.drafting.trained import KINDS, kind_of, make
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig, param_shapes, quantized
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
  module = trained.module
  kind = kind_of(module)
  about = dict(
    kind=kind.name, ahead=module.ahead or 1, target=trained.target
  ) | {name: getattr(module, name) for name in kind.fields}
  if trained.acceptance is not None:
    about['acceptance'] = trained.acceptance
  config = {'drafter': about, 'model': dataclasses.asdict(module.config)}
  with weight_files.new_folder(path, config) as folder:
    weight_files.save(trained.params, folder, storage)


def load(path, weights: quantized.Kind | None = None) -> DraftModule:
  """Reads a drafter, which `trained_drafter` shards over a mesh.

  Folders in published formats do not name the weights of their target: `target`
  is '', and any target of their width and vocabulary is accepted. A wrong
  target accepts few draft tokens: launchers refuse it if the folder records the
  acceptance, and else warn about it.

  Args:
    path: folder, or a name of the Hugging Face hub; see `folders.find`.
    weights: see `model_dir.load`.

  Raises:
    UserError: a file is missing or corrupt, or the folder is not a drafter's.
  """
  path = folders.find('drafter', path)
  values = folders.read_config('drafter', path)
  with files.reading(f'drafter {path / folders.CONFIG}'):
    read = heads.reader(values)
    acceptance = values.get(heads.ACCEPTANCE)
    if read is None:
      config = TransformerConfig.from_dict(values['model'])
      about = values['drafter']
      kind, ahead, target = about['kind'], about['ahead'], about['target']
      acceptance = about.get('acceptance')
      check_name('drafter', kind, KINDS)
      fields = {n: about[n] for n in KINDS[kind].fields if n in about}
      module = make(kind, config, ahead, config.num_layers, **fields)
    if acceptance is not None:
      is_number = type(acceptance) in (int, float)
      if not (is_number and 0 <= acceptance <= 1):
        raise UserError(f'acceptance: got {acceptance!r}, expected 0 to 1')
  if read:
    trained = read(path)
  else:
    leaves = weight_files.stream(path, param_shapes(module), config.dtype)
    trained = DraftModule(module, weight_files.tree(leaves), target)
  trained = dataclasses.replace(trained, acceptance=acceptance)
  return trained.quantized(weights) if weights else trained
