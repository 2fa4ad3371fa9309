"""What OPT and GPT-2 have in common: learned positions, layer norms, biases."""

from specsamp.errors import UserError
from specsamp.models import TransformerConfig


def config_of(width: int, num_heads: int, **values) -> TransformerConfig:
  """A config of this shape and other values."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    norm='layer',
    positions='learned',
    gated=False,
    biases='all',
    **values,
  )


def has_its_shape(config: TransformerConfig) -> bool:
  """Whether a config is one that `config_of` makes."""
  return (
    config.norm == 'layer'
    and config.positions == 'learned'
    and not config.gated
    and config.biases == 'all'
    and not config.qk_norm
    and config.num_kv_heads == config.num_heads
    and config.head_dim * config.num_heads == config.width
  )
