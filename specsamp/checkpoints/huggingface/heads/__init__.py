"""Drafters in the formats of those who published them.

Medusa's, EAGLE's, EAGLE-3's, P-EAGLE's and DFlash's, each a folder with a
config.json and safetensors, and those of the speculators library. None tells
which weights of the target it was trained for; the names of the tensors are the
authors'.
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
  folder,
  keys,
  medusa,
  speculators,
)
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, describe_unknown
from specsamp.models import TransformerConfig

_LLAMA = 'LlamaForCausalLM'
_EAGLE = (_LLAMA, 'LlamaForCausalLMEagle', 'EagleLlamaForCausalLM')
_EAGLE3 = ('LlamaForCausalLMEagle3', 'Eagle3LlamaForCausalLM')
_ALL = (*_EAGLE, *_EAGLE3, dflash.ARCHITECTURE)


def reader(values: Any) -> Callable[[pathlib.Path], DraftModule] | None:
  """What reads the folder of this config.json; None if it is no such folder.

  Medusa's (Cai et al. 2401.10774) counts heads, EAGLE's (Li et al. 2401.15077)
  and EAGLE-3's (2503.01840) are those of a LLaMA of one layer; EAGLE-3's has a
  vocabulary of its own; DFlash's are layers of Qwen3.

  Raises:
    UserError: another architecture, more layers than one, keys that are not
      understood, values under which something else is computed, or that may
      mean two things.
    KeyError: a value is missing.
  """
  if not isinstance(values, dict) or 'drafter' in values:
    return None
  if speculators.KEY in values:
    return speculators.reader(values)
  if 'medusa_num_heads' in values:
    keys.check(values, medusa.KEYS)
    return functools.partial(
      medusa.read,
      folder.count(values, 'medusa_num_heads'),
      folder.count(values, 'medusa_num_layers'),
    )
  if 'architectures' not in values:
    return None
  name, *others = values['architectures'] or ['none']
  if others or name not in _ALL:
    raise UserError(describe_unknown('architecture', name, _ALL))
  if name == dflash.ARCHITECTURE:
    return dflash.reader(values)
  config = llama.read(values | {'model_type': 'llama'})
  is_parallel = folder.flag(values, 'parallel_drafting')
  if config.num_layers != 1 and not is_parallel:
    raise UserError(
      f'num_hidden_layers: got {config.num_layers}, expected the 1 of a drafter'
    )
  if name == _LLAMA and 'draft_vocab_size' not in values or name in _EAGLE[1:]:
    # Some files name the size of the vocabulary twice.
    only = eagle.FIXED | {'draft_vocab_size': config.vocab_size}
    keys.check_layers(values, eagle.KEYS, only)
    return functools.partial(
      eagle.read, config, folder.flag(values, 'bias', True)
    )
  draft_vocab = config.vocab_size
  if values.get('draft_vocab_size') is not None:
    draft_vocab = folder.count(values, 'draft_vocab_size')
  fields = eagle3.fields_of(values)
  if is_parallel:
    fields['mask_token'] = _mask_token(values, config)
  return functools.partial(eagle3.read, config, draft_vocab, fields)


def _mask_token(values: dict[str, Any], config: TransformerConfig) -> int:
  """P-EAGLE's, by either of its names; `UserError` where they differ."""
  names = 'pard_token', 'ptd_token_id'
  given = [
    folder.token(values, key, config)
    for key in names
    if values.get(key) is not None
  ]
  if len(set(given)) != 1:
    raise UserError(f'{", ".join(names)}: got {given}, expected one token')
  return given[0]
