"""Rotary position embeddings (Su et al. 2104.09864) and their scaling."""

import math

import jax.numpy as jnp
import numpy as np

from specsamp.models.config import TransformerConfig


def frequencies(config: TransformerConfig) -> np.ndarray:
  """Returns radians per position, float64 [head_dim / 2], highest first."""
  half = config.head_dim // 2
  plain = config.rope_theta ** (-np.arange(half) / half)
  scaling = config.rope_scaling
  if scaling is None:
    return plain
  if scaling.kind == 'linear':
    return plain / scaling.factor
  # Share of each frequency that is kept, by how often its wavelength fits.
  fits = scaling.original_length * plain / (2 * math.pi)
  low, high = scaling.low_frequency, scaling.high_frequency
  kept = np.clip((fits - low) / (high - low), 0, 1)
  return kept * plain + (1 - kept) * plain / scaling.factor


def rotate(x_bthz, positions_bt, frequencies):
  """Rotates pairs of head entries, i and i + head_dim / 2, by position."""
  angles = (
    positions_bt[:, :, None, None].astype(jnp.float32)
    * jnp.asarray(frequencies, jnp.float32)[None, None, None, :]
  )
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  x1, x2 = jnp.split(x_bthz.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
  return rotated.astype(x_bthz.dtype)
