"""Decoder-only transformers with ragged caches."""

from specsamp.models.config import TransformerConfig
from specsamp.models.kv_cache import KVCache
from specsamp.models.transformer import Output, Transformer, param_shapes

__all__ = [
  'KVCache',
  'Output',
  'Transformer',
  'TransformerConfig',
  'param_shapes',
]
