"""Folders of the speculators library, which vLLM serves as they are.

Their taps are inputs of layers, but some converted folders name outputs: ids
that begin with layer 1 or the embedding are refused.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from specsamp.checkpoints import folders, weights
from specsamp.checkpoints.huggingface import families, tensor_export
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import (
  dflash,
  eagle3,
  folder,
  keys,
)
from specsamp.drafting.eagle3 import Eagle3Layer, default_taps
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig
from specsamp.models.config import Dtype
from specsamp.sharding import mesh as meshes

KEY = 'speculators_model_type'
_LAYERS = ('llama', 'qwen3')
_AHEAD = 5  # tokens that vLLM drafts if the drafter has no fixed number


def reader(values: dict[str, Any]) -> Callable[[pathlib.Path], DraftModule]:
  """Returns the reader of a folder with this config.json.

  Raises:
    UserError: the kind of drafter, a key or a value is not supported, or two
      programs read a value differently.
    KeyError: a value is missing.
  """
  check_name(KEY, values[KEY], _READERS)
  layers = keys.nested(values, 'transformer_layer_config')
  # Without a type the layers are Qwen3's for speculators and LLaMA's for vLLM.
  check_name('model_type', layers.get('model_type'), _LAYERS)
  keys.check_layers(layers)
  return _READERS[values[KEY]](values, layers)


def _eagle3(values: dict[str, Any], layers: dict[str, Any]):
  """Returns the reader of EAGLE-3's layers, or P-EAGLE's."""
  known = (KEY, 'transformer_layer_config', 'mask_token_id')
  keys.check(values, (*eagle3.COMMON, *known, 'tie_word_embeddings'))
  config = llama.read(layers)
  # The default is true in vLLM and false in speculators.
  if values.get('norm_before_residual') is None:
    raise UserError('no norm_before_residual, expected true or false')
  fields = eagle3.common_fields(values | {'hidden_size': config.width})
  fields['taps'] = None
  if ids := values.get(eagle3.IDS):
    fields['taps'] = tuple(keys.layer_ids(eagle3.IDS, ids, 2))
  if values[KEY] == 'peagle':
    mask = keys.token(values, 'mask_token_id', config.vocab_size)
    fields['mask_token'] = mask
  draft_vocab = keys.count(values, 'draft_vocab_size')
  return functools.partial(eagle3.read, config, draft_vocab, fields)


_READERS = {
  'eagle3': _eagle3,
  'peagle': _eagle3,
  'dflash': dflash.speculators_reader,
}


def save(
  trained: DraftModule,
  path,
  target: str,
  dtype: Dtype | None = None,
) -> None:
  """Writes a folder that vLLM serves with the target, and speculators loads.

  All processes of a run must call this, and the first one writes.

  Args:
    trained: EAGLE-3's layers.
    path: folder; one that holds only a drafter of specsamp is replaced.
    target: where vLLM finds the target: a folder of Hugging Face's libraries or
      a name of the hub.
    dtype: of the tensors; by default the dtype that the drafter computes in.

  Raises:
    UserError: the format cannot express the drafter; or the target does not fit
      or is in another format.
  """
  module = trained.module
  if type(module) is not Eagle3Layer:  # not its subclass for P-EAGLE
    raise UserError(
      f'export: got a drafter of {type(module).__name__}, speculators is '
      'supported for EAGLE-3 only'
    )
  target_values, _, target_config = huggingface.read_config(
    folders.find('target', target)
  )
  _check_target(module, target_config)
  vocab = target_config.vocab_size
  rows_v = np.asarray(meshes.fetch(trained.params['draft_rows']))
  # speculators expects rows in the order of their tokens.
  tokens_k = np.flatnonzero(rows_v < module.draft_vocab)
  if len(tokens_k) and tokens_k[-1] >= vocab:
    raise UserError(
      f'export: drafts token {tokens_k[-1]}, the target has {vocab} tokens'
    )
  values = _config(module, target_config, len(tokens_k))
  values['speculators_config'] = {
    'algorithm': 'eagle3',
    'default_proposal_method': 'greedy',
    'proposal_methods': [
      {
        'proposal_type': 'greedy',
        'speculative_tokens': module.ahead or _AHEAD,
        'verifier_accept_k': 1,
        'accept_tolerance': 0.0,
      }
    ],
    'verifier': {
      'name_or_path': str(target),
      'architectures': target_values['architectures'],
    },
  }
  layout = eagle3.layout(module)
  dtype = np.dtype(dtype or module.config.dtype)
  params = weights.flat(trained.params)
  shapes = {name: params[name].shape for name in layout}
  shapes['lm_head.head'] = (len(tokens_k), module.config.width)
  if module.has_embedding:
    shapes['embedding'] = (vocab, module.config.width)
  sizes = folder.sizes_of(layout, shapes)

  def fetch(name: str) -> np.ndarray:
    value = np.asarray(meshes.fetch(params[name])).astype(dtype)
    if name == 'lm_head.head':
      value = value[rows_v[tokens_k]]
    if name == 'embedding':
      missing = max(vocab - len(value), 0)
      value = np.pad(value[:vocab], ((0, missing), (0, 0)))
    return value.reshape(sizes[name])

  tables = _tables(tokens_k, vocab)
  with weights.new_folder(path, values | {'dtype': dtype.name}) as partial:
    tensor_export.write(partial, layout, sizes, dtype, fetch, tables)


def _check_target(module: Eagle3Layer, target: TransformerConfig) -> None:
  if not module.has_lm_head:
    raise UserError(
      "export: the drafter uses the target's LM head, for which speculators "
      'has no key'
    )
  width = module.target_width or module.config.width
  if width != target.width:
    raise UserError(
      f'export: trained for a target of width {width}, this one has '
      f'{target.width}'
    )
  if max(module.taps or (), default=0) > target.num_layers:
    raise UserError(
      f'export: reads layers {module.taps} of its target, this one has '
      f'{target.num_layers}'
    )
  if module.taps == ():
    raise UserError(
      "export: reads the target's last state alone, for which speculators has "
      'no key'
    )


def _config(
  module: Eagle3Layer, target: TransformerConfig, draft_vocab: int
) -> dict[str, Any]:
  """Returns the config.json without `speculators_config`."""
  config = dataclasses.replace(
    module.config,
    vocab_size=target.vocab_size,
    padding=0,
    tied_embeddings=False,
  )
  layers = families.write(config)
  check_name('export: model_type', layers['model_type'], _LAYERS)
  return {
    KEY: 'eagle3',
    'architectures': ['Eagle3Speculator'],
    'transformer_layer_config': layers,
    'draft_vocab_size': draft_vocab,
    'norm_before_residual': module.adds_to_normed,
    'norm_before_fc': module.tap_norm == 'together',
    'fc_norm': module.tap_norm == 'each',
    'norm_output': module.feeds_normed,
    'target_hidden_size': module.target_width or None,
    eagle3.IDS: list(module.taps or default_taps(target.num_layers)),
    'tie_word_embeddings': False,
  }


def _tables(tokens_k: np.ndarray, vocab: int) -> dict[str, np.ndarray]:
  """Returns d2t and t2d, or nothing if every token can be drafted."""
  if len(tokens_k) == vocab:
    return {}
  can_draft_v = np.zeros(vocab, bool)
  can_draft_v[tokens_k] = True
  steps_k = tokens_k.astype(np.int64) - np.arange(len(tokens_k))
  return {'d2t': steps_k, 't2d': can_draft_v}
