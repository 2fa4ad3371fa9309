"""Folders of the speculators library, which vLLM serves as they are.

Their taps are inputs of layers, a second reading of which some converted heads
have: what begins with layer 1 or the embedding is refused.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from specsamp.checkpoints.huggingface.families import llama
from specsamp.checkpoints.huggingface.heads import eagle3, folder
from specsamp.drafting.features import DraftModule
from specsamp.errors import UserError, check_name

KEY = 'speculators_model_type'


def reader(values: dict[str, Any]) -> Callable[[pathlib.Path], DraftModule]:
  """What reads the folder of this config.json.

  Raises:
    UserError: another kind of drafter, or values that are not computed here or
      that two programs read in two ways.
    KeyError: a value is missing.
  """
  check_name(KEY, values[KEY], _READERS)
  layers = values['transformer_layer_config']
  if not isinstance(layers, dict):
    raise UserError(
      f'transformer_layer_config: got {layers!r}, expected its keys'
    )
  # Without one it is of Qwen3 for speculators and of LLaMA for vLLM.
  check_name('model_type', layers.get('model_type'), ('llama', 'qwen3'))
  return _READERS[values[KEY]](values, llama.read(layers))


def _eagle3(values, config):
  # Where it is left out, vLLM takes true for it and speculators false.
  if 'norm_before_residual' not in values:
    raise UserError('no norm_before_residual, expected true or false')
  fields = eagle3.common_fields(values | {'hidden_size': config.width})
  ids, taps = values.get(eagle3.IDS), None
  if ids:
    eagle3.check_ids(eagle3.IDS, ids, 2)
    taps = tuple(ids)
  draft_vocab = folder.count(values, 'draft_vocab_size')
  return functools.partial(
    eagle3.read, config, draft_vocab, fields | {'taps': taps}
  )


_READERS = {'eagle3': _eagle3}
