"""Capabilities that some devices have and others lack."""

import re

import jax


def has_bfloat16(device: jax.Device) -> bool:
  """Returns False for GPUs before Ampere, which multiply no bfloat16 matrices.

  XLA converts whole weights to float32 there, in every pass.
  """
  # '7.5' of a T4, '8.0' of an A100. AMD has names such as 'gfx90a'.
  capability = str(getattr(device, 'compute_capability', ''))
  match = re.fullmatch(r'(\d+)\.\d+', capability)
  return match is None or int(match[1]) >= 8
