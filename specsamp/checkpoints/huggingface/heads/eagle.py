"""EAGLE's layer (Li et al. 2401.15077) as its authors write it; EAGLE-2's."""

import numpy as np

from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import folder
from specsamp.checkpoints.layouts import Part, Source
from specsamp.drafting.eagle import PublishedEagleLayer
from specsamp.drafting.features import DraftModule
from specsamp.models import TransformerConfig

KEYS = ('bias',)
# Keys of a config.json -> the only value that is computed here.
FIXED = {'qkv_bias': False, 'parallel_drafting': False}


def read(config: TransformerConfig, has_bias: bool, path) -> DraftModule:
  """A layer without a norm before attention."""
  tensors = folder.tensors_of(path)
  layout = llama.layer(config, 'layers_0.', 'layers.0.')
  del layout['layers_0.attention_norm.scale']
  # Theirs reads the embedding first, ours the feature.
  halves = ((0, config.width), (0, 0))
  layout['fuse'] = Source(
    'wpd', tuple(Part('fc.weight', 'w d', start) for start in halves)
  )
  given = {}
  if has_bias:
    layout['fuse_bias'] = folder.vector('fc.bias')
  else:
    given['fuse_bias'] = np.zeros(config.width, np.float32)
  folder.drop_copy(path, tensors, 'embed_tokens.weight', config)
  module = PublishedEagleLayer(config)
  return folder.read(path, module, layout, tensors, given)
