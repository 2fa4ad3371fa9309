"""The rules for chains are lossless: every draft is enumerated, in float64."""

import dataclasses
import functools
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from rounds import check_float32, check_lossless, expected_tokens

from specsamp.conformance.enumeration import (
  TOLERANCE,
  enumerate_drafts,
  make_tables,
  normalize,
  run_tables,
)
from specsamp.drafting.draft import TokenTree
from specsamp.verification import make
from specsamp.verification.token import TokenVerifier

SHAPES = [(vocab, length) for vocab in (3, 4, 5) for length in (0, 1, 2, 3)]

both_rules = pytest.mark.parametrize('rule', ('token', 'block'))


@functools.cache
def _tables(vocab, length):
  """Returns tables of drafts that end at a given length or a random context."""

  def cuts(rng):
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

  return make_tables(vocab, length, cuts, seed=100 * vocab + length)


def _table(vocab, length, name):
  (table,) = (t for t in _tables(vocab, length) if t.name == name)
  return table


def _run(verifier, tables, drafts=None, dtype=np.float64):
  tree = TokenTree.chain(len(tables[0].q))
  return run_tables(verifier, tables, tree, 'iid', drafts, dtype)


@functools.cache
def _outcomes(rule, vocab, length):
  return _run(make(rule), _tables(vocab, length))


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@both_rules
def test_emits_the_targets_distribution(rule, vocab, length):
  for outcome in _outcomes(rule, vocab, length):
    check_lossless(outcome)


def test_block_never_expects_fewer_tokens_and_sometimes_more():
  gains = []
  for shape in SHAPES:
    for token, block in zip(
      _outcomes('token', *shape), _outcomes('block', *shape), strict=True
    ):
      gains.append(expected_tokens(block) - expected_tokens(token))
      assert gains[-1] >= -TOLERANCE, token.table.name
  assert max(gains) > 1e-2


@both_rules
def test_float32_is_as_good_as_float32_can_be(rule):
  for outcome in _run(make(rule), _tables(4, 3), dtype=np.float32):
    check_float32(outcome)


# The proof can fail: these rules are wrong in the ways of real code bases.


@dataclasses.dataclass(frozen=True)
class ResidualFromTarget(TokenVerifier):
  """Emits a draw from p, not from the residual, after a rejection."""

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
    (ResidualFromTarget(), 2),
    (RatioUpsideDown(), 2),
    (BlockThatLeavesAsToken(), 2),
  ],
  ids=lambda value: getattr(type(value), '__name__', value),
)
def test_wrong_rules_are_found_out(verifier, length):
  (outcome,) = _run(verifier, [_table(4, length, f'dense-cut{length}')])
  assert outcome.error > 1e-3


def _q_of_another_temperature(drafts):
  return dataclasses.replace(drafts, q=normalize(drafts.q**0.7))


def _valid_by_the_token(drafts):
  """Drops improbable tokens, which `Draft.valid` forbids."""
  index = drafts.tokens[:, 1:, None]
  drafted = np.take_along_axis(drafts.q, index, axis=2)[..., 0]
  valid = np.concatenate([drafts.valid[:, :1], drafted > 0.3], axis=1)
  return dataclasses.replace(drafts, valid=valid)


@pytest.mark.parametrize(
  'change', [_q_of_another_temperature, _valid_by_the_token]
)
@both_rules
def test_wrong_drafts_are_found_out(rule, change):
  table = _table(4, 2, 'dense-cut2')
  drafts = change(enumerate_drafts(table, TokenTree.chain(2), 'iid'))
  (outcome,) = _run(make(rule), [table], [drafts])
  assert outcome.error > 1e-3
