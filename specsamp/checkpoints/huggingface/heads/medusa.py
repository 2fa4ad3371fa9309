"""Medusa's heads (Cai et al. 2401.10774) in their authors' format."""

import functools
from typing import Any

from specsamp.checkpoints import layouts, tensor_files
from specsamp.checkpoints.huggingface.heads import folder, keys
from specsamp.drafting.features import DraftModule
from specsamp.drafting.medusa import MedusaHeads
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

_FILE = 'medusa_lm_head.safetensors'
_COUNTS = ('medusa_num_heads', 'medusa_num_layers')


def reader(values: dict[str, Any]):
  """Returns the reader of a folder with this config.json."""
  # The last two follow from the shapes of the tensors.
  keys.check(values, (*_COUNTS, 'hidden_size', 'vocab_size'))
  counts = [keys.count(values, key) for key in _COUNTS]
  return functools.partial(_read, *counts)


def _read(num_heads: int, num_blocks: int, path) -> DraftModule:
  """Reads the blocks and the LM head of each head."""
  if (path / _FILE).exists():
    tensors = tensor_files.in_files([path / _FILE])
  else:
    tensors = tensor_files.in_folder(path)
  tensors = {
    name.removeprefix('medusa_head.'): stored
    for name, stored in tensors.items()
  }
  first = tensors.get(f'0.{num_blocks}.weight')
  if first is None or len(first.shape) != 2:
    raise UserError(
      f'drafter {path}: 0.{num_blocks}.weight: got {first and first.shape}, '
      'expected the LM head of the first head, [vocabulary, width]'
    )
  rows, width = first.shape
  # The heads use no other field of the target's shape.
  config = TransformerConfig(
    vocab_size=rows,
    width=width,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    mlp_width=1,
    max_length=1,
  )
  layout = {}
  for i in range(num_heads):
    for block in range(num_blocks):
      name = f'head_{i + 1}' + (f'_{block}' if block else '')
      key = f'{i}.{block}.linear'
      layout[f'{name}.fuse'] = layouts.matrix(f'{key}.weight')
      layout[f'{name}.fuse_bias'] = layouts.vector(f'{key}.bias')
    lm_head = layouts.matrix(f'{i}.{num_blocks}.weight')
    layout[f'lm_head_{i + 1}.head'] = lm_head
  module = MedusaHeads(config, num_heads, num_blocks, has_lm_heads=True)
  return folder.read(path, module, layout, tensors)
