"""Emitted texts have the target's distribution, with two vocabularies.

See `test_loop_law`. A token that the draft lacks is never drafted, a row that
pads the target's embedding never emitted.
"""

import dataclasses

import pytest
from laws import (
  GROUPS,
  VOCAB,
  check_distribution,
  check_events,
  distributions_of,
  sizes,
  texts,
)
from testing import tiny

from specsamp.drafting import TokenTree, model_drafter

pytestmark = [
  pytest.mark.extended,
  pytest.mark.usefixtures('optimized'),
]


def _of_rows(model, rows):
  """The model with more rows of its vocabulary, which are no tokens."""
  fitted = model.for_target(tiny.model(rows, 9))
  return dataclasses.replace(fitted, tokenizer=model.tokenizer)


@sizes
@pytest.mark.parametrize(
  ('rows', 'letters', 'verifier', 'law', 'tree'),
  [
    # A token that the draft lacks, with an embedding that was padded.
    (
      6,
      3,
      'multi_candidate',
      'without_replacement',
      TokenTree.branching((3, 1)),
    ),
    pytest.param(
      VOCAB, 6, 'block', 'iid', TokenTree.chain(3), marks=pytest.mark.slow
    ),
    pytest.param(
      VOCAB, 3, 'token', 'iid', TokenTree.chain(3), marks=pytest.mark.slow
    ),
    pytest.param(
      6, 5, 'token', 'iid', TokenTree.chain(3), marks=pytest.mark.slow
    ),
  ],
)
def test_vocabularies_of_two_sizes(rows, letters, verifier, law, tree, batches):
  whole = tiny.model(VOCAB, 0, max_length=8)
  target = _of_rows(whole, rows)
  draft = tiny.draft(letters, 1, max_length=8).for_target(target)
  assert draft.config.vocab_size == target.config.vocab_size == rows
  assert target.config.num_tokens == VOCAB
  assert draft.config.num_tokens == min(letters, VOCAB)
  pair = target, draft
  args = dict(
    drafter=model_drafter(draft, tree, law), verifier=verifier, seed=9
  )
  counts, stats = texts(pair, GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions_of(whole))
  check_events(pair, stats, **args)
