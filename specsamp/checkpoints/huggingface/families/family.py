"""What differs between the architectures of transformers."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specsamp.checkpoints import layouts
from specsamp.checkpoints.layouts import Layout
from specsamp.models import TransformerConfig

# Buffers that older versions saved beside the weights.
BUFFERS = re.compile(r'(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$')


class Family(NamedTuple):
  """One architecture.

  Attributes:
    model_type: as in config.json.
    base: what the names of all tensors but the LM head's begin with; files of
      the bare model leave it out.
    read: values of a config.json -> config.
    layout: config -> layout.
    write: config -> the config.json that computes it, None if none of the
      family does.
  """

  model_type: str
  base: str
  read: Callable[[dict[str, Any]], TransformerConfig]
  layout: Callable[[TransformerConfig], Layout]
  write: Callable[[TransformerConfig], dict[str, Any] | None]

  def rename(self, names) -> dict[str, str]:
    """Name in the layout -> name in the files, without buffers."""
    names = [name for name in names if not BUFFERS.search(name)]
    if any(name.startswith(self.base) for name in names):
      return {name: name for name in names}
    return {
      name if name.startswith('lm_head.') else self.base + name: name
      for name in names
    }


def head(config: TransformerConfig) -> Layout:
  """The LM head's, if it is no embedding."""
  if config.tied_embeddings:
    return {}
  return {'head': layouts.one('vd', 'lm_head.weight', 'v d')}


def projections(
  config: TransformerConfig, theirs: str, out: str = 'o_proj'
) -> Layout:
  """An attention's, of matrices [outputs, inputs] of their own."""
  kv = [f'{theirs}k_proj', f'{theirs}v_proj']
  layout = {
    'q': layouts.one('hkd', f'{theirs}q_proj.weight', 'hk d'),
    'kv': layouts.stack('cgkd', [f'{n}.weight' for n in kv], 'gk d'),
    'o': layouts.one('dhk', f'{theirs}{out}.weight', 'd hk'),
  }
  if config.biases != 'none':
    layout['q_bias'] = layouts.one('hk', f'{theirs}q_proj.bias', 'hk')
    layout['kv_bias'] = layouts.stack('cgk', [f'{n}.bias' for n in kv], 'gk')
  if config.biases in ('attention', 'all'):
    layout['o_bias'] = layouts.one('d', f'{theirs}{out}.bias', 'd')
  return layout
