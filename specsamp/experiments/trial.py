"""Tries a trained drafter on short texts when its folder is loaded.

The folder of a published drafter names no weights that the drafter was trained
for, and no shape betrays that it reads the wrong layers of a target. A drafter
that was trained here may have learned too little. No text is wrong then, but
nothing is accepted, and without a warning nobody knows why decoding is slow.
"""

import collections
import functools

from absl import logging

from specsamp.decoding.generate import generate
from specsamp.drafting import DraftModule, trained_drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_ROWS, _DRAWN, _TOKENS = 4, 8, 32


def warn_if_chance(
  name: str, trained: DraftModule, target: LanguageModel
) -> None:
  """Warns if a drafter drafts for this target no better than by chance.

  It drafts a token at a time, the most probable one, while the target goes on
  greedily with four beginnings that it has drawn itself. Of the embedded pair's
  drafters 0.54 (Medusa) to 0.90 (EAGLE in parallel) is accepted then, and 0.00
  where the inputs of EAGLE's layer have changed places; the most frequent token
  has 0.1 to 0.2 of such a text. At temperature 1 it would be 0.11 to 0.23.

  Args:
    name: name of the drafter, for the log.
    trained: its module and parameters.
    target: the model that it drafts for.

  Raises:
    UserError: it was trained here, for another target.
  """
  length = min(_TOKENS, target.config.max_length - _DRAWN - 4)
  if length < 1:
    return
  go_on = functools.partial(
    generate,
    target,
    drafter=trained_drafter(trained, target, 1, 'deterministic'),
    verifier='naive',
    stop_tokens=[],
  )
  # More than is kept of it: so both are made by one program.
  first = [max(target.tokenizer.bos_id, 0)]
  drawn = go_on([first] * _ROWS, max_new_tokens=_DRAWN + length).tokens
  out = go_on(
    [first + text[:_DRAWN] for text in drawn],
    sampling=SamplingParams(temperature=0.0),
    max_new_tokens=length,
  )
  commonest = share_of_commonest(out.tokens)
  if is_chance(out.acceptance_rate, commonest):
    if trained.target:  # the fingerprint of these weights
      cause = 'trained too little, or on texts unlike those of this target'
    else:
      cause = (
        'trained for other weights, or reads other layers of them than it '
        'should'
      )
    logging.warning(
      'drafter %s: %.2f of the tokens that it drafts for this target are '
      'accepted, and %.2f would be if it always drafted the same token: it was '
      '%s',
      name,
      out.acceptance_rate,
      commonest,
      cause,
    )


def is_chance(acceptance: float, commonest: float) -> bool:
  """Whether an acceptance rate is one that takes no knowledge of the text.

  The best that drafts without looking at it always drafts one token, and in
  hindsight the most frequent one: its share of the text is what chance may
  reach. In a text of one token everything is accepted, which tells nothing.

  Args:
    acceptance: accepted over drafted tokens.
    commonest: share of the most frequent token of the text.
  """
  return acceptance <= commonest and acceptance < 1


def share_of_commonest(texts: list[list[int]]) -> float:
  """The share of the most frequent token of all texts, in [0, 1]."""
  counts = collections.Counter(token for text in texts for token in text)
  return max(counts.values()) / sum(counts.values())
