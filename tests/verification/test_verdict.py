"""The drawing that all rules share: refusals, frequencies, rows, greedy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from testing import tiny

from specsamp.decoding.request import Request
from specsamp.drafting import Draft, TokenTree, model_drafter
from specsamp.errors import UserError
from specsamp.verification import VERIFIERS, check_sums, draw_verdict, make

RULES = ('token', 'block')
# One batch and one draft length for most tests: they share a compilation.
BATCH, LENGTH, VOCAB = 4096, 3, 5


def _draft(tokens, q, tree=None, law='iid', valid=None):
  tokens = jnp.asarray(tokens, jnp.int32)
  tree = tree or TokenTree.chain(tokens.shape[1] - 1)
  valid = jnp.ones(tokens.shape, bool) if valid is None else valid
  return Draft(tokens, q, tree=tree, law=law, valid=valid)


def _distributions(seed, *shape, vocab=VOCAB):
  weights = np.random.default_rng(seed).gamma(0.7, size=(*shape, vocab))
  return jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32)


def _random_draft(batch=BATCH, length=LENGTH, seed=0):
  """A draft drawn from its q, and a p, [B, N, V]."""
  q = _distributions(seed, batch, length)
  u = np.random.default_rng(seed + 1).random((batch, length, 1))
  tokens = np.zeros((batch, length + 1), np.int32)
  tokens[:, 1:] = (np.cumsum(q, axis=-1)[..., :-1] < u).sum(-1)
  return _draft(tokens, q), _distributions(seed + 2, batch, length + 1)


def _keys(batch=BATCH, seed=7):
  both = jax.random.split(jax.random.key(seed), 2 * BATCH)
  return both[:batch], both[-batch:]


_jitted = jax.jit(draw_verdict, static_argnums=2)


@pytest.mark.parametrize('rule', RULES)
def test_refuses_a_tree_that_is_no_chain(rule):
  tree = TokenTree((-1, 0, 0))
  draft = _draft(jnp.zeros((2, 3)), _distributions(0, 2, 1), tree)
  message = 'Verifier verifies chains: got a tree of 3 nodes'
  with pytest.raises(ValueError, match=message):
    _jitted(*_keys(2), make(rule), draft, _distributions(1, 2, 3))


@pytest.mark.parametrize(
  ('field', 'shape', 'message'),
  [
    ('p', (2, 3, 5), r'^p: got shape \(2, 3, 5\), expected \(2, 4, 5\)'),
    ('p', (2, 4, 6), r'^draft q: .* \(2, 3, 5\), expected \(2, 3, 6\)'),
    ('p', (4, 5), r'^p: got shape \(4, 5\), expected \[B, N, V\]'),
    ('q', (2, 4, 5), r'^draft q: got shape \(2, 4, 5\), expected \(2, 3, 5\)'),
    ('q', None, '^draft q: got None, expected'),
    ('tokens', (2, 3), r'^draft tokens: got shape \(2, 3\), expected \(2, 4\)'),
    ('valid', (1, 4), r'^draft valid: got shape \(1, 4\), expected \(2, 4\)'),
  ],
)
def test_refuses_shapes_that_do_not_fit(field, shape, message):
  draft, p = _random_draft(2)
  dtype = {'tokens': jnp.int32, 'valid': bool}.get(field, jnp.float32)
  array = None if shape is None else jnp.ones(shape, dtype)
  if field == 'p':
    p = array
  else:
    draft = draft.replace(**{field: array})
  with pytest.raises(ValueError, match=message) as error:
    draw_verdict(*_keys(2), make('token'), draft, p)
  assert '\n' not in str(error.value)


def test_refuses_an_unknown_name():
  message = "^verifier: got 'blok', expected one of token, block"
  with pytest.raises(ValueError, match=message):
    make('blok')


@pytest.mark.parametrize('rule', RULES)
def test_frequencies_are_stop_times_leave(rule):
  """One draft, repeated: the pair (node, token) follows stop * leave."""
  # p and q are close, so that each node is stopped at often.
  p = 0.3 * _distributions(4, 1, LENGTH + 1) + 0.7 / VOCAB
  q = 0.5 * p[:, :-1] + 0.5 * _distributions(5, 1, LENGTH)
  one = _draft([[0, 1, 3, 2]], q)
  repeat = lambda leaf: jnp.repeat(leaf, BATCH, axis=0)
  draft, p = jax.tree.map(repeat, (one, p))
  stop = jax.jit(make(rule).stop_probs)(draft, p)[0]
  node = jnp.arange(BATCH, dtype=jnp.int32) % (LENGTH + 1)
  leave = jax.jit(make(rule).leave_probs)(draft, p, node)[: LENGTH + 1]
  expected = np.asarray(stop[:, None] * leave, np.float64)
  counts = np.zeros_like(expected)
  for seed in range(5):
    verdict = _jitted(*_keys(seed=seed), make(rule), draft, p)
    np.add.at(counts, (verdict.node, verdict.next_token), 1)
  assert (counts[expected == 0] == 0).all()
  seen = expected > 0
  expected = counts.sum() * expected[seen] / expected.sum()
  assert expected.min() > 5
  assert stats.chisquare(counts[seen], expected).pvalue > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_path_and_num_accepted_follow_the_node(rule):
  verdict = _jitted(*_keys(), make(rule), *_random_draft())
  assert set(verdict.node.tolist()) == {0, 1, 2, 3}
  assert (verdict.num_accepted == verdict.node).all()
  paths = np.array([[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1], range(4)])
  np.testing.assert_array_equal(verdict.path, paths[verdict.node])
  for leaf in verdict:
    assert leaf.dtype == jnp.int32
  shapes = [leaf.shape for leaf in verdict]
  assert shapes == [(BATCH,), (BATCH,), (BATCH, 4), (BATCH,)]


@pytest.mark.parametrize('rule', RULES)
def test_a_row_does_not_depend_on_its_batch(rule):
  inputs = (_keys(), *_random_draft())
  whole = _jitted(*inputs[0], make(rule), *inputs[1:])
  rows = jnp.asarray([5, 0, 11])
  take = lambda leaf: leaf[rows]
  keys, draft, p = jax.tree.map(take, inputs)
  part = _jitted(*keys, make(rule), draft, p)
  jax.tree.map(np.testing.assert_array_equal, part, jax.tree.map(take, whole))


@pytest.mark.parametrize('rule', RULES)
def test_the_two_draws_have_their_own_keys(rule):
  draft, p = _random_draft()
  stop, leave = _keys()
  first = _jitted(stop, leave, make(rule), draft, p)
  second = _jitted(stop, jnp.roll(leave, 1), make(rule), draft, p)
  np.testing.assert_array_equal(first.node, second.node)
  assert (first.next_token != second.next_token).any()


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('rest', [0.1, np.nan])
def test_an_invalid_node_is_never_accepted(rule, rest):
  """p = q would accept everything; an invalid node ends it, and emits p."""
  repeat = lambda row: jnp.tile(jnp.asarray(row), (BATCH, 1))
  p = jnp.tile(_distributions(0, 1, LENGTH + 1), (BATCH, 1, 1))
  q = p[:, :-1].at[:, 1:].set(rest)  # what was not drafted is not used
  valid = repeat([True, True, False, True])
  draft = _draft(repeat([0, 1, -1, 10**6]), q, valid=valid)
  verdict = _jitted(*_keys(), make(rule), draft, p)
  assert (verdict.node == 1).all()
  leave = jax.jit(make(rule).leave_probs)(draft, p, verdict.node)
  np.testing.assert_allclose(leave, p[:, 1], rtol=1e-6)


@pytest.mark.parametrize('rule', RULES)
def test_a_token_outside_the_vocabulary_is_never_accepted(rule):
  draft, p = _random_draft()
  draft = draft.replace(tokens=draft.tokens.at[:, 1].set(VOCAB))
  assert (_jitted(*_keys(), make(rule), draft, p).node == 0).all()


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('soft_q', [False, True])
def test_greedy_is_the_argmax(rule, soft_q):
  """One-hot p: the accepted tokens and the next are the argmaxes, exactly."""
  rng = np.random.default_rng(0)
  best = jnp.asarray(rng.integers(3, size=(BATCH, LENGTH + 1)), jnp.int32)
  guess = jnp.asarray(rng.integers(3, size=(BATCH, LENGTH)), jnp.int32)
  p = jax.nn.one_hot(best, VOCAB)
  q = (
    _distributions(2, BATCH, LENGTH) if soft_q else jax.nn.one_hot(guess, VOCAB)
  )
  draft = _draft(jnp.pad(guess, ((0, 0), (1, 0))), q)
  verdict = _jitted(*_keys(), make(rule), draft, p)
  right = jnp.cumprod((guess == best[:, :-1]).astype(jnp.int32), axis=1)
  np.testing.assert_array_equal(verdict.node, right.sum(axis=1))
  np.testing.assert_array_equal(
    verdict.next_token,
    jnp.take_along_axis(best, verdict.node[:, None], axis=1)[:, 0],
  )


@pytest.mark.parametrize('rule', RULES)
def test_no_temporary_as_large_as_p(rule):
  """The vocabulary is read where it is, not copied [B, N, V]."""
  batch, length, vocab = 4, 5, 20_000
  verifier = make(rule)

  @functools.partial(jax.jit, static_argnums=0)
  def both(verifier, draft, p):
    stop = verifier.stop_probs(draft, p)
    node = jnp.argmax(stop, axis=1).astype(jnp.int32)
    return stop, verifier.leave_probs(draft, p, node)

  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  draft = _draft(jnp.zeros((batch, length + 1)), shape(batch, length, vocab))
  p = shape(batch, length + 1, vocab)
  analysis = both.lower(verifier, draft, p).compile().memory_analysis()
  assert analysis.temp_size_in_bytes < 3 * batch * vocab * 4


@pytest.mark.parametrize('rule', VERIFIERS)
def test_the_rules_probabilities_sum_to_1(rule):
  verifier = make(rule)
  tree = TokenTree.chain(2) if rule in RULES else TokenTree.branching((2, 1))
  for law in sorted(verifier.accepts):
    check_sums(verifier, law, tree, 8)


@dataclasses.dataclass(frozen=True)
class _Wrong:
  """The token rule with one of its probabilities changed."""

  change: str
  accepts = frozenset({'iid'})
  lossless = True

  def stop_probs(self, draft, p_bnv):
    stop_bn = make('token').stop_probs(draft, p_bnv)
    match self.change:
      case 'too little':
        return stop_bn * 0.9
      case 'too much':
        return stop_bn.at[:, -1].add(0.1)
      case 'negative':
        return stop_bn.at[:, 0].add(-2.0).at[:, 1].add(2.0)
      case 'no number':
        return stop_bn * jnp.nan
    return stop_bn

  def leave_probs(self, draft, p_bnv, node_b):
    leave_bv = make('token').leave_probs(draft, p_bnv, node_b)
    return leave_bv / 2 if self.change == 'leaves half' else leave_bv


@pytest.mark.parametrize(
  'change', ['', 'too little', 'too much', 'negative', 'no number',
             'leaves half'],
)  # fmt: skip
def test_a_rule_of_ones_own_that_is_no_distribution_is_refused(change):
  target, draft = tiny.model(11, 0), tiny.model(11, 1)
  call = lambda: Request.make(
    target, [[1, 2]], model_drafter(draft, 2), _Wrong(change), max_new_tokens=2
  )
  if not change:
    call()
    return
  name = 'leave_probs' if change == 'leaves half' else 'stop_probs'
  with pytest.raises(UserError, match=f'_Wrong, .*{name} are not distr'):
    call()
