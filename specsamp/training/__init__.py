"""Training of language models and of drafters, in runs that resume."""
