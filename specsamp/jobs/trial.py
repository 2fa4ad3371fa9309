"""A head of somebody else, tried on a short text before it is relied on.

Its folder does not name the weights that it was trained for, nor does any shape
betray that it reads other layers of them than it should. Neither makes a text
wrong: nothing would be accepted, and nobody told why it is slow.
"""

import collections

from absl import logging

from specsamp.decoding.generate import generate
from specsamp.drafting import DraftModule, trained_drafter
from specsamp.language_model import LanguageModel

_ROWS, _TOKENS = 4, 32


def warn_if_chance(name: str, trained: DraftModule, target: LanguageModel):
  """Warns of a head that drafts for this target no better than by chance.

  It drafts a token at a time, the most probable one, while the target writes
  texts of its own at temperature 1, from its first token on: greedy ones would
  soon repeat themselves. Two small programs are compiled for it and some thirty
  passes of the target made.

  Args:
    name: the head's, for the log.
    trained: the head.
    target: what it shall draft for.
  """
  length = min(_TOKENS, target.config.max_length - 4)
  if length < 1:
    return
  out = generate(
    target,
    [[max(target.tokenizer.bos_id, 0)]] * _ROWS,
    drafter=trained_drafter(trained, target, 1, 'deterministic'),
    verifier='naive',
    max_new_tokens=length,
    stop_tokens=[],
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
  reach. Trained heads accept half of their first tokens and more where that
  share is a tenth; wrongly tapped ones hardly any. In a text of one token
  everything is accepted, which tells nothing.

  Args:
    acceptance: accepted over drafted tokens.
    commonest: share of the most frequent token of the text.
  """
  return acceptance <= commonest and acceptance < 1


def share_of_commonest(texts: list[list[int]]) -> float:
  """The share of the most frequent token of all texts, in [0, 1]."""
  counts = collections.Counter(token for text in texts for token in text)
  return max(counts.values()) / sum(counts.values())
