"""EAGLE-3's layers (Li et al. 2503.01840) as others write them, and P-EAGLE's.

One set of tensors, and three kinds of config.json: the authors', those with an
`eagle_config` (NVIDIA's and SpecForge's), and those of speculators. No shape
betrays a wrong tap, so that one which is not told is not guessed.
"""

from typing import Any

import numpy as np

from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import folder, keys
from specsamp.checkpoints.layouts import Layout, Part, Source
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.eagle3 import Eagle3Layer
from specsamp.drafting.features import DraftModule
from specsamp.drafting.peagle import PEagleLayers
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

IDS = 'eagle_aux_hidden_state_layer_ids'
# Keys that all kinds of config have.
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
# Keys of a config.json -> the only value that is computed here.
_FIXED = {'logit_scale': 1.0, 'qkv_bias': False}
# Keys of an eagle_config -> the only value that is computed here.
_MUST = {
  'use_input_layernorm_in_first_layer': True,
  'use_last_layernorm': True,
  'use_mtp_layernorm': False,
  'next_layer_regular': True,
  'parallel_draft_step': 1,
  'parallel_draft_heads_num_layers': 1,
}


def fields_of(values: dict[str, Any]) -> dict[str, Any]:
  """What a config.json of the authors or with an `eagle_config` tells.

  Returns:
    Fields of an `Eagle3Layer`.

  Raises:
    UserError: keys that are not understood, values under which something else
      is computed, or taps that may be these or others.
  """
  keys.check_layers(values, _KEYS, _FIXED)
  nested = values.get('eagle_config') or {}
  if not isinstance(nested, dict):
    raise UserError(f'eagle_config: got {nested!r}, expected its keys')
  keys.check(nested, (IDS, 'use_aux_hidden_state'), _MUST)
  given = [at[IDS] for at in (values, nested) if at.get(IDS)]
  if given and given != given[:1] * len(given):
    raise UserError(f'{IDS}: got {given[0]} and {given[1]}, expected one')
  fields = common_fields(values)
  if folder.flag(nested, 'use_aux_hidden_state', True):
    return fields | {'taps': _boundaries(given[0]) if given else None}
  if given or fields['target_width'] or fields['tap_norm'] != 'none':
    raise UserError(
      f'use_aux_hidden_state: got false, and {IDS}, target_hidden_size or a '
      'norm of what it would fuse, expected none of them'
    )
  return fields | {'taps': ()}


def common_fields(values: dict[str, Any]) -> dict[str, Any]:
  """Fields of an `Eagle3Layer` that have one name in all kinds of config."""
  together = folder.flag(values, 'norm_before_fc')
  each = folder.flag(values, 'fc_norm')
  if together and each:
    raise UserError('norm_before_fc, fc_norm: got both, expected one of them')
  width = 0
  if values.get('target_hidden_size') is not None:
    width = folder.count(values, 'target_hidden_size')
  return {
    'target_width': 0 if width == values.get('hidden_size') else width,
    'tap_norm': 'together' if together else 'each' if each else 'none',
    'adds_to_normed': folder.flag(values, 'norm_before_residual'),
    'feeds_normed': folder.flag(values, 'norm_output'),
  }


def _boundaries(ids) -> tuple[int, ...]:
  """Taps of an `eagle_config`: inputs of the layers that it names, or outputs.

  Files of both kinds are about. As sglang tells them apart, those that begin
  with the output of layer 1 are of outputs: nobody reads that layer's input.
  """
  folder.check_layers(IDS, ids, 1)
  shift = int(ids[0] == 1)
  return tuple(each + shift for each in ids)


def read(
  config: TransformerConfig, draft_vocab: int, fields: dict[str, Any], path
) -> DraftModule:
  """Reads layers, the first of two norms, what fuses taps, and an LM head.

  A folder without an LM head borrows the target's, whose rows it then drafts.
  Fields with a mask's token are those of P-EAGLE (2602.01469).
  """
  tensors = folder.tensors_of(path)
  rows_v = draft_rows(f'drafter {path}', tensors, config, draft_vocab)
  has_embedding = 'embed_tokens.weight' in tensors
  borrows_head = (
    'lm_head.weight' not in tensors
    and np.array_equal(rows_v, np.arange(config.vocab_size))
    and not fields['target_width']
  )
  if borrows_head and has_embedding and config.tied_embeddings:
    raise UserError(
      f'drafter {path}: got tie_word_embeddings, embed_tokens.weight and no '
      "lm_head.weight; the LM head may be this embedding or the target's"
    )
  module = (PEagleLayers if 'mask_token' in fields else Eagle3Layer)(
    config,
    draft_vocab,
    has_embedding,
    has_lm_head=not borrows_head,
    **fields,
  )
  given = {'draft_rows': rows_v}
  if 'mask_token' in fields:
    given['mask_hidden'] = _mask_hidden(path, tensors, module.tapped_width)
  if module.target_width and not module.has_embedding:
    raise UserError(
      f'drafter {path}: got no embed_tokens.weight, expected one of width '
      f"{config.width}, for the target's has {module.target_width}"
    )
  is_authors = any(name.startswith('midlayer.') for name in tensors)
  theirs = layout(module, 'midlayer.' if is_authors else 'layers.0.')
  return folder.read(path, module, theirs, tensors, given)


def _mask_hidden(path, tensors: dict[str, Stored], width: int) -> np.ndarray:
  """Takes out what stands at masks for the target's features: float32 [E]."""
  stored = tensors.pop('mask_hidden', None)
  if stored is None or stored.shape not in ((1, width), (1, 1, width)):
    raise UserError(
      f'drafter {path}: mask_hidden: got {stored and stored.shape}, expected '
      f'{(1, 1, width)}'
    )
  return stored.read().astype(np.float32).reshape(width)


def layout(module: Eagle3Layer, first: str = 'layers.0.') -> Layout:
  """Of all parameters but `draft_rows`.

  Args:
    module: whose they are.
    first: what the names of the first layer's tensors begin with.
  """
  c = module.config
  found = llama.layer(c, 'layers_0.', first) | {
    'layers_0.feature_norm.scale': folder.vector(f'{first}hidden_norm.weight'),
    'final_norm.scale': folder.vector('norm.weight'),
  }
  if module.has_lm_head:
    found['lm_head.head'] = folder.matrix('lm_head.weight')
  for i in range(1, c.num_layers):
    found |= llama.layer(c, f'layers_{i}.', f'layers.{i}.')
  if module.num_taps:
    found['fuse'] = folder.matrix('fc.weight')
  if module.tap_norm == 'together':
    found['tap_scale'] = folder.vector('input_norm.weight')
  if module.tap_norm == 'each':
    found['tap_scale'] = Source(
      'pd',
      tuple(Part(f'fc_norm.{i}.weight', 'd') for i in range(module.num_taps)),
    )
  if module.has_embedding:
    found['embedding'] = Source('vd', (Part('embed_tokens.weight', 'v d'),))
  return found


def draft_rows(
  what: str,
  tensors: dict[str, Stored],
  config: TransformerConfig,
  draft_vocab: int,
) -> np.ndarray:
  """Int32 [V], each token's row in the draft's LM head, or one past the last.

  Takes the tables out of the tensors: `d2t`, what is to be added to each row
  for its token, and `t2d`, which tokens have one. A head that can draft every
  token may have neither.
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
      'expected as many'
    )
  if known and not np.array_equal(known.read(), has_row_v):
    raise UserError(f'{what}: t2d: got other tokens than those of d2t')
  rows_v = np.full(vocab, draft_vocab, np.int32)
  rows_v[tokens_k] = rows_k
  return rows_v
