"""The rules for chains are lossless: every draft is enumerated, in float64."""

import dataclasses
import functools
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import expected_tokens, possible

from specsamp.conformance.enumeration import (
  TOLERANCE,
  enumerate_drafts,
  make_tables,
  normalize,
  run,
)
from specsamp.drafting.draft import TokenTree
from specsamp.verification import make
from specsamp.verification.token import TokenVerifier

RULES = ('token', 'block')
SHAPES = [(vocab, length) for vocab in (3, 4, 5) for length in (0, 1, 2, 3)]


def _cuts(rng, vocab, length):
  """Where drafts end: at a fixed length, or in contexts chosen at random."""
  for cut in range(length + 1):
    yield (
      f'cut{cut}',
      [np.full((vocab,) * i + (1,), i < cut) for i in range(length)],
    )
  if length:
    yield (
      'stopping',
      [rng.random((vocab,) * i + (1,)) >= 0.3 for i in range(length)],
    )


@functools.cache
def _tables(vocab, length):
  cuts = lambda rng: _cuts(rng, vocab, length)
  return make_tables(vocab, length, cuts, seed=100 * vocab + length)


def _run(verifier, tables, drafts=None, dtype=np.float64):
  tree = TokenTree.chain(len(tables[0].q))
  return run(verifier, tables, tree, 'iid', drafts, dtype)


def _drafts(table):
  return enumerate_drafts(table, TokenTree.chain(len(table.q)), 'iid')


@functools.cache
def _rounds(rule, vocab, length):
  return _run(make(rule), _tables(vocab, length))


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_emits_the_targets_distribution(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    assert round_.error <= TOLERANCE, round_.table.name


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_stop_and_leave_are_distributions(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    name = round_.table.name
    for probs in (round_.stop, round_.leave):
      assert (probs >= 0).all(), name  # and no NaN
      np.testing.assert_allclose(
        probs.sum(-1), 1, rtol=0, atol=TOLERANCE, err_msg=name
      )


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_never_emits_what_the_target_cannot(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    name = round_.table.name
    assert (round_.leave[round_.drafts.p == 0] == 0).all(), name
    assert (round_.stop[~possible(round_)] == 0).all(), name


def test_block_never_expects_fewer_tokens_and_sometimes_more():
  gains = []
  for vocab, length in SHAPES:
    rounds = zip(
      _rounds('token', vocab, length),
      _rounds('block', vocab, length),
      strict=True,
    )
    for token, block in rounds:
      gain = expected_tokens(block) - expected_tokens(token)
      assert gain >= -TOLERANCE, token.table.name
      gains.append(gain)
  assert max(gains) > 1e-2


def test_token_rule_accepts_with_one_less_the_total_variation():
  for round_ in _rounds('token', 5, 1):
    if round_.table.name.endswith('cut1'):
      overlap = np.minimum(round_.table.p[0], round_.table.q[0]).sum()
      assert abs(expected_tokens(round_) - 1 - overlap) <= TOLERANCE


@pytest.mark.parametrize('rule', RULES)
def test_a_shorter_draft_is_the_shorter_chain(rule):
  """A row cut at 2 of 3 is judged as a chain of 2, to the last bit or so."""
  longer = {r.table.name: r for r in _rounds(rule, 4, 3)}['close-cut2']
  table = longer.table
  shorter = _run(
    make(rule),
    [
      dataclasses.replace(
        table, p=table.p[:3], q=table.q[:2], valid=table.valid[:2]
      )
    ],
  )[0]
  for name in ('stop', 'leave'):
    np.testing.assert_allclose(
      getattr(longer, name)[:, :3], getattr(shorter, name), atol=1e-15
    )


@pytest.mark.parametrize('rule', RULES)
def test_float32_is_as_good_as_float32_can_be(rule):
  for round_ in _run(make(rule), _tables(4, 3), dtype=np.float32):
    assert round_.error <= 1e-6, round_.table.name
    assert (round_.leave[round_.drafts.p == 0] == 0).all(), round_.table.name


# The proof can fail: rules that are wrong in the ways of real code bases.


@dataclasses.dataclass(frozen=True)
class ResidualFromTarget(TokenVerifier):
  """Emits a token of p, not of the residual, after a rejection."""

  def leave_probs(self, draft, p_bnv, node_b):
    return jnp.take_along_axis(p_bnv, node_b[:, None, None], axis=1)[:, 0]


@dataclasses.dataclass(frozen=True)
class RatioUpsideDown(TokenVerifier):
  """Accepts with min(1, q / p)."""

  def stop_probs(self, draft, p_bnv):
    rest = jnp.ones_like(p_bnv[:, :1])
    swapped = draft.replace(q=p_bnv[:, :-1])
    return super().stop_probs(swapped, jnp.concatenate([draft.q, rest], 1))


@dataclasses.dataclass(frozen=True)
class BlockThatLeavesAsToken(TokenVerifier):
  """Stops as block verification does and leaves as the token rule does."""

  accepts: ClassVar = frozenset({'iid'})

  def stop_probs(self, draft, p_bnv):
    return make('block').stop_probs(draft, p_bnv)


@pytest.mark.parametrize(
  ('verifier', 'length'),
  [
    (ResidualFromTarget(), 1),
    (ResidualFromTarget(), 2),
    (RatioUpsideDown(), 1),
    (RatioUpsideDown(), 2),
    (BlockThatLeavesAsToken(), 2),
  ],
  ids=lambda value: getattr(type(value), '__name__', value),
)
def test_wrong_rules_are_found_out(verifier, length):
  name = f'dense-cut{length}'
  tables = [t for t in _tables(4, length) if t.name == name]
  assert _run(verifier, tables)[0].error > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_q_at_another_temperature_is_found_out(rule):
  """Sampled at one temperature, reported at another."""
  tables = [t for t in _tables(4, 2) if t.name == 'dense-cut2']
  drafts = _drafts(tables[0])
  reported = dataclasses.replace(drafts, q=normalize(drafts.q**0.7))
  rounds = _run(make(rule), tables, [reported])
  assert rounds[0].error > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_validity_that_looks_at_the_token_is_found_out(rule):
  """Throwing a token away for being improbable: `Draft.valid` forbids it."""
  tables = [t for t in _tables(4, 2) if t.name == 'dense-cut2']
  drafts = _drafts(tables[0])
  index = drafts.tokens[:, 1:, None]
  drafted = np.take_along_axis(drafts.q, index, axis=2)[..., 0]
  valid = np.concatenate([drafts.valid[:, :1], drafted > 0.3], axis=1)
  thrown = dataclasses.replace(drafts, valid=valid)
  rounds = _run(make(rule), tables, [thrown])
  assert rounds[0].error > 1e-3
