"""Readers of published drafters, from Medusa to DSpark and inside targets.

A folder has safetensors and a config.json in the format of the authors or of
the speculators library. NVIDIA and SpecForge add an `eagle_config` for EAGLE-3.
No format names the weights of the target that the drafter was trained for, and
no shape reveals a wrong tap, so ambiguous taps are refused.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np

from specsamp.checkpoints import dtypes, layouts, tensor_files, weights
from specsamp.checkpoints.huggingface import config_keys as keys
from specsamp.checkpoints.huggingface import families
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.families.family import agreed
from specsamp.checkpoints.layouts import Layout, Source, TensorSlice
from specsamp.checkpoints.tensor_files import Stored
from specsamp.drafting.dflash import DFlashLayers
from specsamp.drafting.dspark import DSparkLayers
from specsamp.drafting.eagle import MTPLayer, PublishedEagleLayer
from specsamp.drafting.eagle3 import Eagle3Layer, PEagleLayers
from specsamp.drafting.features import DraftModule
from specsamp.drafting.medusa import MedusaHeads
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig, param_shapes

Reader = Callable[[pathlib.Path], DraftModule]

# Architectures in the authors' config.json.
_LLAMA = 'LlamaForCausalLM'
_EAGLE = ('LlamaForCausalLMEagle', 'EagleLlamaForCausalLM')
_EAGLE3 = ('LlamaForCausalLMEagle3', 'Eagle3LlamaForCausalLM')
_DFLASH = 'DFlashDraftModel'
_DSPARK = ('Qwen3DSparkModel', 'DSparkDraftModel')  # of DeepSpec and SpecForge

# Keys of config.json.
KIND, LAYERS = 'speculators_model_type', 'transformer_layer_config'
ACCEPTANCE = 'specsamp_acceptance'  # which only specsamp writes
LAYER_TYPES = ('llama', 'qwen3')  # of speculators
IDS = 'eagle_aux_hidden_state_layer_ids'
_EAGLE3_KEYS = (
  'draft_vocab_size',
  'target_hidden_size',
  IDS,
  'norm_before_residual',
  'norm_before_fc',
  'fc_norm',
  'norm_output',
)
# Keys of an eagle_config -> their only supported value.
_EAGLE_CONFIG = {
  'use_input_layernorm_in_first_layer': True,
  'use_last_layernorm': True,
  'use_mtp_layernorm': False,
  'next_layer_regular': True,
  'parallel_draft_step': 1,
  'parallel_draft_heads_num_layers': 1,
}
_MASKS = ('pard_token', 'ptd_token_id')  # P-EAGLE's mask has two names
_DFLASH_KEYS = (
  'target_layer_ids',
  'mask_token_id',
  'block_size',
  'sample_from_anchor',
  'sliding_window_non_causal',
)
_CAUSAL = ('causal', 'is_causal')  # of all layers, or of sliding ones
# Keys of DFlash -> their only supported value.
_DFLASH_FIXED = {
  'use_aux_hidden_state': True,
  'causal': False,
  'is_causal': False,
  'causal_head': False,
  'shift_label': False,
  'attention_mode': 'gqa',
}
# Further keys of DSpark. The confidence head is not read: how many tokens the
# target scores is fixed before the draft, so it would save nothing.
_DSPARK_KEYS = (
  'markov_rank',
  'markov_head_type',
  'enable_confidence_head',
  'confidence_head_with_markov',
)
_CONFIDENCE = ('confidence_head.proj.weight', 'confidence_head.proj.bias')
# Norms of `MTPLayer` in the modules of MiMo and of DeepSeek-V3.
_MIMO_NORMS = dict(
  token_norm='token_layernorm',
  feature_norm='hidden_layernorm',
  final_norm='final_layernorm',
)
_DEEPSEEK_NORMS = dict(
  token_norm='enorm', feature_norm='hnorm', final_norm='shared_head.norm'
)
# Keys of DFlash in speculators; the last ones are those of training, and of
# another projector_type.
_DFLASH_OF_SPECULATORS = """
speculators_model_type transformer_layer_config draft_vocab_size
target_hidden_size block_size aux_hidden_state_layer_ids mask_token_id
tie_word_embeddings sample_from_anchor sliding_window_non_causal
auf pure_draft_prefix_len emb_dim gru_hidden_dim lambda_base_start
lambda_base_decay_ratio
"""


def reader(values: dict[str, Any]) -> Reader | None:
  """Returns the reader of a folder with this config.json, or None.

  Medusa's config (Cai et al. 2401.10774) has a number of heads. EAGLE's (Li et
  al. 2401.15077) and EAGLE-3's (2503.01840) describe a LLaMA of one layer, the
  latter with a draft vocabulary. Those of DFlash (2602.06036) and DSpark
  (2607.05147) describe layers of Qwen3. A target's config has a number of
  modules of multi-token prediction (DeepSeek-V3, 2412.19437).

  Raises:
    UserError: the architecture, the number of layers, a key or a value is not
      supported, or a value is ambiguous.
    KeyError: a value is missing.
  """
  if 'drafter' in values:
    return None
  if KIND in values:
    return _speculators(values)
  if 'medusa_num_heads' in values:
    return _medusa(values)
  if values.get(families.MTP):
    return _mtp(values)
  if 'architectures' not in values:
    return None
  names = values['architectures']
  name = names[0] if len(names) == 1 else names
  known = (_LLAMA, *_EAGLE, *_EAGLE3, _DFLASH, *_DSPARK)
  check_name('architecture', name, known)
  if name in (_DFLASH, *_DSPARK):
    return _dflash_of_authors(values, name in _DSPARK)
  config = llama.read(keys.layers(values) | {'model_type': 'llama'})
  is_parallel = keys.flag(values, 'parallel_drafting')
  if config.num_layers != 1 and not is_parallel:
    raise UserError(
      f'num_hidden_layers: got {config.num_layers}, expected the 1 of a drafter'
    )
  if name in _EAGLE or name == _LLAMA and 'draft_vocab_size' not in values:
    return _eagle(values, config)
  fields = _authors_fields(values, config.width)
  if is_parallel:
    tokens = {
      keys.token(values, key, config.vocab_size)
      for key in _MASKS
      if values.get(key) is not None
    }
    if len(tokens) != 1:
      raise UserError(
        f'{", ".join(_MASKS)}: got {sorted(tokens)}, expected one token'
      )
    fields['mask_token'] = tokens.pop()
  draft_vocab = config.vocab_size
  if values.get('draft_vocab_size') is not None:
    draft_vocab = keys.count(values, 'draft_vocab_size')
  return _eagle3(config, draft_vocab, fields)


def _speculators(values: dict[str, Any]) -> Reader:
  """Returns the reader of a folder of the speculators library.

  Its taps name inputs of layers, but some converted folders name outputs. So
  ids that begin with layer 1 or the embedding are refused.
  """
  kinds = ('eagle3', 'peagle', 'dflash', 'dspark')
  check_name(KIND, values[KIND], kinds)
  layers = keys.nested(values, LAYERS)
  # Without a type the layers are Qwen3's for speculators and LLaMA's for vLLM.
  check_name('model_type', layers.get('model_type'), LAYER_TYPES)
  keys.check_layers(layers)
  if values[KIND] in ('dflash', 'dspark'):
    return _dflash_of_speculators(values, layers, values[KIND] == 'dspark')
  keys.refuse_windows(layers)
  known = (KIND, LAYERS, 'mask_token_id', 'tie_word_embeddings')
  keys.check(values, (*_EAGLE3_KEYS, *known))
  config = llama.read(keys.layers(layers))
  # The default is true in vLLM and false in speculators.
  if values.get('norm_before_residual') is None:
    raise UserError('no norm_before_residual, expected true or false')
  fields = _eagle3_fields(values, config.width)
  if ids := values.get(IDS):
    fields['taps'] = tuple(keys.layer_ids(IDS, ids, 2))
  if values[KIND] == 'peagle':
    mask = keys.token(values, 'mask_token_id', config.vocab_size)
    fields['mask_token'] = mask
  return _eagle3(config, keys.count(values, 'draft_vocab_size'), fields)


def _medusa(values: dict[str, Any]) -> Reader:
  """Returns the reader of Medusa's heads, each with blocks and an LM head."""
  counts = ('medusa_num_heads', 'medusa_num_layers')
  # The last two follow from the shapes of the tensors.
  keys.check(values, (*counts, 'hidden_size', 'vocab_size'))
  num_heads, num_blocks = (keys.count(values, key) for key in counts)

  def read(path) -> DraftModule:
    file = path / 'medusa_lm_head.safetensors'
    if file.exists():
      stored = tensor_files.in_files([file])
    else:
      stored = tensor_files.in_folder(path)
    tensors = {k.removeprefix('medusa_head.'): v for k, v in stored.items()}
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
    return _read(path, module, layout, tensors)

  return read


