"""Drafters as their authors publish them, of random weights, in the loop.

What they compute is held to torch in `checkpoints/test_heads`, and the
distribution of their texts in `decoding/test_published_law`, with --slow.
EAGLE's and Medusa's differ from those that are trained here in what they
compute, not in what they keep.
"""

import functools

import numpy as np
import pytest
from readers import GREEDY, PROMPTS, SHAPES, VOCAB, check_states
from testing import tiny

import specsamp
from specsamp.drafting.trained import trained_drafter
from specsamp.errors import UserError

# With seven layers the three depths that EAGLE-3 reads are not each other's.
# The others read the last one, of which there need not be many.
DEPTHS = {'medusa': 1, 'eagle': 1, 'eagle3': 7, 'peagle': 7}


@functools.cache
def _target(num_layers):
  return tiny.model(VOCAB, 1, num_layers=num_layers)


def _drafter(kind, shape, num_layers=None):
  target = _target(num_layers or DEPTHS[kind])
  tree, law, _ = SHAPES[shape]
  return trained_drafter(tiny.published(target, kind), target, tree, law)


@pytest.mark.parametrize(
  ('kind', 'shape'),
  [
    pytest.param('eagle3', 'chain', marks=pytest.mark.slow),
    ('eagle3', 'tree'),
    ('peagle', 'tree'),
    ('peagle', 'dynamic'),
    pytest.param('eagle3', 'dynamic', marks=pytest.mark.slow),
    pytest.param('eagle', 'tree', marks=pytest.mark.slow),
    pytest.param('eagle', 'chain', marks=pytest.mark.slow),
    pytest.param('medusa', 'chain', marks=pytest.mark.slow),
  ],
)
def test_after_a_round_the_state_is_the_texts_own(kind, shape):
  check_states(_target(DEPTHS[kind]), _drafter(kind, shape), SHAPES[shape][2])


@pytest.mark.slow  # rounds leave the text's own state: the test above
@pytest.mark.parametrize('kind', ['eagle3', 'eagle'])
def test_greedy_equals_autoregressive(kind):
  run = functools.partial(
    specsamp.generate,
    _target(DEPTHS[kind]),
    PROMPTS,
    sampling=GREEDY,
    max_new_tokens=16,
    stop_tokens=[],
  )
  expected = run().tokens
  assert all(len(set(text)) > 3 for text in expected)
  got = run(drafter=_drafter(kind, 'tree'), verifier='multi_candidate')
  assert got.tokens == expected
  assert got.num_accepted_per_pos.sum() > 0 and got.acceptance_rate < 1
  # Path by path the target is tapped at the same places.
  rows = run(
    drafter=_drafter(kind, 'tree'),
    verifier='multi_candidate',
    tree_attention=False,
  )
  np.testing.assert_array_equal(
    rows.num_accepted_per_pos, got.num_accepted_per_pos
  )


@pytest.mark.slow  # as of any drafter: `decoding/test_loop`
def test_a_stream_of_rounds_is_the_text():
  drafter = _drafter('eagle3', 'chain')
  args = dict(drafter=drafter, max_new_tokens=12, stop_tokens=[], seed=3)
  (text,) = specsamp.generate(_target(7), PROMPTS[:1], **args).tokens
  rounds = specsamp.stream(_target(7), PROMPTS[:1], **args)
  assert [token for r in rounds for token in r.tokens[0]] == text


def test_depths_of_a_target():
  assert _drafter('eagle3', 'chain').taps == (2, 3, 4)
  assert _drafter('eagle3', 'chain', 6).taps == (2, 3, 3)
  assert _drafter('eagle', 'chain').taps == ()
  with pytest.raises(UserError, match='of 5 layers, expected at least 6$'):
    _drafter('eagle3', 'chain', 5)


@pytest.mark.parametrize('kind', ['medusa', 'eagle', 'eagle3'])
def test_it_serves_the_target_it_was_laid_beside(kind):
  """Its folder names none; once it shares a target's embedding it has one."""
  drafter = _drafter(kind, 'chain')
  other = tiny.model(VOCAB, 2, num_layers=DEPTHS[kind])
  with pytest.raises(UserError, match='^drafter: trained for the target'):
    specsamp.generate(other, PROMPTS, drafter=drafter, max_new_tokens=4)
