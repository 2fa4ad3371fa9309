"""EAGLE's layer (Li et al. 2401.15077) and EAGLE-2's in the authors' format."""

import functools
from typing import Any

import numpy as np

from specsamp.checkpoints import layouts
from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import folder, keys
from specsamp.checkpoints.layouts import Source, TensorSlice
from specsamp.drafting.eagle import PublishedEagleLayer
from specsamp.drafting.features import DraftModule
from specsamp.models import TransformerConfig


def reader(values: dict[str, Any], config: TransformerConfig):
  """Returns the reader of a folder with this config.json."""
  fixed = {
    'qkv_bias': False,
    'parallel_drafting': False,
    # Some files have the size of the vocabulary twice.
    'draft_vocab_size': config.vocab_size,
  }
  keys.check_layers(values, ('bias',), fixed)
  return functools.partial(_read, config, keys.flag(values, 'bias', True))


def _read(config: TransformerConfig, has_bias: bool, path) -> DraftModule:
  """Reads a layer that has no norm before attention."""
  tensors = folder.tensors_of(path)
  layout = llama.layer(config, 'layers_0.', 'layers.0.')
  del layout['layers_0.attention_norm.scale']
  # The tensor has the embedding's columns first, the parameter the feature's.
  starts = ((0, config.width), (0, 0))
  layout['fuse'] = Source(
    'wpd', tuple(TensorSlice('fc.weight', 'w d', start) for start in starts)
  )
  computed = {}
  if has_bias:
    layout['fuse_bias'] = layouts.vector('fc.bias')
  else:
    computed['fuse_bias'] = np.zeros(config.width, np.float32)
  folder.drop_copy(path, tensors, 'embed_tokens.weight', config)
  module = PublishedEagleLayer(config)
  return folder.read(path, module, layout, tensors, computed)
