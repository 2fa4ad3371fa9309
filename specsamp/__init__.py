"""Lossless speculative decoding of large transformers in JAX.

The end of an array's name gives its axes, a letter each: `tokens_bn` is [B, N].
The letters ::

  B  rows of a batch                    N  nodes of a draft, its root included
  C  candidates: children of a node     P  tokens of a prompt
  D  width of the residual stream       Q  queries of a training pass
  E  features side by side              R  rows of several axes, flattened
  F  hidden units of an MLP             S  slots of a cache
  G  drafted tokens of a chain (γ)      T  tokens of a pass
  H  query heads                        U  key and value heads
  I  internal nodes: not leaves         V  the vocabulary
  J  places in an n-gram or on a path   W  nodes of a level
  K  entries of a list                  Z  dimensions of a head
  M  positions that are trained

A digit is an axis of that size.
"""

from specsamp import drafting, verification, zoo
from specsamp.checkpoints.model_dir import load
from specsamp.decoding import (
  Chunk,
  Completion,
  Engine,
  Generation,
  Round,
  generate,
  stream,
)
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

__version__ = '0.1.0'

__all__ = [
  'Chunk',
  'Completion',
  'Engine',
  'Generation',
  'LanguageModel',
  'Round',
  'SamplingParams',
  'UserError',
  'drafting',
  'generate',
  'load',
  'stream',
  'verification',
  'zoo',
]
