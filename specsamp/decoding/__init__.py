"""Decoding: prefill, the compiled loop, generation of text, and an engine."""

from specsamp.decoding.completions import Chunk, Completion
from specsamp.decoding.engine import Engine
from specsamp.decoding.generate import Generation, Round, generate, stream

__all__ = [
  'Chunk',
  'Completion',
  'Engine',
  'Generation',
  'Round',
  'generate',
  'stream',
]
