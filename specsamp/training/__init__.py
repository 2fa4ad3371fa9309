"""Pretraining, and drafters trained on a target's features; both resume."""
