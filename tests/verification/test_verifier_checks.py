"""What a verifier of a user's own lacks is named before it is compiled."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest

from specsamp.drafting import TokenTree
from specsamp.errors import UserError
from specsamp.verification import Verifier, check_parts, check_sums, make
from specsamp.verification.multi_candidate import MultiCandidateVerifier
from specsamp.verification.token import TokenVerifier


class NoMethods:
  accepts = frozenset({'iid'})
  lossless = True


class NoLeave(Verifier):
  accepts = frozenset({'iid'})
  lossless = True

  def stop_probs(self, draft, p_bnv):
    return p_bnv[:, :, 0]


class NoFunction(NoLeave):
  leave_probs = 3


class NoLaws(TokenVerifier):
  accepts = None


class AcceptsNothing(TokenVerifier):
  accepts = frozenset()


class UnknownLaw(TokenVerifier):
  accepts = frozenset({'idd'})


class NotSaid(TokenVerifier):
  lossless = None


class NoHash(TokenVerifier):
  __hash__ = None


@dataclasses.dataclass(frozen=True)
class HoldsAList(TokenVerifier):
  values: list[float]


@pytest.mark.parametrize(
  ('verifier', 'line'),
  [
    (TokenVerifier, 'got the class TokenVerifier, expected an object of it'),
    (NoMethods(), 'verifier NoMethods: has no method stop_probs'),
    (NoLeave(), 'verifier NoLeave: has no method leave_probs'),
    (NoFunction(), 'verifier NoFunction: leave_probs is no method: got 3'),
    (NoLaws(), 'verifier NoLaws: accepts: got None, expected laws'),
    (AcceptsNothing(), 'verifier AcceptsNothing: accepts no law'),
    (UnknownLaw(), "UnknownLaw: law: got 'idd', .*; did you mean iid?"),
    (NotSaid(), 'verifier NotSaid: lossless: got None, expected True or False'),
    (NoHash(), "verifier NoHash: unhashable type: 'NoHash'; programs are"),
    (HoldsAList([1.0]), "verifier HoldsAList: unhashable type: 'list'; prog"),
  ],
)
def test_what_it_lacks(verifier, line):
  with pytest.raises(UserError, match=line):
    check_parts(verifier)
  check_parts(make('token'))


@dataclasses.dataclass(frozen=True)
class Misshapen(TokenVerifier):
  fault: str
  accepts: ClassVar[frozenset[str]] = frozenset({'iid'})

  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    if self.fault == 'raises':
      return stop_bn + self.gone
    return stop_bn[:, :-1] if self.fault == 'stop' else stop_bn

  def leave_probs(self, draft, p_bnv, node_b):
    return p_bnv if self.fault == 'leave' else jnp.zeros_like(p_bnv[:, 0]) + 1


@pytest.mark.parametrize(
  ('fault', 'line'),
  [
    (
      'stop',
      r"Misshapen, tried with a chain of 2 tokens, law 'iid': stop_probs: got "
      r'shape \(3, 2\), expected \(3, 3\)',
    ),
    ('leave', r'leave_probs: got shape \(3, 3, 8\), expected \(3, 8\)'),
    ('', r'not distributions over the tokens: got rows that sum to \[8.0, 8'),
    (
      'raises',
      "stop_probs failed: AttributeError: .* no attribute 'gone' "
      r'\(.*test_verifier_checks.py:\d+\)',
    ),
  ],
)
def test_probabilities_of_another_shape(fault, line):
  with pytest.raises(UserError, match=line):
    check_sums(Misshapen(fault), 'iid', TokenTree.chain(2), 8)


class NoEmptyDraft(TokenVerifier):
  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    return stop_bn if draft.tree.depth else 0 * stop_bn


def test_the_empty_draft_is_named():
  check_sums(NoEmptyDraft(), 'iid', TokenTree.chain(2), 8)
  line = r'the empty draft \(a root alone\), .*stop_probs .* over the nodes'
  with pytest.raises(UserError, match=line):
    check_sums(NoEmptyDraft(), 'iid', TokenTree.chain(0), 8)


class Unguarded(MultiCandidateVerifier):
  """Divides by the q of what was drafted, as it may: that is never 0."""

  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    q_bn = jnp.take_along_axis(draft.q[:, 0], draft.tokens[:, 1:], axis=-1)
    one_bn = jnp.where(draft.valid[:, 1:], q_bn / q_bn, 1)
    return stop_bn * one_bn.prod(axis=-1, keepdims=True)


def test_no_draft_has_a_token_of_q_0():
  tree = TokenTree.branching((3,))
  check_sums(Unguarded(), 'without_replacement', tree, 8)
