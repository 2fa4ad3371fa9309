"""The interface of an architecture, and layouts that several share."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specsamp.checkpoints import layouts
from specsamp.checkpoints.layouts import Layout
from specsamp.errors import UserError
from specsamp.models import TransformerConfig

# Buffers that older versions of transformers saved with the weights.
BUFFERS = re.compile(r'(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$')
# Fields of OPT and GPT-2.
_LEARNED = dict(norm='layer', positions='learned', gated=False, biases='all')


class Family(NamedTuple):
  """An architecture.

  Attributes:
    model_type: value of that key in config.json.
    base: prefix of all tensors but the LM head's; files of the bare model lack
      it.
    read: values of a config.json -> config.
    layout: config -> layout.
    write: config -> the config.json that computes it, or None if the family
      cannot.
  """

  model_type: str
  base: str
  read: Callable[[dict[str, Any]], TransformerConfig]
  layout: Callable[[TransformerConfig], Layout]
  write: Callable[[TransformerConfig], dict[str, Any] | None]

  def rename(self, names) -> dict[str, str]:
    """Maps names in the layout to names in the files, without buffers."""
    names = [name for name in names if not BUFFERS.search(name)]
    if any(name.startswith(self.base) for name in names):
      return {name: name for name in names}
    return {
      name if name.startswith('lm_head.') else self.base + name: name
      for name in names
    }


def head(config: TransformerConfig) -> Layout:
  """Returns the layout of the LM head, which a tied model lacks."""
  if config.tied_embeddings:
    return {}
  return {'head': layouts.single('vd', 'lm_head.weight', 'v d')}


def attention(
  config: TransformerConfig, name: str, key: str, out: str = 'o_proj'
) -> Layout:
  """Returns the layout of attention with separate matrices [outputs, inputs].

  Parameters have the prefix `name`, tensors the prefix `key`.
  """
  kv = [f'{key}k_proj', f'{key}v_proj']
  layout = {
    'q': layouts.single('hkd', f'{key}q_proj.weight', 'hk d'),
    'kv': layouts.stack('cgkd', [f'{n}.weight' for n in kv], 'gk d'),
    'o': layouts.single('dhk', f'{key}{out}.weight', 'd hk'),
  }
  if config.biases != 'none':
    layout['q_bias'] = layouts.single('hk', f'{key}q_proj.bias', 'hk')
    layout['kv_bias'] = layouts.stack('cgk', [f'{n}.bias' for n in kv], 'gk')
  if config.biases in ('attention', 'all'):
    layout['o_bias'] = layouts.vector(f'{key}{out}.bias')
  return {name + part: source for part, source in layout.items()}


def mlp(
  name: str, up: list[str], down: str, order: str, has_biases: bool
) -> Layout:
  """Returns the layout of an MLP.

  Args:
    name: prefix of the parameters.
    up: prefixes of the tensors before the activation, the gate first.
    down: prefix of the tensors after it.
    order: 'od' for tensors [outputs, inputs], 'do' for the reverse.
    has_biases: True if both projections have biases.
  """
  axes = {'od': ('f d', 'd f'), 'do': ('d f', 'f d')}[order]
  layout = {
    f'{name}up': layouts.stack('cfd', [f'{n}.weight' for n in up], axes[0]),
    f'{name}down': layouts.single('df', f'{down}.weight', axes[1]),
  }
  if has_biases:
    layout[f'{name}up_bias'] = layouts.stack(
      'cf', [f'{n}.bias' for n in up], 'f'
    )
    layout[f'{name}down_bias'] = layouts.vector(f'{down}.bias')
  return layout


def learned_config(width: int, num_heads: int, **values) -> TransformerConfig:
  """Returns a config of OPT or GPT-2."""
  if width % num_heads:
    raise UserError(f'{num_heads} heads do not divide a width of {width}')
  return TransformerConfig(
    width=width,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=width // num_heads,
    **_LEARNED,
    **values,
  )


def is_learned(config: TransformerConfig) -> bool:
  """Returns True if `learned_config` can return this config."""
  return (
    all(getattr(config, name) == value for name, value in _LEARNED.items())
    and not config.qk_norm
    and config.num_kv_heads == config.num_heads
    and config.head_dim * config.num_heads == config.width
  )
