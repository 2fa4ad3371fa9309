"""Architectures of transformers that are read and written, one per file.

The module of an architecture has `BASE`, the prefix of all tensors but the LM
head's; `read`, values of a config.json -> config; `layout`, config -> layout;
and `write`, config and model_type -> the keys of a config.json. `write` may
return keys of another function than the config's: they are read again, and
count only if that gives the config.
"""

import dataclasses
from types import ModuleType
from typing import Any

from specsamp.checkpoints.huggingface import config_keys
from specsamp.checkpoints.huggingface.families import (
  gemma,
  glm4,
  gpt2,
  llama,
  moe,
  opt,
  phi3,
)
from specsamp.checkpoints.tensor_files import Stored
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig

# The architecture's name in config.json -> (model_type there, module). A model
# is written as the first one that computes it.
FAMILIES = {
  'LlamaForCausalLM': ('llama', llama),
  'LLaMAForCausalLM': ('llama', llama),
  'MistralForCausalLM': ('mistral', llama),
  'Qwen2ForCausalLM': ('qwen2', llama),
  'Qwen3ForCausalLM': ('qwen3', llama),
  'Ministral3ForCausalLM': ('ministral3', llama),
  'MixtralForCausalLM': ('mixtral', moe),
  'Qwen3MoeForCausalLM': ('qwen3_moe', moe),
  'MiMoForCausalLM': ('mimo', llama),
  'Phi3ForCausalLM': ('phi3', phi3),
  'Glm4ForCausalLM': ('glm4', glm4),
  'Gemma2ForCausalLM': ('gemma2', gemma),
  'Gemma3ForCausalLM': ('gemma3_text', gemma),
  'OPTForCausalLM': ('opt', opt),
  'OPTModel': ('opt', opt),
  'GPT2LMHeadModel': ('gpt2', gpt2),
}
# Models of images and texts -> architectures of the text model, and keys that
# are about images.
_MULTIMODAL = {
  'Gemma3ForConditionalGeneration': (
    ('Gemma3ForCausalLM',),
    'mm_tokens_per_image boi_token_index eoi_token_index image_token_index',
  ),
  'Mistral3ForConditionalGeneration': (
    ('Ministral3ForCausalLM', 'MistralForCausalLM'),
    'image_token_index multimodal_projector_bias projector_hidden_act '
    'spatial_merge_size vision_feature_layer',
  ),
}
TEXT = 'text_config'
# Number of modules of multi-token prediction that a folder has.
MTP = 'num_nextn_predict_layers'
_MAX_MODULES = 64  # more are a mistake, and their tensors would be refused


def of(values: dict[str, Any]) -> ModuleType:
  """Returns the module of a config.json's architecture, if it is supported."""
  name = _name(values)
  check_name('architecture', name, sorted({*FAMILIES, *_MULTIMODAL}))
  model_type, family = FAMILIES[name]
  if values.get('model_type') != model_type:
    raise UserError(
      f'model_type: got {values.get("model_type")!r}, expected {model_type!r} '
      f'of a {name}'
    )
  return family


def text_config(values: dict[str, Any]) -> dict[str, Any]:
  """Returns the text model's part of a multimodal config.json, else all."""
  if _name(values) not in _MULTIMODAL:
    return values
  names, known = _MULTIMODAL[_name(values)]
  tied = 'tie_word_embeddings'
  config_keys.check(values, (TEXT, 'vision_config', tied, *known.split()))
  text = config_keys.nested(values, TEXT)
  kinds = {FAMILIES[name][0]: name for name in names}
  check_name(f'model_type of {TEXT}', text.get('model_type'), kinds)
  text = text | {'architectures': [kinds[text['model_type']]]}
  # The outer key decides in transformers, which writes its default, true, next
  # to a text model's false.
  return text if values.get(tied) is None else text | {tied: values[tied]}


def text_tensors(tensors: dict[str, Stored]) -> dict[str, Stored]:
  """Returns the text model's tensors of a multimodal model, by its names."""
  result = {}
  for name, stored in tensors.items():
    # As transformers writes them in memory, and in files.
    name = name.replace('model.language_model.', 'language_model.model.', 1)
    if name == 'lm_head.weight' or name.startswith('language_model.'):
      result[name.removeprefix('language_model.')] = stored
  return result


def mtp_prefixes(values: dict[str, Any], num_layers: int) -> tuple[str, ...]:
  """Returns prefixes of the tensors of each module of multi-token prediction.

  MiMo has the modules apart, DeepSeek-V3 after the model's layers.
  """
  count = 0 if values.get(MTP) is None else config_keys.count(values, MTP, 0)
  numbers = range(min(count, _MAX_MODULES))
  return tuple(
    prefix
    for i in numbers
    for prefix in (f'model.mtp_layers.{i}.', f'model.layers.{num_layers + i}.')
  )


def write(config: TransformerConfig) -> dict[str, Any]:
  """Returns the config.json of the architecture that computes a config.

  Raises:
    UserError: no architecture computes the config.
  """
  ours, misfits = _function(config), {}
  for name, (model_type, family) in FAMILIES.items():
    values = dict(
      architectures=[name],
      model_type=model_type,
      vocab_size=config.num_tokens,
      tie_word_embeddings=config.tied_embeddings,
    )
    values |= family.write(config, model_type)
    try:
      theirs = _function(family.read(values))
    except ValueError:  # such as heads that do not divide a width
      continue
    misfits[name] = [key for key in ours if ours[key] != theirs[key]]
    if not misfits[name]:
      return values
  name = min(misfits, key=lambda name: len(misfits[name]))
  fields = ', '.join(f'{key} {ours[key]!r}' for key in misfits[name])
  raise UserError(
    f'export: no architecture of transformers computes this model; that of a '
    f'{name} has no {fields}'
  )


def _name(values: dict[str, Any]) -> str | None:
  return (values.get('architectures') or [None])[0]


def _function(config: TransformerConfig) -> dict[str, Any]:
  """Returns the fields of a config, equal for configs of one function."""
  return dataclasses.asdict(config) | dict(
    vocab_size=config.num_tokens,
    padding=0,
    dtype='',
    query_scale=config.query_scale or config.head_dim**-0.5,
    windows=[config.window(i) for i in range(config.num_layers)],
    dense_layers=[i for i in config.dense_layers if i < config.num_layers],
  )
