"""The published models of `pairs.PAIRS`: where they are, and whose terms hold.

The weights are their authors'; this package has none of them.
"""

import pathlib
import shlex
from typing import NamedTuple

FOLDER = 'MODELS'  # where configs look for a model of a pair, by its name


class PublishedModel(NamedTuple):
  """A repository of the Hugging Face hub.

  Attributes:
    repository: `org/name`.
    billions: of parameters.
    licence: what its authors named; terms of the hub's page go before it.
    use: the papers that decode it, and as what.
    is_gated: whether its terms must be accepted on the hub first.
  """

  repository: str
  billions: float
  licence: str
  use: str
  is_gated: bool = False


_SEE = 'see its page'
_LLAMA1 = 'LLaMA, non-commercial'
_LLAMA2, _LLAMA3, _LLAMA31, _LLAMA32 = (
  f'Llama {version} Community' for version in ('2', '3', '3.1', '3.2')
)
_MCSD, _PARALLEL = '2401.06706', '2410.05589'
_BOTH = f'{_MCSD}, {_PARALLEL}'
_POST = 'the post on Llama 3.1'

MODELS = {
  # Meta gives LLaMA 1 to who applies; these are others' copies of it.
  'llama-13b': PublishedModel(
    'huggyllama/llama-13b', 13.0, _LLAMA1, f'target of {_MCSD}'
  ),
  'llama-33b': PublishedModel(
    'huggyllama/llama-30b', 32.5, _LLAMA1, f'target of {_MCSD}'
  ),
  'llama-68m': PublishedModel(
    'JackFram/llama-68m', 0.068, _SEE, f'draft of {_BOTH}'
  ),
  'llama-160m': PublishedModel(
    'JackFram/llama-160m', 0.162, _SEE, f'draft of {_MCSD}'
  ),
  'vicuna-7b': PublishedModel(
    'lmsys/vicuna-7b-v1.3', 6.7, _SEE, f'target of {_PARALLEL}'
  ),
  'vicuna-13b': PublishedModel(
    'lmsys/vicuna-13b-v1.3', 13.0, _SEE, f'target of {_BOTH}'
  ),
  'vicuna-33b': PublishedModel(
    'lmsys/vicuna-33b-v1.3', 32.5, _SEE, f'target of {_MCSD}'
  ),
  'vicuna-68m': PublishedModel(
    'double7/vicuna-68m', 0.068, _SEE, f'draft of {_BOTH}'
  ),
  'vicuna-160m': PublishedModel(
    'double7/vicuna-160m', 0.162, _SEE, f'draft of {_MCSD}'
  ),
  'opt-13b': PublishedModel(
    'facebook/opt-13b', 12.9, _SEE, f'target of {_MCSD}'
  ),
  'opt-30b': PublishedModel(
    'facebook/opt-30b', 30.0, _SEE, f'target of {_MCSD}'
  ),
  'opt-iml-30b': PublishedModel(
    'facebook/opt-iml-30b', 30.0, _SEE, f'target of {_MCSD}'
  ),
  'opt-125m': PublishedModel(
    'facebook/opt-125m', 0.125, _SEE, f'draft of {_MCSD}'
  ),
  'llama-2-7b-chat': PublishedModel(
    'meta-llama/Llama-2-7b-chat-hf', 6.7, _LLAMA2, f'target of {_PARALLEL}',
    True,
  ),
  'llama-2-13b': PublishedModel(
    'meta-llama/Llama-2-13b-hf', 13.0, _LLAMA2, f'target of {_MCSD}', True
  ),
  'llama-2-13b-chat': PublishedModel(
    'meta-llama/Llama-2-13b-chat-hf', 13.0, _LLAMA2, f'target of {_BOTH}', True
  ),
  'llama-3-8b': PublishedModel(
    'meta-llama/Meta-Llama-3-8B-Instruct', 8.03, _LLAMA3,
    f'target of {_PARALLEL}', True,
  ),
  'llama-3.1-70b': PublishedModel(
    'meta-llama/Llama-3.1-70B-Instruct', 70.6, _LLAMA31, f'target of {_POST}',
    True,
  ),
  'llama-3.1-8b': PublishedModel(
    'meta-llama/Llama-3.1-8B-Instruct', 8.03, _LLAMA31,
    f'target and draft of {_POST}', True,
  ),
  'llama-3.2-1b': PublishedModel(
    'meta-llama/Llama-3.2-1B-Instruct', 1.24, _LLAMA32,
    'draft of Llama 3 and 3.1', True,
  ),
}  # fmt: skip
# Chinchilla's shapes are in `pairs.PAIRS` too, but its weights nowhere.
NEVER_PUBLISHED = ('chinchilla-70b', 'chinchilla-4b')


def command(path) -> str:
  """What fetches the model that a folder is named after; '' for another."""
  path = pathlib.Path(path)
  if path.name not in MODELS:
    return ''
  command, parent = f'specsamp fetch {path.name}', str(path.parent)
  return (
    command if parent == FOLDER else f'{command} --to={shlex.quote(parent)}'
  )