def _eagle(values: dict[str, Any], config: TransformerConfig) -> Reader:
  """Returns the reader of EAGLE's layer, without a norm before attention."""
  fixed = {
    'qkv_bias': False,
    'parallel_drafting': False,
    # Some files have the size of the vocabulary twice.
    'draft_vocab_size': config.vocab_size,
  }
  keys.check_layers(values, ('bias',), fixed)
  keys.refuse_windows(values)
  has_bias = keys.flag(values, 'bias', True)

  def read(path) -> DraftModule:
    tensors = tensor_files.in_folder(path)
    layout = layouts.prefixed(llama.layer(config), 'layers_0.', 'layers.0.')
    del layout['layers_0.attention_norm.scale']
    layout['fuse'] = _embedding_first('fc.weight', config.width)
    computed = {'fuse_bias': np.zeros(config.width, np.float32)}
    if has_bias:
      layout['fuse_bias'] = layouts.vector('fc.bias')
    tensors.pop('embed_tokens.weight', None)  # a copy of the target's
    return _read(path, PublishedEagleLayer(config), layout, tensors, computed)

  return read


def _mtp(values: dict[str, Any]) -> Reader:
  """Returns the reader of the module of multi-token prediction in a target.

  MiMo's module reads the target's stream before the final norm, and
  DeepSeek-V3's reads it after that norm, as in vLLM and sglang. A module drafts
  at every depth, so a second one is refused.
  """
  family, num_modules = families.of(values), keys.count(values, families.MTP)
  if family is not llama:
    raise UserError(
      f'{families.MTP}: got a model of type {values["model_type"]!r}, expected '
      'one with layers like those of LLaMA'
    )
  if num_modules > 1:
    raise UserError(f'{families.MTP}: got {num_modules}, only 1 is supported')
  keys.refuse_windows(values)
  target = family.read(values)
  config = dataclasses.replace(target, num_layers=1)
  apart, after = families.mtp_prefixes(values, target.num_layers)

  def read(path) -> DraftModule:
    stored = tensor_files.in_folder(path)
    is_apart = any(name.startswith(apart) for name in stored)
    prefix = apart if is_apart else after
    tensors = {
      name.removeprefix(prefix): tensor
      for name, tensor in stored.items()
      if name.startswith(prefix)
    }
    if is_apart:
      fuse, norms = layouts.matrix('input_proj.weight'), _MIMO_NORMS
    else:
      fuse = _embedding_first('eh_proj.weight', config.width)
      norms = _DEEPSEEK_NORMS
      embedding = 'model.embed_tokens.weight'
      lm_head = embedding if config.tied_embeddings else 'lm_head.weight'
      for name, original in (
        ('embed_tokens.weight', embedding),
        ('shared_head.head.weight', lm_head),
      ):
        copy, tensor = tensors.pop(name, None), stored.get(original)
        if copy and not (tensor and np.array_equal(copy.read(), tensor.read())):
          raise UserError(
            f'drafter {path}: {prefix}{name} differs from {original}, expected '
            'a copy of it'
          )
    layer = layouts.prefixed(llama.layer(config), 'layers_0.', '')
    module = MTPLayer(config, taps=(target.num_layers,) if is_apart else ())
    layout = {'fuse': fuse} | llama.norms(**norms) | layer
    return _read(path, module, layout, tensors)

  return read


