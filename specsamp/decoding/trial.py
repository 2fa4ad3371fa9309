"""The trial of a trained drafter: its acceptance on completions of a target."""

import collections
import functools
from typing import NamedTuple

from specsamp.decoding.generate import generate
from specsamp.drafting import DraftModule, trained_drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

# Texts, with their drawn and their greedy tokens.
_ROWS, _DRAWN, _TRIED = 4, 8, 32


class Trial(NamedTuple):
  """Outcome of a trial.

  Attributes:
    acceptance: share of the drafted tokens that were accepted, in [0, 1].
    chance: share that would be accepted if one token was always drafted, in
      hindsight the most frequent one.
  """

  acceptance: float
  chance: float


def run(trained: DraftModule, target: LanguageModel) -> Trial | None:
  """Returns how often a target accepts a drafter's most probable tokens.

  The target draws four beginnings with fixed seeds and continues them greedily,
  while the drafter drafts one token at a time. So the same weights have the
  same outcome, up to near ties. It is None if the target has too few positions.

  Raises:
    UserError: see `trained_drafter`.
  """
  length = min(_TRIED, target.config.max_length - _DRAWN - 4)
  if length < 1:
    return None
  complete = functools.partial(
    generate,
    target,
    drafter=trained_drafter(trained, target, 1, 'deterministic'),
    verifier='naive',
    stop_tokens=[],
  )
  # More tokens than are kept, so that one program serves both calls.
  first = [max(target.tokenizer.bos_id, 0)]
  drawn = complete([first] * _ROWS, max_new_tokens=_DRAWN + length).tokens
  out = complete(
    [first + text[:_DRAWN] for text in drawn],
    sampling=SamplingParams(temperature=0.0),
    max_new_tokens=length,
  )
  counts = collections.Counter(token for text in out.tokens for token in text)
  chance = max(counts.values()) / sum(counts.values())
  return Trial(out.acceptance_rate, chance)
