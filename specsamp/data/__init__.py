"""Tokenizers, corpora with their held-out parts, packed batches, prompts."""
