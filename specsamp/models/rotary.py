"""Rotary position embeddings (Su et al. 2104.09864) and their scaling."""

import math

import jax.numpy as jnp
import numpy as np

from specsamp.models.config import TransformerConfig


def frequencies(config: TransformerConfig) -> np.ndarray:
  """Returns radians per position of the rotated pairs, float64, descending."""
  half = int(config.head_dim * config.rotary_fraction) // 2
  plain = config.rope_theta ** (-np.arange(half) / half)
  scaling = config.rope_scaling
  if scaling is None:
    return plain
  if scaling.kind == 'linear':
    return plain / scaling.factor
  # Share of each frequency that is kept, by how often its wavelength fits.
  low, high = scaling.low_frequency, scaling.high_frequency
  if scaling.kind == 'llama3':
    fits = scaling.original_length * plain / (2 * math.pi)
    kept = np.clip((fits - low) / (high - low), 0, 1)
  else:
    # Index of the pair whose wavelength fits this often.
    index = lambda fits: (
      half
      * math.log(scaling.original_length / (2 * math.pi * fits))
      / math.log(config.rope_theta)
    )
    first, last = index(high), index(low)
    if scaling.rounded:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    steps = np.arange(half) - first
    kept = 1 - np.clip(steps / max(last - first, 0.001), 0, 1)
  return kept * plain + (1 - kept) * plain / scaling.factor


def rotate(x_bthz, positions_bt, config: TransformerConfig):
  """Rotates pairs of head entries by position.

  The first R entries are rotated. Entry i is paired with i + R / 2.
  """
  per_position = frequencies(config)
  size = 2 * len(per_position)
  angles = (
    positions_bt[:, :, None, None].astype(jnp.float32)
    * jnp.asarray(per_position, jnp.float32)[None, None, None, :]
  )
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  if config.rope_scaling and config.rope_scaling.attention_factor != 1:
    factor = config.rope_scaling.attention_factor
    cos, sin = cos * factor, sin * factor
  x1, x2 = jnp.split(x_bthz[..., :size].astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
  rotated = rotated.astype(x_bthz.dtype)
  if size == x_bthz.shape[-1]:
    return rotated
  return jnp.concatenate([rotated, x_bthz[..., size:]], axis=-1)
