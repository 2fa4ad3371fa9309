"""Experiments that the launchers run, and their configs."""
