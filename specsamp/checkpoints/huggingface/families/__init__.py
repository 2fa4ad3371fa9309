"""Architectures of transformers that are read and written, one per file."""

from typing import Any

from specsamp.checkpoints.huggingface.families import gpt2, llama, opt
from specsamp.checkpoints.huggingface.families.family import Family
from specsamp.errors import UserError, describe_unknown
from specsamp.models import TransformerConfig


def _llama(model_type: str) -> Family:
  return Family(model_type, 'model.', llama.read, llama.layout, llama.write)


_OPT = Family('opt', 'model.', opt.read, opt.layout, opt.write)
_GPT2 = Family('gpt2', 'transformer.', gpt2.read, gpt2.layout, gpt2.write)

# By the architecture's name in config.json.
FAMILIES = {
  'LlamaForCausalLM': _llama('llama'),
  'LLaMAForCausalLM': _llama('llama'),
  'MistralForCausalLM': _llama('mistral'),
  'Qwen2ForCausalLM': _llama('qwen2'),
  'Qwen3ForCausalLM': _llama('qwen3'),
  'OPTForCausalLM': _OPT,
  'OPTModel': _OPT,
  'GPT2LMHeadModel': _GPT2,
}


def of(values: dict[str, Any]) -> Family:
  """Returns the family of a config.json.

  Raises:
    UserError: the config names no architecture, or an unsupported one.
  """
  architectures = values.get('architectures')
  if not isinstance(architectures, list) or not architectures:
    raise UserError('names no architecture')
  family = FAMILIES.get(architectures[0])
  if family is None:
    names = sorted(FAMILIES)
    raise UserError(describe_unknown('architecture', architectures[0], names))
  if values.get('model_type') != family.model_type:
    raise UserError(
      f'model_type: got {values.get("model_type")!r}, expected '
      f'{family.model_type!r} of a {architectures[0]}'
    )
  return family


def write(config: TransformerConfig) -> dict[str, Any]:
  """Returns the config.json of the architecture that computes a config.

  Raises:
    UserError: no architecture does.
  """
  for family in FAMILIES.values():
    values = family.write(config)
    if values is not None:
      return values | dict(
        vocab_size=config.num_tokens,
        tie_word_embeddings=config.tied_embeddings,
      )
  raise UserError(
    'export: no architecture of transformers has '
    f'{config.norm} norms, {config.positions} positions, '
    f'{"a" if config.gated else "no"} gated MLP, biases '
    f'{config.biases!r}, {config.num_heads} heads of {config.head_dim} and '
    f'{config.num_kv_heads} of keys at a width of {config.width}'
  )
