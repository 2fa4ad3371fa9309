"""Logits to probabilities (`transforms`), probabilities to tokens (`draw`)."""
