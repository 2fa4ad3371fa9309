"""Emitted texts have the target's distribution, with drafters as published.

See `test_loop_law`: these compute otherwise than those that are trained here,
and EAGLE-3's distribution is 0 of a token that the target may well emit.
"""

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

from specsamp.drafting import TokenTree
from specsamp.drafting.trained import trained_drafter

pytestmark = [
  pytest.mark.integration,
  # Every step is held to torch's in checkpoints/test_heads.py.
  pytest.mark.slow,
  pytest.mark.usefixtures('optimized'),
]

_CHAIN = TokenTree.chain(3)
_UNEVEN = TokenTree((-1, 0, 0, 0, 1, 1, 3, 4))


@sizes
@pytest.mark.parametrize(
  ('kind', 'verifier', 'law', 'tree'),
  [
    ('eagle3', 'block', 'iid', _CHAIN),
    ('eagle3', 'traversal', 'without_replacement', _UNEVEN),
    ('eagle', 'block', 'iid', _CHAIN),
    ('eagle', 'multi_candidate', 'without_replacement', _UNEVEN),
    ('medusa', 'token', 'iid', _CHAIN),
    ('medusa', 'multi_candidate', 'without_replacement', _UNEVEN),
  ],
)
def test_published_drafters(kind, verifier, law, tree, batches):
  layers = 6 if kind == 'eagle3' else 2
  target = tiny.model(VOCAB, 0, max_length=8, num_layers=layers)
  drafter = trained_drafter(tiny.published(target, kind), target, tree, law)
  args = dict(drafter=drafter, verifier=verifier, seed=9)
  counts, stats = texts((target, None), GROUPS, batches, **args)
  check_distribution(GROUPS, counts, distributions_of(target))
  check_events((target, None), stats, **args)
