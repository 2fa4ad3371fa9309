"""Texts of drafters that read a target's features, and what is refused."""

import functools

import numpy as np
import pytest
import readers
from readers import GREEDY, SHAPES, VOCAB, kinds, make_drafter, make_target
from testing import tiny

import specsamp
from specsamp import verification
from specsamp.drafting import TokenTree
from specsamp.drafting.trained import KINDS, kind_of, make, trained_drafter
from specsamp.errors import UserError
from specsamp.sampling.transforms import SamplingParams

# One of them: the states of the others are held to the text's own after every
# round, in `test_trained_drafters`, and EAGLE-3's in `test_eagle3`.
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


# Whole texts.

TEXTS = [[3, 1, 4, 1, 5], [7], [2, 7, 1]]


def _generate(drafter, verifier='token', prompts=TEXTS, **args):
  args = dict(max_new_tokens=16, stop_tokens=[]) | args
  return specsamp.generate(
    make_target(), prompts, drafter=drafter, verifier=verifier, **args
  )


@pytest.fixture(scope='module')
def greedy():
  """What the target alone emits at temperature 0."""
  texts = _generate(None, sampling=GREEDY).tokens
  assert all(len(set(text)) > 3 for text in texts)
  return texts


@texts
@pytest.mark.parametrize(
  'shape',
  # `test_loop_law` has greedy rows on chains.
  ['tree', pytest.param('chain', marks=pytest.mark.slow)],
)
def test_greedy_equals_autoregressive(kind, shape, greedy):
  got = _generate(make_drafter(kind, shape), SHAPES[shape][2], sampling=GREEDY)
  assert got.tokens == greedy
  assert got.num_accepted_per_pos.sum() > 0 and got.acceptance_rate < 1


@texts
@pytest.mark.parametrize(
  'alone',
  [False, pytest.param(True, marks=pytest.mark.slow)],
  ids=['beside others', 'alone'],
)
def test_a_row_is_the_same_in_any_batch(kind, alone):
  run = functools.partial(
    _generate, make_drafter(kind, 'tree'), 'multi_candidate'
  )
  prompts = np.array(TEXTS, object)
  seeds, budgets = np.array([4, 9, 2]), np.array([16, 9, 12])
  batch = lambda rows: run(
    prompts=prompts[rows].tolist(),
    seed=seeds[rows],
    max_new_tokens=budgets[rows],
  )
  together = batch([0, 1, 2])
  assert list(map(len, together.tokens)) == budgets.tolist()
  for rows in ([0], [1], [2]) if alone else ([2, 0, 1], [1, 2, 2]):
    got = batch(rows)
    for at, row in enumerate(rows):
      assert got.tokens[at] == together.tokens[row]
      for name in ('rounds', 'num_accepted_per_pos', 'num_accepted_per_rank'):
        np.testing.assert_array_equal(
          getattr(got, name)[at], getattr(together, name)[row]
        )


def test_typical_acceptance_of_a_tree(greedy):
  """More is accepted than a lossless rule accepts; greedy rows are greedy."""
  drafter = make_drafter('hydra', 'tree')
  sampling = SamplingParams(temperature=np.array([0.0, 1.5, 0.0]))
  run = functools.partial(_generate, drafter, sampling=sampling)
  typical = run(verification.make('typical_lossy'))
  lossless = run('multi_candidate')
  for row in (0, 2):
    assert typical.tokens[row] == greedy[row]
    assert typical.rounds[row] == lossless.rounds[row]
  assert len(typical.tokens[1]) == 16
  assert typical.rounds[1] < lossless.rounds[1]


# What is refused.

_FOR_EVER = ('eagle', 'eagle3')  # they go on from what they drafted


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
  if kind in _FOR_EVER:
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
  assert module.ahead == (None if kind in _FOR_EVER else 5)


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
