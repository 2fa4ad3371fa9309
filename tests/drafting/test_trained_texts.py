"""Texts of drafters that read a target's features, and refusals."""

import functools

import numpy as np
import pytest
import readers
from readers import GREEDY, VOCAB, kinds, make_drafter, make_target
from testing import tiny

import specsamp
from specsamp.drafting import TokenTree
from specsamp.drafting.trained import KINDS, kind_of, make, trained_drafter
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams

# `test_trained_drafters` compares the states of the other kinds after every
# round with those of the text as a prompt.
texts = pytest.mark.parametrize(
  'kind',
  [
    'hydra',
    *(
      pytest.param(kind, marks=pytest.mark.slow)
      for kind in KINDS
      if kind not in ('hydra', 'eagle3')
    ),
  ],
)

TEXTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]


def _generate(drafter, verifier=None, prompts=TEXTS, **args):
  args = dict(max_new_tokens=16, stop_tokens=[]) | args
  return specsamp.generate(
    make_target(), prompts, drafter=drafter, verifier=verifier, **args
  )


@pytest.fixture(scope='module')
def greedy():
  """Texts of the target alone at temperature 0."""
  texts = _generate(None, sampling=GREEDY).tokens
  assert all(len(set(text)) > 3 for text in texts)
  return texts


@texts
def test_greedy_equals_autoregressive(kind, greedy):
  drafter = make_drafter(kind, 'tree')
  out = _generate(drafter, sampling=GREEDY)
  assert out.tokens == greedy
  assert out.num_accepted_per_pos.sum() > 0 and out.acceptance_rate < 1
  # Path by path the target has the same features.
  rows = _generate(drafter, sampling=GREEDY, tree_attention=False)
  assert rows.tokens == greedy
  np.testing.assert_array_equal(
    rows.num_accepted_per_pos, out.num_accepted_per_pos
  )


@texts
def test_a_row_is_the_same_in_any_batch(kind):
  drafter = make_drafter(kind, 'tree')
  prompts = np.array(TEXTS, object)
  seeds, budgets = np.array([4, 9, 2]), np.array([16, 9, 12])
  run = lambda rows: _generate(
    drafter,
    prompts=prompts[rows].tolist(),
    seed=seeds[rows],
    max_new_tokens=budgets[rows],
  )
  together = run([0, 1, 2])
  assert list(map(len, together.tokens)) == budgets.tolist()
  for rows in ([2, 0, 1], [1, 2, 2]):
    out = run(rows)
    for at, row in enumerate(rows):
      assert out.tokens[at] == together.tokens[row]
      for name in ('rounds', 'num_accepted_per_pos', 'num_accepted_per_rank'):
        np.testing.assert_array_equal(
          getattr(out, name)[at], getattr(together, name)[row]
        )


def test_typical_acceptance_of_a_tree(greedy):
  """It accepts more than a lossless rule; greedy rows are greedy."""
  drafter = make_drafter('hydra', 'tree')
  sampling = SamplingParams(temperature=np.array([0.0, 1.5, 0.0]))
  run = functools.partial(_generate, drafter, sampling=sampling)
  typical = run('typical_lossy')
  lossless = run('multi_candidate')
  for row in (0, 2):
    assert typical.tokens[row] == greedy[row]
    assert typical.rounds[row] == lossless.rounds[row]
  assert len(typical.tokens[1]) == 16
  assert typical.rounds[1] < lossless.rounds[1]


# Refusals.

_ANY_DEPTH = ('eagle', 'eagle3')  # they read their outputs


def _refused(message, call, *args, **kwargs):
  with pytest.raises(UserError, match=message) as error:
    call(*args, **kwargs)
  assert '\n' not in str(error.value)


@kinds
def test_another_target_is_refused(kind):
  make_target = functools.partial(
    readers.make_target, num_layers=tiny.layers(kind)
  )
  target = make_target()
  trained = tiny.trained(target, kind)
  for other, message in (
    (make_target(width=8), 'of width 16, this one has 8$'),
    (make_target(vocab_size=12), 'of vocab_size 11, this one has 12$'),
    (make_target(seed=1), f'for the target {target.fingerprint}, this one is '),
  ):
    _refused(message, trained_drafter, trained, other, 3)
    _refused(
      'trained for the target',
      specsamp.generate,
      other,
      [[1]],
      drafter=trained_drafter(trained, target, 3),
      max_new_tokens=4,
    )


@kinds
def test_a_draft_deeper_than_its_heads_is_refused(kind):
  target = make_target(num_layers=tiny.layers(kind))
  trained = tiny.trained(target, kind, ahead=4)
  if kind in _ANY_DEPTH:
    assert trained_drafter(trained, target, 5).tree.depth == 5
    return
  message = f'^{kind}: drafts at most 4 tokens deep, got a draft of depth 5$'
  for shape in (5, TokenTree.branching((2, 1, 1, 1, 1))):
    _refused(message, trained_drafter, trained, target, shape)
  assert trained_drafter(trained, target, 4).tree.depth == 4


@pytest.mark.parametrize(
  ('kind', 'ahead', 'message'),
  [
    ('lookahead', 4, "got 'lookahead', expected one of medusa, hydra, eagle"),
    ('medusa', 0, '^ahead: got 0, expected at least 1$'),
    ('eagle', 0, '^ahead: got 0, expected at least 1$'),
    ('medusa_parallel', 1, '^ahead: got 1, expected at least 2$'),
    ('eagle_parallel', 1, '^ahead: got 1, expected at least 2$'),
    ('dflash', 0, '^ahead: got 0, expected at least 1$'),
  ],
)
def test_layers_that_cannot_be_made(kind, ahead, message):
  _refused(message, make, kind, make_target().config, ahead)


@kinds
def test_a_module_knows_its_kind(kind):
  module = make(kind, make_target(num_layers=tiny.layers(kind)).config, 5)
  assert kind_of(module).name == kind
  assert module.ahead == (None if kind in _ANY_DEPTH else 5)


def test_shapes_and_laws_that_are_refused():
  target = make_target()
  trained = tiny.trained(target, 'medusa')
  _refused('got 0, expected at least 1', trained_drafter, trained, target, 0)
  _refused("got 'top'", trained_drafter, trained, target, 2, 'top')
  wide = TokenTree.branching((VOCAB + 1,))
  _refused(
    '^branching: got 12 candidates, more than the 11 tokens',
    _generate,
    trained_drafter(trained, target, wide),
    'multi_candidate',
  )
