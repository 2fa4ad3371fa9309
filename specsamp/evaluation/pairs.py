"""Published targets and drafts that belong together, by name."""

from typing import NamedTuple

from specsamp.models import presets
from specsamp.models.config import TransformerConfig


class Pair(NamedTuple):
  """A target and a draft with its tokenizer.

  Attributes:
    target: shape.
    draft: shape.
    topology: the smallest TPU slice, of four chips or more, that holds both in
      16 bits; all of its chips split every layer, so the heads of both divide
      by their number.
  """

  target: TransformerConfig
  draft: TransformerConfig
  topology: str


def folders(name: str) -> tuple[str, str]:
  """Of the target and the draft: those of 'a+b' are called a and b."""
  target, _, draft = name.partition('+')
  return target, draft


_LLAMA2_7B = presets.llama2(presets.llama_7b())
_LLAMA2_13B = presets.llama2(presets.llama_13b())

# Drafts of LLaMA's vocabulary: Vicuna's are LLaMA's, fine-tuned.
_SMALL = {
  'llama-68m': presets.llama_68m(),
  'vicuna-68m': presets.llama_68m(),
  'llama-160m': presets.llama_160m(),
  'vicuna-160m': presets.llama_160m(),
}


def _small(
  target: str, shape: TransformerConfig, topology: str, *drafts: str
) -> dict[str, Pair]:
  """A target with these drafts, or with all of `_SMALL`."""
  return {
    f'{target}+{draft}': Pair(shape, _SMALL[draft], topology)
    for draft in drafts or _SMALL
  }


PAIRS = {
  # Seed 003, multi-candidate decoding: Yang et al. 2401.06706.
  **_small('llama-13b', presets.llama_13b(), 'v5e:2x2'),
  **_small(
    'llama-33b', presets.llama_33b(), 'v6e:2x2', 'llama-68m', 'llama-160m'
  ),
  **_small('vicuna-13b', presets.llama_13b(), 'v5e:2x2'),
  **_small(
    'vicuna-33b',
    presets.llama_33b(),
    'v6e:2x2',
    'llama-68m',
    'llama-160m',
    'vicuna-68m',
  ),
  **_small('llama-2-13b', _LLAMA2_13B, 'v5e:2x2'),
  **_small('llama-2-13b-chat', _LLAMA2_13B, 'v5e:2x2'),
  'opt-13b+opt-125m': Pair(presets.opt_13b(), presets.opt_125m(), 'v5e:2x2'),
  'opt-30b+opt-125m': Pair(presets.opt_30b(), presets.opt_125m(), 'v6e:2x2'),
  'opt-iml-30b+opt-125m': Pair(
    presets.opt_30b(), presets.opt_125m(), 'v6e:2x2'
  ),
  # Seed 002, ParallelSpec: Xiao et al. 2410.05589, which decodes the 13B
  # targets of Vicuna and of Llama 2's chat too. It drafts for Llama 3 by EAGLE
  # alone; the smallest model of its vocabulary is of Llama 3.2.
  **_small('vicuna-7b', presets.llama_7b(), 'v5e:2x2', 'vicuna-68m'),
  **_small('llama-2-7b-chat', _LLAMA2_7B, 'v5e:2x2', 'llama-68m'),
  'llama-3-8b+llama-3.2-1b': Pair(
    presets.llama3_8b(), presets.llama32_1b(), 'v5e:2x2'
  ),
  # Seed 004.
  'llama-3.1-70b+llama-3.1-8b': Pair(
    presets.llama31_70b(), presets.llama31_8b(), 'v5p:2x2x1'
  ),
  'llama-3.1-8b+llama-3.2-1b': Pair(
    presets.llama31_8b(), presets.llama32_1b(), 'v5e:2x2'
  ),
  # Seed 001, Chen et al. 2302.01318; no weights of it were published.
  'chinchilla-70b+chinchilla-4b': Pair(
    presets.chinchilla_70b(), presets.chinchilla_draft_4b(), 'v4:2x2x4'
  ),
}
