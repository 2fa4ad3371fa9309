"""Medusa's heads (Cai et al. 2401.10774) as their authors write them."""

from specsamp.checkpoints import tensor_files
from specsamp.checkpoints.huggingface.heads import folder
from specsamp.drafting.features import DraftModule
from specsamp.drafting.medusa import MedusaHeads
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

_FILE = 'medusa_lm_head.safetensors'
# The shapes of the tensors are read for the last two.
KEYS = ('medusa_num_heads', 'medusa_num_layers', 'hidden_size', 'vocab_size')


def read(num_heads: int, num_blocks: int, path) -> DraftModule:
  """Blocks and an LM head of its own for every head."""
  if (path / _FILE).exists():
    tensors = tensor_files.of_files([path / _FILE])
  else:
    tensors = tensor_files.of_folder(path)
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
  # Nothing else of the target's shape is in the folder, or read by heads.
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
      own = f'head_{i + 1}' + (f'_{block}' if block else '')
      theirs = f'{i}.{block}.linear'
      layout[f'{own}.fuse'] = folder.matrix(f'{theirs}.weight')
      layout[f'{own}.fuse_bias'] = folder.vector(f'{theirs}.bias')
    layout[f'lm_head_{i + 1}.head'] = folder.matrix(f'{i}.{num_blocks}.weight')
  module = MedusaHeads(config, num_heads, num_blocks, has_lm_heads=True)
  return folder.read(path, module, layout, tensors)
