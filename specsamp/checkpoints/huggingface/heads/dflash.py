"""DFlash's layers (2602.06036) in the formats of their authors and speculators.

Layers of Qwen3 that share the target's embedding and LM head. They read the
residual stream of the target at taps: the authors' config names the layers
whose outputs these are, the config of speculators the inputs.
"""

import functools
from typing import Any

import numpy as np

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.values import agreed
from specsamp.checkpoints.huggingface.heads import eagle3, folder, keys
from specsamp.checkpoints.layouts import Layout
from specsamp.drafting.dflash import DFlashLayers
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name

ARCHITECTURE = 'DFlashDraftModel'
_KEYS = ('target_layer_ids', 'mask_token_id', 'block_size')
# Keys of a config.json or its dflash_config -> their only supported value.
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
  """Returns the reader of a folder with this config.json of the authors.

  Raises:
    UserError: a key or a value is not supported, as in DFlash's successors.
    KeyError: a value is missing.
  """
  nested = keys.nested(values, 'dflash_config')
  keys.check(nested, _KEYS, _FIXED)
  vocab = {'draft_vocab_size': values.get('vocab_size')}
  known = (*_KEYS, 'dflash_config', 'target_hidden_size')
  keys.check_layers(values, known, _FIXED | vocab)
  values = values | {key: agreed(key, values, nested) for key in _KEYS}
  key = 'target_layer_ids'
  ids = keys.layer_ids(key, values[key], 0)
  return _reader(values, values, [i + 1 for i in ids])


def speculators_reader(values: dict[str, Any], layers: dict[str, Any]):
  """Returns the reader of a folder with this config.json of speculators."""
  keys.check(values, _SPECULATORS, _FIXED)
  key = 'aux_hidden_state_layer_ids'
  ids = keys.layer_ids(key, values[key], 2)
  vocab, draft_vocab = layers['vocab_size'], values['draft_vocab_size']
  if vocab != draft_vocab:
    raise UserError(
      f'draft_vocab_size: got {draft_vocab}, only the {vocab} tokens of the '
      'target are supported for dflash'
    )
  return _reader(values, layers, ids)


def _reader(values: dict[str, Any], layers: dict[str, Any], taps: list[int]):
  """Returns the reader of Qwen3's layers, which read inputs of the taps."""
  check_name('model_type', layers.get('model_type'), ('qwen3',))
  config = llama.read(layers)
  width = values.get('target_hidden_size') or config.width
  if width != config.width:
    raise UserError(
      f'target_hidden_size: got {width}, expected the hidden_size '
      f'{config.width} of layers that share its embedding'
    )
  size = keys.count(values, 'block_size', 2)
  mask = keys.token(values, 'mask_token_id', config.vocab_size)
  return functools.partial(_read, DFlashLayers(config, size, tuple(taps), mask))


def _read(module: DFlashLayers, path) -> DraftModule:
  tensors = folder.tensors_of(path)
  # Some folders have a table of all tokens, in order, or copies of the target's
  # matrices.
  vocab = module.config.vocab_size
  rows_v = eagle3.draft_rows(f'drafter {path}', tensors, module.config, vocab)
  if not np.array_equal(rows_v, np.arange(vocab)):
    raise UserError(
      f'drafter {path}: d2t: got a table of other tokens, expected all in order'
    )
  for name in ('embed_tokens.weight', 'lm_head.weight'):
    folder.drop_copy(path, tensors, name, module.config)
  return folder.read(path, module, _layout(module), tensors)


def _layout(module: DFlashLayers) -> Layout:
  layout = {
    'fuse': layouts.matrix('fc.weight'),
    'context_norm.scale': layouts.vector('hidden_norm.weight'),
    'final_norm.scale': layouts.vector('norm.weight'),
  }
  for i in range(module.config.num_layers):
    layout |= llama.layer(module.config, f'layers_{i}.', f'layers.{i}.')
  return layout
