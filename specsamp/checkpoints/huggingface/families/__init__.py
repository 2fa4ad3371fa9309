"""Architectures of transformers that are read and written, one per file.

The module of an architecture has `BASE`, the prefix of all tensors but the LM
head's; `read`, values of a config.json -> config; `layout`, config -> layout;
and `write`, config -> the config.json that computes it, or None if the
architecture cannot.
"""

from types import ModuleType
from typing import Any

from specsamp.checkpoints.huggingface.families import gpt2, llama, opt
from specsamp.errors import UserError, check_name
from specsamp.models import TransformerConfig

# The architecture's name in config.json -> (model_type there, module).
FAMILIES = {
  'LlamaForCausalLM': ('llama', llama),
  'LLaMAForCausalLM': ('llama', llama),
  'MistralForCausalLM': ('mistral', llama),
  'Qwen2ForCausalLM': ('qwen2', llama),
  'Qwen3ForCausalLM': ('qwen3', llama),
  'OPTForCausalLM': ('opt', opt),
  'OPTModel': ('opt', opt),
  'GPT2LMHeadModel': ('gpt2', gpt2),
}


def of(values: dict[str, Any]) -> ModuleType:
  """Returns the module of a config.json's architecture, if it is supported."""
  name = (values.get('architectures') or [None])[0]
  check_name('architecture', name, sorted(FAMILIES))
  model_type, family = FAMILIES[name]
  if values.get('model_type') != model_type:
    raise UserError(
      f'model_type: got {values.get("model_type")!r}, expected {model_type!r} '
      f'of a {name}'
    )
  return family


def write(config: TransformerConfig) -> dict[str, Any]:
  """Returns the config.json of the architecture that computes a config.

  Raises:
    UserError: no architecture computes the config.
  """
  for family in (llama, opt, gpt2):
    values = family.write(config)
    if values is not None:
      return values | dict(
        vocab_size=config.num_tokens,
        tie_word_embeddings=config.tied_embeddings,
      )
  raise UserError(
    f'export: no architecture of transformers has {config.norm} norms, '
    f'{config.positions} positions, biases {config.biases!r}, gated MLPs: '
    f'{config.gated}, norms of queries and keys: {config.qk_norm} and '
    f'{config.num_heads} heads of {config.head_dim} at a width of '
    f'{config.width}'
  )
