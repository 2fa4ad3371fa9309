"""Tables and checks that the exactness tests share."""

import numpy as np

from specsamp.conformance.enumeration import TOLERANCE, make_tables


def cut_tables(vocab, tree, seed):
  """Returns tables of all kinds, with all and with some candidates drafted."""
  shapes = [(vocab,) * i + (tree.width,) for i in range(tree.depth)]

  def cuts(rng):
    yield 'whole', [np.ones(shape, bool) for shape in shapes]
    yield 'some', [rng.random(shape) < 0.7 for shape in shapes]

  return make_tables(vocab, tree.depth, cuts, seed)


def check_lossless(outcome):
  """Asserts that a rule emits the target's distribution, by distributions."""
  name = outcome.table.name
  assert outcome.error <= TOLERANCE, name
  for probs in (outcome.stop, outcome.leave):
    assert (probs >= 0).all(), name  # and no NaN
    np.testing.assert_allclose(
      probs.sum(-1), 1, rtol=0, atol=TOLERANCE, err_msg=name
    )
  # It never accepts or emits a token that the target cannot emit.
  assert (outcome.leave[outcome.drafts.p == 0] == 0).all(), name
  assert (outcome.stop[~possible(outcome)] == 0).all(), name


def check_float32(outcome):
  """Asserts that a rule in float32 is lossless but for rounding."""
  assert outcome.error <= 1e-6, outcome.table.name
  assert (outcome.leave[outcome.drafts.p == 0] == 0).all(), outcome.table.name


def check_same(outcomes, others):
  """Asserts that two rules emit the same tokens at the same nodes."""
  for one, other in zip(outcomes, others, strict=True):
    # Where a row hardly stops, the leave probabilities are rounding noise.
    ended, other_ended = (o.stop[..., None] * o.leave for o in (one, other))
    np.testing.assert_allclose(
      ended, other_ended, rtol=0, atol=TOLERANCE, err_msg=one.table.name
    )


def possible(outcome):
  """Returns drafted nodes on paths of tokens with p(x) > 0, bool [B, N]."""
  mask = outcome.drafts.valid.copy()
  for node, parent in enumerate(outcome.tree.parents[1:], start=1):
    tokens = outcome.drafts.tokens[:, node, None]
    p = np.take_along_axis(outcome.drafts.p[:, parent], tokens, axis=1)[:, 0]
    mask[:, node] &= mask[:, parent] & (p > 0)
  return mask


def expected_tokens(outcome):
  lengths = np.array(outcome.tree.depths) + 1
  return (outcome.drafts.weight[:, None] * outcome.stop * lengths).sum()


def accepted_first(outcome):
  return 1 - (outcome.drafts.weight * outcome.stop[:, 0]).sum()
