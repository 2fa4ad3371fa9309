"""Repositories and licences of the published models of `evaluation.pairs`."""

import pathlib
import shlex
from typing import NamedTuple

FOLDER = 'MODELS'  # where configs look for a model of a pair, by its name


class PublishedModel(NamedTuple):
  """A repository of the Hugging Face hub.

  Attributes:
    repository: `org/name`.
    billions: number of parameters.
    licence: licence named by the authors; the terms on the hub's page prevail.
    use: the papers that decode it, as target or draft.
  """

  repository: str
  billions: float
  licence: str
  use: str

  @property
  def is_gated(self) -> bool:
    """True if the model's terms must be accepted on the hub first."""
    return self.repository.startswith(('meta-llama/', 'google/gemma-'))


_SEE = 'see its page'
_LLAMA1 = 'LLaMA, non-commercial'
_LLAMA2, _LLAMA3, _LLAMA31, _LLAMA32 = (
  f'Llama {version} Community' for version in ('2', '3', '3.1', '3.2')
)
_MCSD, _PARALLEL = '2401.06706', '2410.05589'
_BOTH = f'{_MCSD}, {_PARALLEL}'
_POST = 'the post on Llama 3.1'
_ROWS = (
  # Meta gives LLaMA 1 to applicants; these are copies by others.
  ('llama-13b', 'huggyllama/llama-13b', 13.0, _LLAMA1, f'target of {_MCSD}'),
  ('llama-33b', 'huggyllama/llama-30b', 32.5, _LLAMA1, f'target of {_MCSD}'),
  ('llama-68m', 'JackFram/llama-68m', 0.068, _SEE, f'draft of {_BOTH}'),
  ('llama-160m', 'JackFram/llama-160m', 0.162, _SEE, f'draft of {_MCSD}'),
  ('vicuna-7b', 'lmsys/vicuna-7b-v1.3', 6.7, _SEE, f'target of {_PARALLEL}'),
  ('vicuna-13b', 'lmsys/vicuna-13b-v1.3', 13.0, _SEE, f'target of {_BOTH}'),
  ('vicuna-33b', 'lmsys/vicuna-33b-v1.3', 32.5, _SEE, f'target of {_MCSD}'),
  ('vicuna-68m', 'double7/vicuna-68m', 0.068, _SEE, f'draft of {_BOTH}'),
  ('vicuna-160m', 'double7/vicuna-160m', 0.162, _SEE, f'draft of {_MCSD}'),
  ('opt-13b', 'facebook/opt-13b', 12.9, _SEE, f'target of {_MCSD}'),
  ('opt-30b', 'facebook/opt-30b', 30.0, _SEE, f'target of {_MCSD}'),
  ('opt-iml-30b', 'facebook/opt-iml-30b', 30.0, _SEE, f'target of {_MCSD}'),
  ('opt-125m', 'facebook/opt-125m', 0.125, _SEE, f'draft of {_MCSD}'),
  ('llama-2-7b-chat', 'meta-llama/Llama-2-7b-chat-hf', 6.7, _LLAMA2,
   f'target of {_PARALLEL}'),
  ('llama-2-13b', 'meta-llama/Llama-2-13b-hf', 13.0, _LLAMA2,
   f'target of {_MCSD}'),
  ('llama-2-13b-chat', 'meta-llama/Llama-2-13b-chat-hf', 13.0, _LLAMA2,
   f'target of {_BOTH}'),
  ('llama-3-8b', 'meta-llama/Meta-Llama-3-8B-Instruct', 8.03, _LLAMA3,
   f'target of {_PARALLEL}'),
  ('llama-3.1-70b', 'meta-llama/Llama-3.1-70B-Instruct', 70.6, _LLAMA31,
   f'target of {_POST}'),
  ('llama-3.1-8b', 'meta-llama/Llama-3.1-8B-Instruct', 8.03, _LLAMA31,
   f'target and draft of {_POST}'),
  ('llama-3.2-1b', 'meta-llama/Llama-3.2-1B-Instruct', 1.24, _LLAMA32,
   'draft of Llama 3 and 3.1'),
  ('gemma-3-27b-it', 'google/gemma-3-27b-it', 27.0, 'Gemma',
   'target of Gemma 3 1B'),
  ('gemma-3-1b-it', 'google/gemma-3-1b-it', 1.0, 'Gemma', 'draft of Gemma 3'),
  ('qwen3-8b', 'Qwen/Qwen3-8B', 8.19, 'Apache-2.0', 'target of Qwen3 0.6B'),
  ('qwen3-30b-a3b', 'Qwen/Qwen3-30B-A3B', 30.5, 'Apache-2.0',
   'target of Qwen3 0.6B'),
  ('qwen2.5-coder-1.5b', 'Qwen/Qwen2.5-Coder-1.5B-Instruct', 1.54,
   'Apache-2.0', 'target of its 0.5B'),
  ('qwen2.5-coder-0.5b', 'Qwen/Qwen2.5-Coder-0.5B-Instruct', 0.494,
   'Apache-2.0', 'draft of its 1.5B'),
  ('smollm2-135m', 'HuggingFaceTB/SmolLM2-135M-Instruct', 0.135, 'Apache-2.0',
   'target of drafters that this project trains'),
  ('qwen3-0.6b', 'Qwen/Qwen3-0.6B', 0.596, 'Apache-2.0', 'draft of Qwen3'),
)  # fmt: skip
MODELS = {name: PublishedModel(*values) for name, *values in _ROWS}
# `pairs.PAIRS` has Chinchilla's shapes too, but its weights are not public.
NEVER_PUBLISHED = ('chinchilla-70b', 'chinchilla-4b')


def command(path) -> str:
  """Returns the command that fetches the model which a path names, or ''."""
  path = pathlib.Path(path)
  if path.name not in MODELS:
    return ''
  parent = str(path.parent)
  to = '' if parent == FOLDER else f' --to={shlex.quote(parent)}'
  return f'specsamp fetch {path.name}{to}'
