"""Lossless speculative decoding of large transformers in JAX.

The suffix of an array's name gives its axes, one letter each: `tokens_bn` is
[B, N]. A digit is an axis of that size. The letters are ::

  B  rows of a batch                    N  nodes of a draft, its root included
  C  candidates: children of a node     P  tokens of a prompt
  D  width of the residual stream       Q  queries of a training pass
  E  concatenated features              R  rows of several axes, flattened
  F  hidden units of an MLP             S  slots of a cache
  G  drafted tokens of a chain (γ)      T  tokens of a pass
  H  query heads                        U  key and value heads
  I  internal nodes: not leaves         V  the vocabulary
  J  places in an n-gram or on a path   W  nodes of a level
  K  entries of a list                  Z  dimensions of a head
  M  positions that are trained
"""

import importlib
from importlib import util
from typing import TYPE_CHECKING, Any

from specsamp.errors import UserError

if TYPE_CHECKING:  # `__getattr__` imports these names when first used
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

# The module that defines each name. It is imported when first used, because
# importing jax would delay `specsamp --help` by two seconds.
_MODULES = {
  'Chunk': 'decoding',
  'Completion': 'decoding',
  'Engine': 'decoding',
  'Generation': 'decoding',
  'LanguageModel': 'language_model',
  'Round': 'decoding',
  'SamplingParams': 'sampling.transforms',
  'generate': 'decoding',
  'load': 'checkpoints.model_dir',
  'stream': 'decoding',
}


def __getattr__(name: str) -> Any:
  """Returns a public name or a submodule, imported when it is first used."""
  if name in _MODULES:
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    globals()[name] = getattr(module, name)
    return globals()[name]
  if not name.startswith('_') and util.find_spec(f'{__name__}.{name}'):
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
