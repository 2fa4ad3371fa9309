"""EAGLE-3's layers (Li et al. 2503.01840) and P-EAGLE's in published formats.

One set of tensors, and three kinds of config.json: the authors', those with an
`eagle_config` (NVIDIA's and SpecForge's), and those of speculators. No shape
reveals a wrong tap, so ambiguous ones are refused.
"""

from typing import Any

import numpy as np

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.values import agreed
from specsamp.checkpoints.huggingface.heads import folder, keys
from specsamp.checkpoints.layouts import Layout
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.eagle3 import Eagle3Layer, PEagleLayers
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

IDS = 'eagle_aux_hidden_state_layer_ids'
# Keys of all kinds of config.
COMMON = (
  'draft_vocab_size',
  'target_hidden_size',
  IDS,
  'norm_before_residual',
  'norm_before_fc',
  'fc_norm',
  'norm_output',
)
_KEYS = (
  *COMMON,
  'eagle_config',
  'parallel_drafting',
  'pard_token',
  'ptd_token_id',
)
# Keys of a config.json -> their only supported value.
_FIXED = {'logit_scale': 1.0, 'qkv_bias': False}
# Keys of an eagle_config -> their only supported value.
_FIXED_NESTED = {
  'use_input_layernorm_in_first_layer': True,
  'use_last_layernorm': True,
  'use_mtp_layernorm': False,
  'next_layer_regular': True,
  'parallel_draft_step': 1,
  'parallel_draft_heads_num_layers': 1,
}


def fields_of(values: dict[str, Any]) -> dict[str, Any]:
  """Returns `Eagle3Layer` fields of the authors' kinds of config.json.

  Raises:
    UserError: a key or a value is not supported, or the taps are ambiguous.
  """
  keys.check_layers(values, _KEYS, _FIXED)
  nested = {}
  if values.get('eagle_config'):
    nested = keys.nested(values, 'eagle_config')
  keys.check(nested, (IDS, 'use_aux_hidden_state'), _FIXED_NESTED)
  ids = agreed(IDS, *(part for part in (values, nested) if part.get(IDS)))
  fields = common_fields(values)
  if keys.flag(nested, 'use_aux_hidden_state', True):
    return fields | {'taps': _inputs(ids) if ids else None}
  if ids or fields['target_width'] or fields['tap_norm'] != 'none':
    raise UserError(
      f'use_aux_hidden_state: got false, expected no {IDS}, no '
      'target_hidden_size and no norm of fused features with it'
    )
  return fields | {'taps': ()}


def common_fields(values: dict[str, Any]) -> dict[str, Any]:
  """Returns `Eagle3Layer` fields by the keys that all kinds of config have."""
  norms = {'together': 'norm_before_fc', 'each': 'fc_norm'}
  tap_norms = [norm for norm, key in norms.items() if keys.flag(values, key)]
  if len(tap_norms) > 1:
    raise UserError('norm_before_fc, fc_norm: got both, expected one of them')
  width = 0
  if values.get('target_hidden_size') is not None:
    width = keys.count(values, 'target_hidden_size')
  return {
    'target_width': 0 if width == values.get('hidden_size') else width,
    'tap_norm': tap_norms[0] if tap_norms else 'none',
    'adds_to_normed': keys.flag(values, 'norm_before_residual'),
    'feeds_normed': keys.flag(values, 'norm_output'),
  }


def _inputs(ids) -> tuple[int, ...]:
  """Returns the layers whose inputs the ids of an `eagle_config` mean.

  Some files name layers by inputs and some by outputs. As in sglang, ids that
  begin with 1 are outputs: no drafter reads the input of layer 1.
  """
  ids = keys.layer_ids(IDS, ids, 1)
  return tuple(i + (ids[0] == 1) for i in ids)


