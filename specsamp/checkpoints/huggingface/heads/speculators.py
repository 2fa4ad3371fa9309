"""Folders of the speculators library, which vLLM serves as they are.

Their taps are inputs of layers, but some that were converted have outputs
there: what begins with layer 1 or the embedding is refused.
"""

import dataclasses
import functools
import json
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
from specsamp.utils import distributed, files

KEY = 'speculators_model_type'
_LAYERS = ('llama', 'qwen3')
_AHEAD = (
  5  # tokens that vLLM then drafts, if ours drafts as many as it is asked
)


def reader(values: dict[str, Any]) -> Callable[[pathlib.Path], DraftModule]:
  """What reads the folder of this config.json.

  Raises:
    UserError: another kind of drafter, keys that are not understood, or values
      that are not computed here or that two programs read in two ways.
    KeyError: a value is missing.
  """
  check_name(KEY, values[KEY], _READERS)
  layers = values['transformer_layer_config']
  if not isinstance(layers, dict):
    raise UserError(
      f'transformer_layer_config: got {layers!r}, expected its keys'
    )
  # Without one it is of Qwen3 for speculators and of LLaMA for vLLM.
  check_name('model_type', layers.get('model_type'), _LAYERS)
  keys.check_layers(layers)
  return _READERS[values[KEY]](values, layers)


def _eagle3(values: dict[str, Any], layers: dict[str, Any]):
  """Returns the reader of EAGLE-3's layers, or P-EAGLE's."""
  own = (KEY, 'transformer_layer_config', 'mask_token_id')
  keys.check(values, (*eagle3.COMMON, *own, 'tie_word_embeddings'))
  config = llama.read(layers)
  # Where it is left out, vLLM takes true for it and speculators false.
  if values.get('norm_before_residual') is None:
    raise UserError('no norm_before_residual, expected true or false')
  fields = eagle3.common_fields(values | {'hidden_size': config.width})
  ids, taps = values.get(eagle3.IDS), None
  if ids:
    folder.check_layers(eagle3.IDS, ids, 2)
    taps = tuple(ids)
  fields['taps'] = taps
  if values[KEY] == 'peagle':
    fields['mask_token'] = folder.token(values, 'mask_token_id', config)
  draft_vocab = folder.count(values, 'draft_vocab_size')
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
  keep=None,
) -> None:
  """Writes a folder that vLLM serves beside the target, and speculators loads.

  Of several processes all must call this, and the first one writes.

  Args:
    trained: what to write, EAGLE-3's layers.
    path: folder; a drafter of ours that is there is replaced by a rename.
    target: where vLLM is to find the target, a folder of Hugging Face's
      libraries or a name of the hub.
    dtype: of the tensors; the one that the drafter computes in if left out.
    keep: a folder that may not be replaced; None is none.

  Raises:
    UserError: another kind of drafter, or one that the format cannot express;
      or the target is another one, or in another format.
  """
  module = trained.module
  if type(module) is not Eagle3Layer:  # P-EAGLE's are such too, with masks
    raise UserError(
      f'export: got a drafter of {type(module).__name__}, speculators has '
      'EAGLE-3 alone of those that are written here'
    )
  values, _, there = huggingface.read_config(folders.find('target', target))
  _check_target(module, there)
  rows_v = np.asarray(meshes.fetch(trained.params['draft_rows']))
  # Rows in the order of their tokens, as speculators takes them to be.
  tokens_k = np.flatnonzero(rows_v < module.draft_vocab)
  if len(tokens_k) and tokens_k[-1] >= there.vocab_size:
    raise UserError(
      f'export: drafts token {tokens_k[-1]}, the target has {there.vocab_size}'
    )
  config = _eagle3_config(module, there, len(tokens_k)) | {
    'speculators_config': {
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
        'architectures': values['architectures'],
      },
    }
  }
  layout = eagle3.layout(module)
  dtype = np.dtype(dtype or module.config.dtype)
  params = weights.flat(trained.params)
  shapes = {name: params[name].shape for name in layout}
  shapes['lm_head.head'] = (len(tokens_k), module.config.width)
  if module.has_embedding:
    shapes['embedding'] = (there.vocab_size, module.config.width)
  sizes = folder.sizes_of(layout, shapes)

  def fetch(name: str) -> np.ndarray:
    value = np.asarray(meshes.fetch(params[name])).astype(dtype)
    if name == 'lm_head.head':
      value = value[rows_v[tokens_k]]
    if name == 'embedding':
      value = _with_rows(value, there.vocab_size)
    return value.reshape(sizes[name])

  with files.replace_folder(path, weights.is_ours, keep) as made:
    if distributed.is_first():
      text = json.dumps(config | {'dtype': dtype.name}, indent=2)
      (made / weights.CONFIG).write_text(text + '\n')
    tables = _tables(tokens_k, there.vocab_size)
    tensor_export.write(made, layout, sizes, dtype, fetch, tables)


def _check_target(module: Eagle3Layer, there: TransformerConfig) -> None:
  if not module.has_lm_head:
    raise UserError(
      "export: the drafter uses the target's LM head, for which speculators "
      'has no key'
    )
  width = module.target_width or module.config.width
  if width != there.width:
    raise UserError(
      f'export: trained for a target of width {width}, this one has '
      f'{there.width}'
    )
  if max(module.taps or (), default=0) > there.num_layers:
    raise UserError(
      f'export: reads layers {module.taps} of its target, this one has '
      f'{there.num_layers}'
    )
  if module.taps == ():
    raise UserError(
      "export: reads the target's last state alone, for which speculators has "
      'no key'
    )


def _eagle3_config(
  module: Eagle3Layer, there: TransformerConfig, draft_vocab: int
) -> dict[str, Any]:
  """The config.json of EAGLE-3's layers but for `speculators_config`."""
  own = dataclasses.replace(
    module.config,
    vocab_size=there.vocab_size,
    padding=0,
    tied_embeddings=False,
  )
  layers = families.write(own)
  check_name('export: model_type', layers['model_type'], _LAYERS)
  taps = module.taps
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
    eagle3.IDS: list(taps or default_taps(there.num_layers)),
    'tie_word_embeddings': False,
  }


def _tables(tokens_k: np.ndarray, vocab: int) -> dict[str, np.ndarray]:
  """d2t and t2d, or none where every token can be drafted."""
  if len(tokens_k) == vocab:
    return {}
  can_draft_v = np.zeros(vocab, bool)
  can_draft_v[tokens_k] = True
  steps_k = tokens_k.astype(np.int64) - np.arange(len(tokens_k))
  return {'d2t': steps_k, 't2d': can_draft_v}


def _with_rows(value_vd: np.ndarray, rows: int) -> np.ndarray:
  """So many rows of it, those that it lacks being zeros."""
  missing = max(rows - len(value_vd), 0)
  return np.pad(value_vd[:rows], ((0, missing), (0, 0)))
