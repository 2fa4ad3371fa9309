"""Tries a trained drafter on short texts when its folder is loaded.

The folder of a published drafter does not name the weights that the drafter was
trained for, and no shape reveals that it reads the wrong layers of a target. A
drafter that was trained here may have learned too little. The texts are still
right, but nothing is accepted, and without a warning decoding is only slow.
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
  """Warns if a drafter drafts for this target no better than chance.

  It drafts one token at a time, the most probable one, while the target
  continues four beginnings greedily that it has drawn itself. Measured
  acceptance of the embedded pair's drafters: 0.54 (Medusa) to 0.90 (EAGLE in
  parallel), and 0.00 if the inputs of EAGLE's layer are swapped. The most
  frequent token is 0.1 to 0.2 of such a text. At temperature 1 acceptance would
  be 0.11 to 0.23.

  Args:
    name: name of the drafter, for the log.
    trained: module and parameters of the drafter.
    target: target that it drafts for.

  Raises:
    UserError: the drafter was trained here, for another target.
  """
  length = min(_TOKENS, target.config.max_length - _DRAWN - 4)
  if length < 1:
    return
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
  share = share_of_commonest(out.tokens)
  if is_chance(out.acceptance_rate, share):
    cause = 'it was trained for other weights, or reads the wrong layers'
    if trained.target:  # the fingerprint of these weights
      cause = (
        'it was trained too little, or on texts unlike those of the target'
      )
    logging.warning(
      'drafter %s: %.2f of the tokens that it drafts for this target are '
      'accepted, and %.2f would be if it always drafted the same token: %s',
      name,
      out.acceptance_rate,
      share,
      cause,
    )


def is_chance(acceptance: float, commonest: float) -> bool:
  """Returns True if an acceptance rate requires no knowledge of the text.

  The best drafter that ignores the text always drafts one token, in hindsight
  the most frequent one: its share of the text is what chance may reach. In a
  text of one token everything is accepted, which proves nothing.

  Args:
    acceptance: accepted over drafted tokens.
    commonest: share of the most frequent token of the text.
  """
  return acceptance <= commonest and acceptance < 1


def share_of_commonest(texts: list[list[int]]) -> float:
  """Returns the share of the most frequent token of all texts, in [0, 1]."""
  counts = collections.Counter(token for text in texts for token in text)
  return max(counts.values()) / sum(counts.values())
