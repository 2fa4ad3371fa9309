"""A head of somebody else, tried on a short text before it is relied on.

Its folder does not name the weights that it was trained for, nor does any shape
betray that it reads other layers of them than it should. Neither makes a text
wrong: nothing would be accepted, and nobody told why it is slow.
"""

import collections
import functools

from absl import logging

from specsamp.decoding.generate import generate
from specsamp.drafting import DraftModule, trained_drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams

_ROWS, _DRAWN, _TOKENS = 4, 8, 32


def warn_if_chance(name: str, trained: DraftModule, target: LanguageModel):
  """Warns of a head that drafts for this target no better than by chance.

  It drafts a token at a time, the most probable one, while the target goes on
  greedily with four beginnings that it has drawn itself. Of the embedded pair's
  drafters 0.54 (Medusa) to 0.90 (EAGLE in parallel) is accepted then, and 0.00
  where the inputs of EAGLE's layer have changed places; the most frequent token
  has 0.1 to 0.2 of such a text. At temperature 1 it would be 0.11 to 0.23.

  Args:
    name: the head's, for the log.
    trained: the head.
    target: what it shall draft for.
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
    logging.warning(
      'drafter %s: accepts %.2f of the tokens that it drafts for this target, '
      'and one that always drafts the same token would accept %.2f: it was '
      'trained for other weights, or reads other layers of them than it should',
      name,
      out.acceptance_rate,
      commonest,
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
