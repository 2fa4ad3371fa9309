"""`check_verifier` locates what is wrong with a rule, and passes correct ones.

`tests/exactness` would find errors of the enumeration.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest

from specsamp.conformance import check_verifier
from specsamp.errors import UserError
from specsamp.verification import make
from specsamp.verification.naive import NaiveVerifier
from specsamp.verification.token import TokenVerifier


@pytest.mark.parametrize('rule', ['gumbel', 'typical_lossy'])
def test_correct_rules(rule):
  """A coupled rule, and one that is not lossless."""
  check_verifier(make(rule))


@dataclasses.dataclass(frozen=True)
class Wrong(TokenVerifier):
  """The token rule with a fault."""

  fault: str
  accepts: ClassVar[frozenset[str]] = frozenset({'iid'})

  def stop_probs(self, draft, p_bnv):
    match self.fault:
      case 'accepts undrafted tokens':
        draft = draft.replace(valid=jnp.ones_like(draft.valid))
      case 'takes no chain' if draft.tree.depth:
        raise ValueError('not a draft for me')
    stop_bn = super().stop_probs(draft, p_bnv)
    match self.fault:
      case 'stops too little':
        return stop_bn * 0.9
      case 'in float32':
        return stop_bn.astype(jnp.float32)
    return stop_bn

  def leave_probs(self, draft, p_bnv, node_b):
    leave_bv = super().leave_probs(draft, p_bnv, node_b)
    match self.fault:
      case 'draws from p':
        return jnp.take_along_axis(p_bnv, node_b[:, None, None], axis=1)[:, 0]
      case 'a NaN after the last token':
        is_last_b = node_b == draft.tree.size - 1
        return jnp.where(is_last_b[:, None], jnp.nan, leave_bv)
      case 'raises':
        return leave_bv + self.gone
      case 'leaves out a token':
        return leave_bv[:, :-1]
    return leave_bv


@pytest.mark.parametrize(
  ('fault', 'line'),
  [
    (
      'draws from p',
      r"Wrong, law 'iid', a chain of 3 tokens, p and q dense-all drafted: not "
      r'lossless: emits the tokens \[\d, \d, \d, \d\] with 0\.\d+, expected 0',
    ),
    (
      'accepts undrafted tokens',
      r'p and q dense-some drafted: accepts an undrafted node with probability '
      r'.*, draft \[.*\], drafted \[1, .*\], node \d',
    ),
    (
      'stops too little',
      r'the empty draft \(a root alone\), .*: stop_probs is not a distribution '
      r'over the nodes: got a sum of 0.9 and a minimum of 0.9, expected .*',
    ),
    (
      'a NaN after the last token',
      r'leave_probs is not a distribution .*: got a sum of nan .*node 0',
    ),
    (
      'raises',
      r"a root alone\): failed: AttributeError: .* 'gone' \(.*:\d+\)$",
    ),
    (
      'leaves out a token',
      r'leave_probs at all nodes: got float64 \(2048, 1, 2\), expected float64 '
      r'\(2048, 1, 3\)',
    ),
    (
      'in float32',
      r'stop_probs at all nodes: got float32 .*, expected float64',
    ),
    ('takes no chain', "takes no draft of law 'iid': ValueError: not a draft"),
  ],
)
def test_wrong_rules(fault, line):
  with pytest.raises(UserError, match=line):
    check_verifier(Wrong(fault))


@dataclasses.dataclass(frozen=True)
class WrongOnTrees(NaiveVerifier):
  """Stops at the root of trees, but is correct on chains."""

  accepts: ClassVar[frozenset[str]] = frozenset({'iid'})

  def stop_probs(self, draft, p_bnv):
    if draft.tree.is_chain:
      return super().stop_probs(draft, p_bnv)
    return jnp.zeros_like(p_bnv[:, :, 0]).at[:, 0].set(1)


def test_a_rule_that_is_wrong_only_on_trees():
  with pytest.raises(UserError, match='a tree of 4 nodes, .*: not lossless'):
    check_verifier(WrongOnTrees())