def read(
  config: TransformerConfig, draft_vocab: int, fields: dict[str, Any], path
) -> DraftModule:
  """Reads the layers, the fusion of taps, and the LM head if there is one.

  Without an LM head the drafter uses the target's, and drafts all its tokens.
  Fields with a `mask_token` are those of P-EAGLE (2602.01469).
  """
  what = f'drafter {path}'
  tensors = folder.tensors_of(path)
  rows_v = draft_rows(what, tensors, config, draft_vocab)
  has_embedding = 'embed_tokens.weight' in tensors
  has_lm_head = (
    'lm_head.weight' in tensors
    or fields['target_width'] > 0
    or not np.array_equal(rows_v, np.arange(config.vocab_size))
  )
  if not has_lm_head and has_embedding and config.tied_embeddings:
    raise UserError(
      f'{what}: got tie_word_embeddings, embed_tokens.weight and no '
      "lm_head.weight; the LM head may be this embedding or the target's"
    )
  module = (PEagleLayers if 'mask_token' in fields else Eagle3Layer)(
    config, draft_vocab, has_embedding, has_lm_head=has_lm_head, **fields
  )
  computed = {'draft_rows': rows_v}
  if 'mask_token' in fields:
    computed['mask_hidden'] = _mask_hidden(what, tensors, module.tapped_width)
  if module.target_width and not has_embedding:
    raise UserError(
      f'{what}: got no embed_tokens.weight, expected one of width '
      f"{config.width}, for the target's has {module.target_width}"
    )
  is_authors = any(name.startswith('midlayer.') for name in tensors)
  names = layout(module, 'midlayer.' if is_authors else 'layers.0.')
  return folder.read(path, module, names, tensors, computed)


def _mask_hidden(
  what: str, tensors: dict[str, Stored], width: int
) -> np.ndarray:
  """Removes the tensor and returns a mask's fused features: float32 [E]."""
  stored = tensors.pop('mask_hidden', None)
  if stored is None or stored.shape not in ((1, width), (1, 1, width)):
    raise UserError(
      f'{what}: mask_hidden: got {stored and stored.shape}, expected '
      f'{(1, 1, width)}'
    )
  return stored.read().astype(np.float32).reshape(width)


def layout(module: Eagle3Layer, first: str = 'layers.0.') -> Layout:
  """Returns the layout of all parameters but `draft_rows`.

  The first layer's tensors have the prefix `first`.
  """
  config = module.config
  result = {
    'layers_0.feature_norm.scale': layouts.vector(f'{first}hidden_norm.weight'),
    'final_norm.scale': layouts.vector('norm.weight'),
  }
  for i in range(config.num_layers):
    result |= llama.layer(
      config, f'layers_{i}.', f'layers.{i}.' if i else first
    )
  if module.has_lm_head:
    result['lm_head.head'] = layouts.matrix('lm_head.weight')
  if module.num_taps:
    result['fuse'] = layouts.matrix('fc.weight')
  if module.tap_norm == 'together':
    result['tap_scale'] = layouts.vector('input_norm.weight')
  if module.tap_norm == 'each':
    norms = [f'fc_norm.{i}.weight' for i in range(module.num_taps)]
    result['tap_scale'] = layouts.stack('pd', norms, 'd')
  if module.has_embedding:
    result['embedding'] = layouts.single('vd', 'embed_tokens.weight', 'v d')
  return result


def draft_rows(
  what: str,
  tensors: dict[str, Stored],
  config: TransformerConfig,
  draft_vocab: int,
) -> np.ndarray:
  """Removes the tables of tokens and returns each token's row in the LM head.

  `d2t` has the difference of token and row for each row, `t2d` marks the tokens
  that have a row. A drafter of all tokens may lack both.

  Returns:
    int32 [V]: rows; `draft_vocab` for tokens without one.
  """
  vocab = config.vocab_size
  table, known = tensors.pop('d2t', None), tensors.pop('t2d', None)
  rows_k = np.arange(draft_vocab)
  if table is None and draft_vocab == vocab:
    tokens_k = rows_k
  elif table and (table.dtype[0], table.shape) == ('I', (draft_vocab,)):
    tokens_k = rows_k + table.read()
  else:
    raise UserError(
      f'{what}: d2t: got {table and (table.dtype, table.shape)}, expected '
      f'{draft_vocab} integers'
    )
  if tokens_k.min() < 0 or tokens_k.max() >= vocab:
    raise UserError(
      f'{what}: d2t: got tokens from {tokens_k.min()} to {tokens_k.max()}, '
      f'expected 0 to {vocab - 1}'
    )
  has_row_v = np.zeros(vocab, bool)
  has_row_v[tokens_k] = True
  if has_row_v.sum() < draft_vocab:
    raise UserError(
      f'{what}: d2t: got {has_row_v.sum()} tokens for {draft_vocab} rows, '
      'expected one for each row'
    )
  if known and not np.array_equal(known.read(), has_row_v):
    raise UserError(f'{what}: t2d: got other tokens than those of d2t')
  rows_v = np.full(vocab, draft_vocab, np.int32)
  rows_v[tokens_k] = rows_k
  return rows_v
