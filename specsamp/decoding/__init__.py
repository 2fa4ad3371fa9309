"""Prefill, the compiled loop, and generation from text to text."""

from specsamp.decoding.generate import Generation, Round, generate, stream

__all__ = ['Generation', 'Round', 'generate', 'stream']