def _embedding_first(key: str, width: int) -> Source:
  """Returns the source of `fuse`, whose columns for features come first."""
  starts = ((0, width), (0, 0))
  return Source(
    'wpd', tuple(TensorSlice(key, 'w d', start) for start in starts)
  )


def _authors_fields(values: dict[str, Any], width: int) -> dict[str, Any]:
  """Returns `Eagle3Layer` fields of a config.json in the authors' format."""
  known = (*_EAGLE3_KEYS, *_MASKS, 'eagle_config', 'parallel_drafting')
  keys.check_layers(values, known, {'logit_scale': 1.0, 'qkv_bias': False})
  keys.refuse_windows(values)
  inside = {}
  if values.get('eagle_config'):
    inside = keys.nested(values, 'eagle_config')
  keys.check(inside, (IDS, 'use_aux_hidden_state'), _EAGLE_CONFIG)
  ids = agreed(IDS, *(part for part in (values, inside) if part.get(IDS)))
  fields = _eagle3_fields(values, width)
  if not keys.flag(inside, 'use_aux_hidden_state', True):
    if ids or fields['target_width'] or fields['tap_norm'] != 'none':
      raise UserError(
        f'use_aux_hidden_state: got false, expected no {IDS}, no '
        'target_hidden_size and no norm of fused features with it'
      )
    fields['taps'] = ()
  elif ids:
    ids = keys.layer_ids(IDS, ids, 1)
    # Some files name layers by inputs and some by outputs. As in sglang, ids
    # that begin with 1 are outputs: no drafter reads the input of layer 1.
    fields['taps'] = tuple(i + (ids[0] == 1) for i in ids)
  return fields


