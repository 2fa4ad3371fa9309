"""Tokenizers, corpora with held-out parts, packed batches, and prompts."""
