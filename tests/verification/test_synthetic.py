"""Synthetic acceptance: the mean and variance of what is accepted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from testing import tiny

import specsamp
from specsamp.conformance import check_verifier
from specsamp.decoding.rollouts import EngineSampler
from specsamp.drafting import Draft, DynamicTree, TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.evaluation import losslessness
from specsamp.planning import speculation
from specsamp.verification import SyntheticVerifier, make

CHAIN = TokenTree.chain(4)
# Depths 1, 1, 2, 3, 2, 4: the deepest path begins at the second child.
UNEVEN = TokenTree((-1, 0, 0, 2, 3, 1, 4))
DYNAMIC = DynamicTree.of(UNEVEN.size, UNEVEN.depth, 5)
VOCAB = 5


def _draft(tree, valid=None, parents=None):
  tokens = jnp.zeros((1, tree.size), jnp.int32)
  valid = jnp.ones(tokens.shape, bool) if valid is None else valid
  if parents is not None:
    parents = jnp.asarray([parents], jnp.int32)
  return Draft(
    tokens, None, tree, 'deterministic', jnp.asarray(valid), parents=parents
  )


@pytest.mark.parametrize('length', [1, 1.25, 2, 3.7, 5])
@pytest.mark.parametrize(
  ('tree', 'parents'),
  [(CHAIN, None), (UNEVEN, None), (DYNAMIC, UNEVEN.parents)],
)
def test_mean_and_variance(tree, parents, length):
  """Exactly, in float64: no integers of this mean have a smaller variance."""
  with jax.enable_x64(True):
    p = jnp.full((1, tree.size, VOCAB), 1 / VOCAB, jnp.float64)
    rule, draft = SyntheticVerifier(length), _draft(tree, parents=parents)
    (stop_n,) = np.asarray(rule.stop_probs(draft, p))
    leave = rule.leave_probs(draft, p, jnp.zeros(1, jnp.int32))
  assert stop_n.dtype == np.float64 and (leave == p[:, 0]).all()
  tokens_n = 1 + np.asarray((UNEVEN if parents else tree).depths)
  mean = stop_n @ tokens_n
  share = length % 1
  np.testing.assert_allclose(stop_n.sum(), 1, rtol=0, atol=1e-12)
  np.testing.assert_allclose(mean, length, rtol=0, atol=1e-12)
  variance = stop_n @ (tokens_n - mean) ** 2
  np.testing.assert_allclose(variance, share * (1 - share), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
  ('missing', 'expected'),
  [
    ((), {4: 0.5, 6: 0.5}),  # depths 3 and 4
    ((6,), {4: 1}),
    ((3,), {5: 1}),  # not 4 or 6, whose ancestor was not drafted
    ((2, 5), {1: 1}),
    ((1, 2), {0: 1}),
  ],
)
@pytest.mark.parametrize('parents', [None, UNEVEN.parents])
def test_only_drafted_tokens_are_accepted(missing, expected, parents):
  tree = UNEVEN if parents is None else DYNAMIC
  valid = ~np.isin(np.arange(tree.size), missing)[None]
  p = jnp.full((1, tree.size, VOCAB), 1 / VOCAB)
  draft = _draft(tree, valid, parents)
  (stop_n,) = np.asarray(SyntheticVerifier(4.5).stop_probs(draft, p))
  assert {int(n): stop_n[n] for n in np.flatnonzero(stop_n)} == expected


@pytest.fixture(scope='module')
def pair():
  return tiny.model(26, seed=0), tiny.draft(26, seed=1)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('shape', 'law'),
  [(3, 'iid'), (TokenTree.branching((2, 1, 2)), 'without_replacement')],
)
def test_the_loop_and_the_engine(pair, shape, law):
  """1 + 1 tokens in every step, and a third one in a quarter of them."""
  target, drafter = pair[0], model_drafter(pair[1], shape, law)
  options = dict(max_new_tokens=48, stop_tokens=[])
  rule, prompts = 'synthetic:2.25', ['abc'] * 16
  out = specsamp.generate(
    target, prompts, drafter=drafter, verifier=rule, **options
  )
  rounds = out.rounds.sum()
  first, second, third = out.num_accepted_per_pos.sum(axis=0)
  assert (first, third) == (rounds, 0)
  # Binomial; independent rows and steps, as their keys are.
  error = (second / rounds - 0.25) / np.sqrt(0.25 * 0.75 / rounds)
  assert rounds > 300 and abs(error) < 4
  assert all(0 <= token < 26 for text in out.tokens for token in text)
  engine = specsamp.Engine(
    target, slots=4, drafter=drafter, verifier=rule, max_length=64
  )
  completions = engine.generate(prompts, **options)
  assert [c.tokens for c in completions] == out.tokens


@pytest.mark.parametrize('tau', [1, 2.25, 5])
def test_a_plan_emits_as_many_tokens(tau):
  """Its α of a length and a draft has this τ, so ms per token are ms / τ."""
  rounds_ms = 4 * 1.5 + 7
  points = speculation.curve(
    speculation.alpha_of(tau, 4), 1.5, lambda gamma: 7, target_ms=6
  )
  (point,) = (point for point in points if point.gamma == 4)
  assert point.tau == pytest.approx(SyntheticVerifier(tau).length)
  assert point.ms_per_token == pytest.approx(rounds_ms / tau)


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('synthetic', "got 'synthetic', expected synthetic:LENGTH"),
    ('synthetic:two', "got 'synthetic:two', expected synthetic:LENGTH"),
    ('synthetic:0.9', 'verifier synthetic:0.9: length: got 0.9, expected at'),
    ('synthetic:nan', 'length: got nan, expected at least 1'),
    ('synthetic:inf', 'length: got inf, expected at most'),
    (
      'synthetic:4.01',
      r'SyntheticVerifier\(length=4.01\): got a draft of 3 tokens, expected at '
      'least 4$',
    ),
  ],
)
def test_lengths_that_no_draft_has(pair, name, message):
  target, drafter = pair[0], model_drafter(pair[1], 3)
  with pytest.raises(UserError, match=message):
    specsamp.generate(
      target, 'abc', drafter=drafter, verifier=name, max_new_tokens=8
    )


def test_claims_of_exactness_refuse_it(pair):
  target, drafter = pair[0], model_drafter(pair[1], 3)
  rule = make('synthetic:3')
  assert not rule.lossless
  check_verifier(rule)  # which claims only distributions of a lossy rule
  message = r'got the verifier SyntheticVerifier\(length=3.0\), which is NOT'
  with pytest.raises(UserError, match=f'^rollouts: {message}'):
    EngineSampler(target, slots=1, drafter=drafter, verifier=rule)
  with pytest.raises(UserError, match=f'^losslessness: {message}'):
    losslessness.check(target, drafter, ['abc'], 'synthetic:3')
