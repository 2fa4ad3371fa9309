"""Sampling: logits to probabilities (`transforms`) and to tokens (`draw`)."""
