"""Lossless speculative decoding of large transformers in JAX."""

from specsamp import drafting, verification, zoo
from specsamp.checkpoints.model_dir import load
from specsamp.decoding import Generation, Round, generate, stream
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

__version__ = '0.1.0'

__all__ = [
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
