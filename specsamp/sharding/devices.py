"""What a device can do that others cannot."""

import re

import jax


def has_bfloat16(device: jax.Device) -> bool:
  """Whether it multiplies matrices of bfloat16: GPUs before Ampere do not.

  XLA then converts whole weights to float32 in every pass.
  """
  # '7.5' of a T4, '8.0' of an A100; 'gfx90a' and the like of AMD's.
  capability = str(getattr(device, 'compute_capability', ''))
  match = re.fullmatch(r'(\d+)\.\d+', capability)
  return match is None or int(match[1]) >= 8
