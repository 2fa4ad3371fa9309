"""Training of language models and of drafters; runs resume when killed."""
