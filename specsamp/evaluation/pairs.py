"""Published pairs of a target and a draft, by name."""

import dataclasses
from typing import NamedTuple

from specsamp.models import presets
from specsamp.models.config import TransformerConfig


class Pair(NamedTuple):
  """Shapes of a target and of a draft with its tokenizer.

  `topology` is the smallest TPU slice of at least four chips that holds both in
  16 bits. All chips split every layer, so that the heads of both models must be
  divisible by their number, or fewer than it. A pair that four chips cannot
  split has a single GPU.
  """

  target: TransformerConfig
  draft: TransformerConfig
  topology: str


def folders(name: str) -> tuple[str, str]:
  """Returns the folder names of a target and a draft: a and b for 'a+b'."""
  target, _, draft = name.partition('+')
  return target, draft


_LLAMA2_7B = presets.llama2(presets.llama_7b())
_LLAMA2_13B = presets.llama2(presets.llama_13b())

# Drafts with LLaMA's vocabulary. Those of Vicuna are fine-tuned LLaMA drafts.
_SMALL = {
  'llama-68m': presets.llama_68m(),
  'vicuna-68m': presets.llama_68m(),
  'llama-160m': presets.llama_160m(),
  'vicuna-160m': presets.llama_160m(),
}


def _small(
  target: str, shape: TransformerConfig, topology: str, *drafts: str
) -> dict[str, Pair]:
  """Returns the pairs of a target with these drafts, or with all small ones."""
  return {
    f'{target}+{draft}': Pair(shape, _SMALL[draft], topology)
    for draft in drafts or _SMALL
  }


# Chat models for which `configs/distill_chat.py` trains all drafters.
TARGETS = {'smollm2-135m': presets.smollm2_135m()}
PAIRS = {
  # Multi-candidate decoding: Yang et al. 2401.06706.
  **_small('llama-13b', presets.llama_13b(), 'v5e:2x2'),
  **_small(
    'llama-33b', presets.llama_33b(), 'v6e:2x2', 'llama-68m', 'llama-160m'
  ),
  **_small('vicuna-13b', presets.llama_13b(), 'v5e:2x2'),
  **_small(
    'vicuna-33b', presets.llama_33b(), 'v6e:2x2', 'llama-68m', 'llama-160m',
    'vicuna-68m',
  ),
  **_small('llama-2-13b', _LLAMA2_13B, 'v5e:2x2'),
  **_small('llama-2-13b-chat', _LLAMA2_13B, 'v5e:2x2'),
  'opt-13b+opt-125m': Pair(presets.opt_13b(), presets.opt_125m(), 'v5e:2x2'),
  'opt-30b+opt-125m': Pair(presets.opt_30b(), presets.opt_125m(), 'v6e:2x2'),
  'opt-iml-30b+opt-125m': Pair(
    presets.opt_30b(), presets.opt_125m(), 'v6e:2x2'
  ),
  # ParallelSpec: Xiao et al. 2410.05589, which also decodes the 13B targets of
  # Vicuna and Llama 2 Chat. Its only draft for Llama 3 is EAGLE; the smallest
  # model with that vocabulary belongs to Llama 3.2.
  **_small('vicuna-7b', presets.llama_7b(), 'v5e:2x2', 'vicuna-68m'),
  **_small('llama-2-7b-chat', _LLAMA2_7B, 'v5e:2x2', 'llama-68m'),
  'llama-3-8b+llama-3.2-1b': Pair(
    presets.llama3_8b(), presets.llama32_1b(), 'v5e:2x2'
  ),
  # Llama 3.1.
  'llama-3.1-70b+llama-3.1-8b': Pair(
    presets.llama31_70b(), presets.llama31_8b(), 'v5p:2x2x1'
  ),
  'llama-3.1-8b+llama-3.2-1b': Pair(
    presets.llama31_8b(), presets.llama32_1b(), 'v5e:2x2'
  ),
  # Gemma 3 and Qwen3. Rows of the draft's embedding are padded to the target's.
  'gemma-3-27b-it+gemma-3-1b-it': Pair(
    presets.gemma3_27b(),
    dataclasses.replace(presets.gemma3_1b(), vocab_size=262_208, padding=64),
    'v5e:2x2',
  ),
  'qwen3-8b+qwen3-0.6b': Pair(
    presets.qwen3_8b(), presets.qwen3_0_6b(), 'v5e:2x2'
  ),
  'qwen3-30b-a3b+qwen3-0.6b': Pair(
    presets.qwen3_30b_a3b(), presets.qwen3_0_6b(), 'v6e:2x2'
  ),
  # The draft has 14 heads.
  'qwen2.5-coder-1.5b+qwen2.5-coder-0.5b': Pair(
    presets.qwen25_coder_1_5b(), presets.qwen25_coder_0_5b(), 'h100:1'
  ),
  # Chen et al. 2302.01318, who published no weights.
  'chinchilla-70b+chinchilla-4b': Pair(
    presets.chinchilla_70b(), presets.chinchilla_draft_4b(), 'v4:2x2x4'
  ),
}  # fmt: skip
