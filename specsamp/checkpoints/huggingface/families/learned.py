"""Configs of OPT and GPT-2: learned positions, layer norms, biases."""

from specsamp.errors import UserError
from specsamp.models import TransformerConfig

_FIXED = dict(norm='layer', positions='learned', gated=False, biases='all')


def config_of(width: int, num_heads: int, **values) -> TransformerConfig:
  """Returns a config with the fields that both families share."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    **_FIXED,
    **values,
  )


def fits(config: TransformerConfig) -> bool:
  """Returns True if `config_of` can return this config."""
  return (
    all(getattr(config, name) == value for name, value in _FIXED.items())
    and not config.qk_norm
    and config.num_kv_heads == config.num_heads
    and config.head_dim * config.num_heads == config.width
  )
