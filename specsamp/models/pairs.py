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

PAIRS = {
  # Seed 003, multi-candidate decoding: Yang et al. 2401.06706.
  'llama-13b+llama-68m': Pair(
    presets.llama_13b(), presets.llama_68m(), 'v5e:2x2'
  ),
  'llama-13b+llama-160m': Pair(
    presets.llama_13b(), presets.llama_160m(), 'v5e:2x2'
  ),
  'llama-33b+llama-68m': Pair(
    presets.llama_33b(), presets.llama_68m(), 'v6e:2x2'
  ),
  'llama-33b+llama-160m': Pair(
    presets.llama_33b(), presets.llama_160m(), 'v6e:2x2'
  ),
  'vicuna-7b+vicuna-68m': Pair(
    presets.llama_7b(), presets.llama_68m(), 'v5e:2x2'
  ),
  'vicuna-13b+vicuna-68m': Pair(
    presets.llama_13b(), presets.llama_68m(), 'v5e:2x2'
  ),
  'vicuna-33b+vicuna-68m': Pair(
    presets.llama_33b(), presets.llama_68m(), 'v6e:2x2'
  ),
  'opt-13b+opt-125m': Pair(presets.opt_13b(), presets.opt_125m(), 'v5e:2x2'),
  'opt-30b+opt-125m': Pair(presets.opt_30b(), presets.opt_125m(), 'v6e:2x2'),
  # Seed 002, ParallelSpec: Xiao et al. 2410.05589.
  'llama-2-7b+llama-68m': Pair(_LLAMA2_7B, presets.llama_68m(), 'v5e:2x2'),
  'llama-2-13b+llama-68m': Pair(_LLAMA2_13B, presets.llama_68m(), 'v5e:2x2'),
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