def _eagle3_fields(values: dict[str, Any], width: int) -> dict[str, Any]:
  """Returns the `Eagle3Layer` fields that all config formats share."""
  norms = {'together': 'norm_before_fc', 'each': 'fc_norm'}
  tap_norms = [norm for norm, key in norms.items() if keys.flag(values, key)]
  if len(tap_norms) > 1:
    raise UserError('norm_before_fc, fc_norm: got both, expected one of them')
  target_width = 0
  if values.get('target_hidden_size') is not None:
    target_width = keys.count(values, 'target_hidden_size')
  return {
    'target_width': 0 if target_width == width else target_width,
    'taps': None,
    'tap_norm': tap_norms[0] if tap_norms else 'none',
    'adds_to_normed': keys.flag(values, 'norm_before_residual'),
    'feeds_normed': keys.flag(values, 'norm_output'),
  }


def _eagle3(
  config: TransformerConfig, draft_vocab: int, fields: dict[str, Any]
) -> Reader:
  """Returns the reader of the layers, the fusion of taps and any LM head.

  Without an LM head the drafter uses the target's and can draft every token.
  The target's vocabulary may then be larger by rows that pad it.
  Fields with a `mask_token` are those of P-EAGLE (2602.01469).
  """

  def read(path) -> DraftModule:
    what = f'drafter {path}'
    tensors = tensor_files.in_folder(path)
    rows_v = _draft_rows(what, tensors, config.vocab_size, draft_vocab)
    is_wider = fields['target_width'] > 0
    has_embedding = 'embed_tokens.weight' in tensors or is_wider
    has_lm_head = (
      'lm_head.weight' in tensors
      or is_wider
      or not _is_in_order(rows_v, draft_vocab)
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
      # A mask's fused features.
      stored = tensors.pop('mask_hidden', None)
      size = module.tapped_width
      if stored is None or stored.shape not in ((1, size), (1, 1, size)):
        raise UserError(
          f'{what}: mask_hidden: got {stored and stored.shape}, expected '
          f'{(1, 1, size)}'
        )
      computed['mask_hidden'] = stored.read().astype(np.float32).reshape(size)
    is_authors = any(name.startswith('midlayer.') for name in tensors)
    layout = eagle3_layout(module, 'midlayer.' if is_authors else 'layers.0.')
    return _read(path, module, layout, tensors, computed)

  return read


def eagle3_layout(module: Eagle3Layer, first: str = 'layers.0.') -> Layout:
  """Returns the layout of all parameters but `draft_rows`.

  The first layer's tensors have the prefix `first`.
  """
  result = {
    'layers_0.feature_norm.scale': layouts.vector(f'{first}hidden_norm.weight'),
    'final_norm.scale': layouts.vector('norm.weight'),
  }
  layer = llama.layer(module.config)
  result |= layouts.repeated(layer, module.config.num_layers, 'layers.')
  result |= layouts.prefixed(layer, 'layers_0.', first)
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


def _is_in_order(rows_v: np.ndarray, draft_vocab: int) -> bool:
  """Returns True if the LM head has the first tokens of the vocabulary."""
  return np.array_equal(rows_v[:draft_vocab], np.arange(draft_vocab))


def _draft_rows(
  what: str, tensors: dict[str, Stored], vocab: int, draft_vocab: int
) -> np.ndarray:
  """Removes the token tables and returns each token's row in the LM head.

  `d2t` has token minus row for each row, and `t2d` follows from it. A drafter
  of all tokens may lack both tables.

  Returns:
    int32 [V]: rows; `draft_vocab` for tokens without one.
  """
  table = tensors.pop('d2t', None)
  tensors.pop('t2d', None)
  tokens_k = np.arange(draft_vocab)
  if table and (table.dtype[0], table.shape) == ('I', (draft_vocab,)):
    tokens_k = tokens_k + table.read()
  elif table or draft_vocab != vocab:
    raise UserError(
      f'{what}: d2t: got {table and (table.dtype, table.shape)}, expected '
      f'{draft_vocab} integers'
    )
  if len(np.intersect1d(tokens_k, np.arange(vocab))) < draft_vocab:
    raise UserError(
      f'{what}: d2t: got tokens from {tokens_k.min()} to {tokens_k.max()}, '
      f'expected {draft_vocab} different ones below {vocab}'
    )
  rows_v = np.full(vocab, draft_vocab, np.int32)
  rows_v[tokens_k] = np.arange(draft_vocab)
  return rows_v


def _dflash_of_authors(values: dict[str, Any], has_markov: bool) -> Reader:
  """Returns the reader for a config that names layers by their outputs.

  Keys may be in nested configs. Unknown keys are refused, such as those of
  DFlash's successors. DeepSpec and SpecForge train DSpark to draft at the root,
  and may tap the embedding, layer -1.
  """
  fixed = _DFLASH_FIXED | {'projector_type': 'dflash'}
  read, nested = _DFLASH_KEYS, ['dflash_config']
  if has_markov:
    read += _DSPARK_KEYS
    nested = [
      key for key in ('dflash_config', 'dspark_config') if values.get(key)
    ]
    fixed['projector_type'] = 'dspark'
  training = ('num_anchors', 'confidence_head_alpha') if has_markov else ()
  parts = [keys.nested(values, key) for key in nested]
  for part in parts:
    keys.check(part, (*read, *training), fixed)
  known = (*read, *training, *nested, 'target_hidden_size', 'draft_vocab_size')
  keys.check_layers(values, known, fixed)
  merged = (*read, *_CAUSAL)
  both = values | {key: agreed(key, values, *parts) for key in merged}
  ids = keys.layer_ids(
    'target_layer_ids', both['target_layer_ids'], -1 if has_markov else 0
  )
  if both['sample_from_anchor'] is None:
    both['sample_from_anchor'] = has_markov
  return _dflash(both, values, [i + 1 for i in ids])


def _dflash_of_speculators(
  values: dict[str, Any], layers: dict[str, Any], has_markov: bool
) -> Reader:
  """Returns the reader for a config that names layers by their inputs."""
  known = _DFLASH_OF_SPECULATORS.split()
  if has_markov:
    known += _DSPARK_KEYS
    # The default is true in speculators and false in vLLM.
    if values.get('sample_from_anchor') is None:
      raise UserError('no sample_from_anchor, expected true or false')
  fixed = _DFLASH_FIXED | {'projector_type': 'dflash'}
  keys.check(values, known, fixed)
  key = 'aux_hidden_state_layer_ids'
  ids = keys.layer_ids(key, values[key], 2)
  return _dflash(values, layers, ids)


def _are_causal(values: dict[str, Any]) -> bool:
  """Returns True if layers with a window see no later masks, the default."""
  says = {key: False for key in _CAUSAL if values.get(key) is not None}
  key = 'sliding_window_non_causal'
  if values.get(key) is not None:
    says[key] = not keys.flag(values, key)
  if len({*says.values()}) > 1:
    raise UserError(
      f'{", ".join(says)}: got {[values[key] for key in says]}, which differ '
      'in whether sliding layers see later masks'
    )
  return all(says.values())


def _dflash(
  values: dict[str, Any], layers: dict[str, Any], taps: list[int]
) -> Reader:
  """Returns the reader of Qwen3's layers, which read inputs of tapped layers.

  The drafter shares the target's embedding, and its LM head unless it has one
  for a part of the tokens.
  """
  check_name('model_type', layers.get('model_type'), ('qwen3',))
  config = llama.read(keys.layers(layers))
  vocab = config.vocab_size
  width = values.get('target_hidden_size') or config.width
  if width != config.width:
    raise UserError(
      f'target_hidden_size: got {width}, expected the hidden_size '
      f'{config.width} of layers that share its embedding'
    )
  at_root = keys.flag(values, 'sample_from_anchor')
  size = keys.count(values, 'block_size', 1 if at_root else 2)
  fields = {
    'block_size': size,
    'taps': tuple(taps),
    'mask_token': keys.token(values, 'mask_token_id', vocab),
    'drafts_at_root': at_root,
    'windows_end_at_root': KIND in values,
  }
  if config.windows:
    # Programs disagree on a smaller window inside a block.
    if max(config.windows) < size:
      raise UserError(
        f'sliding_window: got {max(config.windows)}, expected at least the '
        f'block_size {size}'
      )
    fields['causal_windows'] = _are_causal(values)
  draft_vocab = vocab
  if values.get('draft_vocab_size') is not None:
    draft_vocab = keys.count(values, 'draft_vocab_size')
  layout = {
    'fuse': layouts.matrix('fc.weight'),
    'context_norm.scale': layouts.vector('hidden_norm.weight'),
    'final_norm.scale': layouts.vector('norm.weight'),
    **layouts.repeated(llama.layer(config), config.num_layers, 'layers.'),
  }
  cls = DFlashLayers
  if values.get('markov_rank'):
    cls, fields['rank'] = DSparkLayers, keys.count(values, 'markov_rank')
    kind = values.get('markov_head_type') or 'vanilla'
    check_name('markov_head_type', kind, ('vanilla',))
    layout['embedding'] = layouts.single(
      'vr', 'markov_head.markov_w1.weight', 'v r'
    )
    layout['head'] = layouts.matrix('markov_head.markov_w2.weight')

  def read(path) -> DraftModule:
    what = f'drafter {path}'
    tensors = tensor_files.in_folder(path)
    rows_v = _draft_rows(what, tensors, vocab, draft_vocab)
    if draft_vocab == vocab and not _is_in_order(rows_v, vocab):
      raise UserError(
        f'{what}: d2t: got a table of other tokens, expected all in order'
      )
    # The matrices of all tokens are copies of the target's.
    tensors.pop('embed_tokens.weight', None)
    for name in _CONFIDENCE:
      tensors.pop(name, None)
    if draft_vocab == vocab:
      tensors.pop('lm_head.weight', None)
    if _is_in_order(rows_v, draft_vocab) and 'lm_head.weight' not in tensors:
      return _read(path, cls(config, **fields), layout, tensors)
    module = cls(config, draft_vocab=draft_vocab, **fields)
    own = {'lm_head.head': layouts.matrix('lm_head.weight')}
    return _read(path, module, layout | own, tensors, {'draft_rows': rows_v})

  return read


def _read(
  path,
  module: nn.Module,
  layout: Layout,
  tensors: dict[str, Stored],
  computed: dict[str, np.ndarray] | None = None,
) -> DraftModule:
  """Returns a module with the parameters of a layout and computed ones.

  Raises:
    UserError: tensors are missing, unused or of another shape.
  """
  shapes = param_shapes(module)
  flat = weights.flat(shapes)
  sizes = sizes_of(layout, weights.sizes(flat))
  layouts.check(f'drafter {path}', layout, sizes, tensors)
  dtype = dtypes.default_dtype(tensors.values())
  matmul_dtypes = weights.matmul_dtypes(flat, dtype)

  def read_one(name: str, index) -> np.ndarray:
    if name not in layout:
      return computed[name]
    value = layouts.read(tensors, layout[name], sizes[name])
    return value.reshape(flat[name].shape).astype(matmul_dtypes[name])

  params = weights.tree(weights.place(shapes, None, None, read_one))
  return DraftModule(module, params, target='')


def sizes_of(
  layout: Layout, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of parameters by the axes of their sources.

  A source may split an axis into the slices that are stacked along it.
  """
  sizes = {}
  for name, source in layout.items():
    shape, count = shapes[name], len(source.slices)
    if len(source.axes) > len(shape):
      at = source.axes.index(source.stacked)
      split = (count, shape[at] // count)
      shape = (*shape[:at], *split, *shape[at + 1 :])
    sizes[name] = shape
  return sizes
