"""Drafters in published formats.

Medusa, EAGLE, EAGLE-3, P-EAGLE, DFlash and the speculators library: a folder
with a config.json and safetensors. No format names the weights of the target
that the drafter was trained for.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import (
  dflash,
  eagle,
  eagle3,
  keys,
  medusa,
  speculators,
)
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig

_LLAMA = 'LlamaForCausalLM'
_EAGLE = (_LLAMA, 'LlamaForCausalLMEagle', 'EagleLlamaForCausalLM')
_EAGLE3 = ('LlamaForCausalLMEagle3', 'Eagle3LlamaForCausalLM')
_ALL = (*_EAGLE, *_EAGLE3, dflash.ARCHITECTURE)


def reader(
  values: dict[str, Any],
) -> Callable[[pathlib.Path], DraftModule] | None:
  """Returns the reader of a folder with this config.json, or None.

  Medusa's config (Cai et al. 2401.10774) has a number of heads. EAGLE's (Li et
  al. 2401.15077) and EAGLE-3's (2503.01840) describe a LLaMA of one layer, the
  latter with a draft vocabulary. DFlash's describes layers of Qwen3.

  Raises:
    UserError: the architecture, the number of layers, a key or a value is not
      supported, or a value is ambiguous.
    KeyError: a value is missing.
  """
  if 'drafter' in values:
    return None
  if speculators.KEY in values:
    return speculators.reader(values)
  if 'medusa_num_heads' in values:
    return medusa.reader(values)
  if 'architectures' not in values:
    return None
  names = values['architectures']
  name = names[0] if len(names) == 1 else names
  check_name('architecture', name, _ALL)
  if name == dflash.ARCHITECTURE:
    return dflash.reader(values)
  config = llama.read(values | {'model_type': 'llama'})
  is_parallel = keys.flag(values, 'parallel_drafting')
  if config.num_layers != 1 and not is_parallel:
    raise UserError(
      f'num_hidden_layers: got {config.num_layers}, expected the 1 of a drafter'
    )
  if name == _LLAMA and 'draft_vocab_size' not in values or name in _EAGLE[1:]:
    return eagle.reader(values, config)
  fields = eagle3.fields_of(values)
  if is_parallel:
    fields['mask_token'] = _mask_token(values, config)
  draft_vocab = config.vocab_size
  if values.get('draft_vocab_size') is not None:
    draft_vocab = keys.count(values, 'draft_vocab_size')
  return functools.partial(eagle3.read, config, draft_vocab, fields)


def _mask_token(values: dict[str, Any], config: TransformerConfig) -> int:
  """Returns P-EAGLE's mask token, which has two names in config.json."""
  names = ('pard_token', 'ptd_token_id')
  tokens = [
    keys.token(values, name, config.vocab_size)
    for name in names
    if values.get(name) is not None
  ]
  if len(set(tokens)) != 1:
    raise UserError(f'{", ".join(names)}: got {tokens}, expected one token')
  return tokens[0]
