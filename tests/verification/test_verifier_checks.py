"""Checks of user-defined verifiers before a program is compiled with them."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest
from testing import tiny

from specsamp.decoding.request import Request
from specsamp.drafting import TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.verification import Verifier, check_parts, check_sums, make
from specsamp.verification.naive import NaiveVerifier
from specsamp.verification.token import TokenVerifier


@dataclasses.dataclass(frozen=True)
class HoldsAList(TokenVerifier):
  values: list[float]


def _token_rule_with(**attributes):
  return type('Rule', (TokenVerifier,), attributes)()


@pytest.mark.parametrize(
  ('verifier', 'line'),
  [
    (TokenVerifier, 'got the class TokenVerifier, expected an object of it'),
    (object(), 'verifier object: has no method stop_probs'),
    (
      _token_rule_with(leave_probs=Verifier.leave_probs),
      'verifier Rule: has no method leave_probs',
    ),
    (_token_rule_with(stop_probs=3), 'verifier Rule: has no method stop_probs'),
    (_token_rule_with(accepts=None), 'accepts: got None, expected a set of'),
    (_token_rule_with(accepts=frozenset()), 'accepts: got frozenset.*, expect'),
    (
      _token_rule_with(accepts=frozenset({'idd'})),
      "verifier Rule: law: got 'idd', .*; did you mean iid?",
    ),
    (_token_rule_with(lossless=None), 'lossless: got None, expected a bool'),
    (_token_rule_with(__hash__=None), "unhashable type: 'Rule'; programs are"),
    (HoldsAList([1.0]), "verifier HoldsAList: unhashable type: 'list'; prog"),
  ],
)
def test_a_missing_part_is_named(verifier, line):
  with pytest.raises(UserError, match=line):
    check_parts(verifier)
  check_parts(make('token'))


@dataclasses.dataclass(frozen=True)
class Faulty(TokenVerifier):
  """The token rule with a fault."""

  fault: str
  accepts: ClassVar[frozenset[str]] = frozenset({'iid'})

  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    match self.fault:
      case 'raises':
        return stop_bn + self.gone
      case 'stop shape':
        return stop_bn[:, :-1]
      case 'too little':
        return stop_bn * 0.9
      case 'negative':
        return stop_bn.at[:, 0].add(-2.0).at[:, 1].add(2.0)
      case 'nan':
        return stop_bn * jnp.nan
    return stop_bn

  def leave_probs(self, draft, p_bnv, node_b):
    leave_bv = super().leave_probs(draft, p_bnv, node_b)
    if self.fault == 'leave shape':
      return p_bnv
    return leave_bv / 2 if self.fault == 'leaves half' else leave_bv


_OVER_NODES = 'stop_probs is not a distribution over the nodes: got a sum of '


@pytest.mark.parametrize(
  ('fault', 'line'),
  [
    (
      'stop shape',
      r"Faulty, tried with a chain of 2 tokens, law 'iid': stop_probs: got "
      r'shape \(3, 2\), expected \(3, 3\)',
    ),
    ('leave shape', r'leave_probs: got shape \(3, 3, 8\), expected \(3, 8\)'),
    (
      'raises',
      "stop_probs failed: AttributeError: .* no attribute 'gone' "
      r'\(.*test_verifier_checks.py:\d+\)',
    ),
    ('too little', _OVER_NODES + '0.9 '),
    ('negative', _OVER_NODES + '1 and a minimum of -'),
    ('nan', _OVER_NODES + 'nan'),
    ('leaves half', 'not a distribution over the tokens: got a sum of 0.5 '),
  ],
)
def test_faulty_probabilities_are_refused(fault, line):
  with pytest.raises(UserError, match=line):
    check_sums(Faulty(fault), 'iid', TokenTree.chain(2), 8)


def test_decoding_checks_user_defined_verifiers():
  target, draft = tiny.model(11, 0), tiny.model(11, 1)
  request = lambda fault: Request.make(
    target, [[1, 2]], model_drafter(draft, 2), Faulty(fault), max_new_tokens=2
  )
  request('')
  with pytest.raises(UserError, match='Faulty, tried with'):
    request('too little')


class NoEmptyDraft(TokenVerifier):
  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    return stop_bn if draft.tree.depth else 0 * stop_bn


def test_the_empty_draft_is_named():
  check_sums(NoEmptyDraft(), 'iid', TokenTree.chain(2), 8)
  line = r'the empty draft \(a root alone\), .*stop_probs .* over the nodes'
  with pytest.raises(UserError, match=line):
    check_sums(NoEmptyDraft(), 'iid', TokenTree.chain(0), 8)


class Unguarded(NaiveVerifier):
  """Divides by the q of what was drafted, as it may: that is never 0."""

  def stop_probs(self, draft, p_bnv):
    stop_bn = super().stop_probs(draft, p_bnv)
    q_bn = jnp.take_along_axis(draft.q[:, 0], draft.tokens[:, 1:], axis=-1)
    one_bn = jnp.where(draft.valid[:, 1:], q_bn / q_bn, 1)
    return stop_bn * one_bn.prod(axis=-1, keepdims=True)


def test_no_trial_draft_has_a_token_of_q_0():
  tree = TokenTree.branching((3,))
  check_sums(Unguarded(), 'without_replacement', tree, 8)
