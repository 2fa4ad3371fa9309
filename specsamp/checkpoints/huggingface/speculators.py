"""EAGLE-3's layers written for the speculators library and vLLM."""

import dataclasses
from typing import Any

import numpy as np

from specsamp.checkpoints import folders, layouts, weights
from specsamp.checkpoints.huggingface import families, heads
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.drafting.eagle3 import Eagle3Layer, default_taps
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig
from specsamp.models.config import Dtype
from specsamp.sharding import mesh as meshes

_AHEAD = 5  # tokens that vLLM drafts if the drafter has no fixed number


def save(
  trained: DraftModule, path, target: str, dtype: Dtype | None = None
) -> None:
  """Writes a folder that vLLM serves with the target, and speculators loads.

  A folder that holds only a drafter of specsamp is replaced. All processes of a
  run must call this, and the first one writes. vLLM loads the target from its
  folder or from the hub. By default tensors have the drafter's dtype.

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
  if trained.acceptance is not None:
    values[heads.ACCEPTANCE] = trained.acceptance
  layout = heads.eagle3_layout(module)
  dtype = np.dtype(dtype or module.config.dtype)
  params = weights.flat(trained.params)
  shapes = {name: params[name].shape for name in layout}
  shapes['lm_head.head'] = (len(tokens_k), module.config.width)
  if module.has_embedding:
    shapes['embedding'] = (vocab, module.config.width)
  sizes = heads.sizes_of(layout, shapes)

  def fetch(name: str) -> np.ndarray:
    value = np.asarray(meshes.fetch(params[name]))
    if name == 'lm_head.head':
      value = value[rows_v[tokens_k]]
    if name == 'embedding':
      missing = max(vocab - len(value), 0)
      value = np.pad(value[:vocab], ((0, missing), (0, 0)))
    return value.reshape(sizes[name])

  tables = {}
  if len(tokens_k) < vocab:
    can_draft_v = np.zeros(vocab, bool)
    can_draft_v[tokens_k] = True
    steps_k = tokens_k.astype(np.int64) - np.arange(len(tokens_k))
    tables = {'d2t': steps_k, 't2d': can_draft_v}
  with weights.new_folder(path, values | {'dtype': dtype.name}) as partial:
    layouts.export(partial, layout, sizes, fetch, dtype, tables)


def _check_target(module: Eagle3Layer, target: TransformerConfig) -> None:
  width = module.target_width or module.config.width
  for is_fault, message in (
    (not module.has_lm_head, "uses the target's LM head"),
    (module.taps == (), "reads the target's last state alone"),
    (
      width != target.width,
      f'trained for a target of width {width}, this one has {target.width}',
    ),
    (
      max(module.taps or (), default=0) > target.num_layers,
      f'reads layers {module.taps} of its target, this one has '
      f'{target.num_layers}',
    ),
  ):
    if is_fault:
      raise UserError(f'export: the drafter cannot be written: {message}')


def _config(
  module: Eagle3Layer, target: TransformerConfig, draft_vocab: int
) -> dict[str, Any]:
  """Returns the config.json without `speculators_config`."""
  vocab = dict(vocab_size=target.vocab_size, padding=0, tied_embeddings=False)
  config = dataclasses.replace(module.config, **vocab)
  layers = families.write(config)
  check_name('export: model_type', layers['model_type'], heads.LAYER_TYPES)
  return {
    heads.KIND: 'eagle3',
    'architectures': ['Eagle3Speculator'],
    heads.LAYERS: layers,
    'draft_vocab_size': draft_vocab,
    'norm_before_residual': module.adds_to_normed,
    'norm_before_fc': module.tap_norm == 'together',
    'fc_norm': module.tap_norm == 'each',
    'norm_output': module.feeds_normed,
    'target_hidden_size': module.target_width or None,
    heads.IDS: list(module.taps or default_taps(target.num_layers)),
    'tie_word_embeddings': False,
  }
