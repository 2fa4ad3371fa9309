"""DFlash's layers (2602.06036) as their authors and speculators write them.

Layers of Qwen3 that share the target's embedding and LM head. The authors' name
the layers whose outputs they read, those of speculators the inputs.
"""

import functools
from typing import Any

import numpy as np

from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import eagle3, folder, keys
from specsamp.checkpoints.layouts import Layout
from specsamp.drafting.dflash import DFlashLayers
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name

ARCHITECTURE = 'DFlashDraftModel'
_KEYS = ('target_layer_ids', 'mask_token_id', 'block_size')
# Keys of a config.json or its dflash_config -> the only value that is computed
# here.
_FIXED = {
  'use_aux_hidden_state': True,
  'causal': False,
  'is_causal': False,
  'causal_head': False,
  'sliding_window_non_causal': False,
  'sample_from_anchor': False,
  'shift_label': False,
  'projector_type': 'dflash',
  'attention_mode': 'gqa',
}
_SPECULATORS = (
  'speculators_model_type',
  'transformer_layer_config',
  'draft_vocab_size',
  'target_hidden_size',
  'block_size',
  'aux_hidden_state_layer_ids',
  'mask_token_id',
  'tie_word_embeddings',
  # Keys of training, and of another projector_type.
  'auf',
  'pure_draft_prefix_len',
  'emb_dim',
  'gru_hidden_dim',
  'lambda_base_start',
  'lambda_base_decay_ratio',
)


def reader(values: dict[str, Any]):
  """What reads the folder of this config.json of the authors.

  Raises:
    UserError: keys that are not understood, or values under which something
      else is computed, as in what came after DFlash.
    KeyError: a value is missing.
  """
  nested = values['dflash_config']
  if not isinstance(nested, dict):
    raise UserError(f'dflash_config: got {nested!r}, expected its keys')
  keys.check(nested, _KEYS, _FIXED)
  same = {'draft_vocab_size': values.get('vocab_size')}
  own = (*_KEYS, 'dflash_config', 'target_hidden_size')
  keys.check_layers(values, own, _FIXED | same)
  for key in _KEYS:
    given = [at[key] for at in (values, nested) if at.get(key) is not None]
    if given != given[:1] * len(given):
      raise UserError(f'{key}: got {given[0]} and {given[1]}, expected one')
  ids = nested['target_layer_ids']
  folder.check_layers('target_layer_ids', ids, 0)
  return _reader(values | nested, values, [each + 1 for each in ids])


def speculators_reader(values: dict[str, Any], layers: dict[str, Any]):
  """Returns what reads the folder of this config.json of speculators."""
  keys.check(values, _SPECULATORS, _FIXED)
  ids = values['aux_hidden_state_layer_ids']
  folder.check_layers('aux_hidden_state_layer_ids', ids, 2)
  vocab, draft_vocab = layers['vocab_size'], values['draft_vocab_size']
  if vocab != draft_vocab:
    raise UserError(
      f'draft_vocab_size: got {draft_vocab}, only the {vocab} tokens of the '
      'target are supported for dflash'
    )
  return _reader(values, layers, ids)


def _reader(values: dict[str, Any], layers: dict[str, Any], taps: list[int]):
  """The reader of layers with these taps.

  Args:
    values: have the size of a block, and its mask.
    layers: those of Qwen3.
    taps: of the target.
  """
  check_name('model_type', layers.get('model_type'), ('qwen3',))
  config = llama.read(layers)
  width = values.get('target_hidden_size') or config.width
  if width != config.width:
    raise UserError(
      f'target_hidden_size: got {width}, expected the hidden_size '
      f'{config.width} of what shares its embedding'
    )
  size = folder.count(values, 'block_size', 2)
  mask = folder.token(values, 'mask_token_id', config)
  return functools.partial(_read, DFlashLayers(config, size, tuple(taps), mask))


def _read(module: DFlashLayers, path) -> DraftModule:
  tensors = folder.tensors_of(path)
  # Some have a table of all tokens, in order, or copies of the target's.
  vocab = module.config.vocab_size
  rows_v = eagle3.draft_rows(f'drafter {path}', tensors, module.config, vocab)
  if not np.array_equal(rows_v, np.arange(vocab)):
    raise UserError(
      f'drafter {path}: d2t: got a table of other tokens, expected all in order'
    )
  for name in ('embed_tokens.weight', 'lm_head.weight'):
    folder.drop_copy(path, tensors, name, module.config)
  return folder.read(path, module, layout(module), tensors)


def layout(module: DFlashLayers) -> Layout:
  """Of all parameters of one whose mask is a token of the target."""
  found = {
    'fuse': folder.matrix('fc.weight'),
    'context_norm.scale': folder.vector('hidden_norm.weight'),
    'final_norm.scale': folder.vector('norm.weight'),
  }
  for i in range(module.config.num_layers):
    found |= llama.layer(module.config, f'layers_{i}.', f'layers.{i}.')
  return found
