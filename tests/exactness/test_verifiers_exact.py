"""The rules for chains are lossless: every draft is enumerated, in float64.

A row of the batch is one draft. The sum over the drafts of
P(draft) * stop * leave gives the exact law of what a round says; extended by
the target's own law it must be the target's joint law of γ + 1 tokens. The
code is the code of production; only the dtype differs.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specsamp.drafting.draft import Draft, TokenTree
from specsamp.verification import make
from specsamp.verification.token import TokenVerifier

RULES = ('token', 'block')
SHAPES = [(vocab, length) for vocab in (3, 4, 5) for length in (0, 1, 2, 3)]
TOLERANCE = 1e-12


# The tables: laws[i] is float64 [V] * i + [V], the law after each context.


def _normalize(weights):
  return weights / weights.sum(-1, keepdims=True)


def _dense(rng, shape):
  return _normalize(rng.gamma(0.7, size=shape) + 1e-3)


def _with_zeros(rng, shape):
  weights = rng.gamma(0.7, size=shape) * (rng.random(shape) < 0.5)
  keep = rng.integers(shape[-1], size=shape[:-1])
  return _normalize(weights + 0.1 * np.eye(shape[-1])[keep])


def _one_hot(rng, shape):
  return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]


def _pair(kind, rng, shape):
  """The laws p and q of one position, in each context."""
  p, q = _dense(rng, shape), _dense(rng, shape)
  match kind:
    case 'dense':
      return p, q
    case 'zeros':
      return _with_zeros(rng, shape), _with_zeros(rng, shape)
    case 'equal':
      return p, p.copy()
    case 'disjoint':
      split = np.arange(shape[-1]) < shape[-1] // 2
      return _normalize(p * split), _normalize(q * ~split)
    case 'one_hot_p':
      return _one_hot(rng, shape), q
    case 'one_hot_q':
      return p, _one_hot(rng, shape)
    case 'one_hot_both':
      return _one_hot(rng, shape), _one_hot(rng, shape)
    case 'near_equal':
      return p, _normalize(p * (1 + 1e-9 * rng.standard_normal(shape)))
    case 'close':
      return p, _normalize(p + 0.2 * q)


KINDS = (
  'dense',
  'zeros',
  'equal',
  'disjoint',
  'one_hot_p',
  'one_hot_q',
  'one_hot_both',
  'near_equal',
  'close',
)


@dataclasses.dataclass(frozen=True)
class Table:
  """One target, one draft, and where the draft is cut."""

  name: str
  p: list  # γ + 1 arrays; p[i] has shape [V] * (i + 1)
  q: list  # γ arrays
  ends: list  # γ bool arrays [V] * i: nothing is drafted after this context


def _cuts(rng, vocab, length):
  """Where drafts end: at a fixed length, or in contexts chosen at random."""
  for cut in range(length + 1):
    yield (
      f'cut{cut}',
      [np.full((vocab,) * i, i >= cut) for i in range(length)],
    )
  if length:
    yield 'stopping', [rng.random((vocab,) * i) < 0.3 for i in range(length)]


@functools.cache
def _tables(vocab, length):
  rng = np.random.default_rng(100 * vocab + length)
  tables = []
  for kind in KINDS:
    pairs = [_pair(kind, rng, (vocab,) * (i + 1)) for i in range(length + 1)]
    p, q = [pair[0] for pair in pairs], [pair[1] for pair in pairs[:-1]]
    for cut, ends in _cuts(rng, vocab, length):
      tables.append(Table(f'{kind}-{cut}', p, q, ends))
  return tables


def _enumerate(table):
  """All V^γ drafts of a table, a row each, as numpy arrays.

  Returns:
    tokens [B, N], p [B, N, V], q [B, γ, V], valid [B, N], weight [B].
  """
  length = len(table.q)
  vocab = table.p[0].shape[-1]
  drafts = np.indices((vocab,) * length).reshape(length, vocab**length).T
  contexts = [tuple(drafts[:, :i].T) for i in range(length + 1)]
  at = lambda laws, i: np.broadcast_to(
    laws[i][contexts[i]], (len(drafts), *laws[i].shape[i:])
  )
  p = np.stack([at(table.p, i) for i in range(length + 1)], axis=1)
  q = np.zeros((len(drafts), length, vocab))
  weight = np.ones(len(drafts))
  valid = np.ones((len(drafts), length + 1), bool)
  for i in range(length):
    q[:, i] = at(table.q, i)
    # What is never drafted still has a row for each token, so that the
    # weights of the rows that share a drafted prefix sum to its own.
    weight *= np.take_along_axis(q[:, i], drafts[:, i : i + 1], 1)[:, 0]
    valid[:, i + 1] = valid[:, i] & ~at(table.ends, i)
  tokens = np.concatenate([np.zeros((len(drafts), 1)), drafts], axis=1)
  return tokens.astype(np.int32), p, q, valid, weight


@functools.partial(jax.jit, static_argnums=0)
def _stop_and_leave(verifier, draft, p_bnv):
  """stop [B, N] and leave [B, N, V], the latter node by node."""
  batch, size, _ = p_bnv.shape
  leave = [
    verifier.leave_probs(draft, p_bnv, jnp.full((batch,), node, jnp.int32))
    for node in range(size)
  ]
  return verifier.stop_probs(draft, p_bnv), jnp.stack(leave, axis=1)


@dataclasses.dataclass(frozen=True)
class Round:
  """What a verifier does with each draft of a table."""

  table: Table
  tokens: np.ndarray
  valid: np.ndarray
  weight: np.ndarray
  p: np.ndarray
  stop: np.ndarray
  leave: np.ndarray

  @property
  def error(self):
    """The largest error of the joint law of γ + 1 tokens."""
    laws = self.table.p
    vocab = laws[0].shape[-1]
    said = np.zeros(())
    target = np.ones(())
    for i, law in enumerate(laws):
      # What ends with token i + 1, next to what ended before, extended.
      mass = (self.weight * self.stop[:, i])[:, None] * self.leave[:, i]
      ended = np.zeros((vocab**i, vocab))
      context = self.tokens[:, 1 : i + 1] @ vocab ** np.arange(i)[::-1]
      np.add.at(ended, context, mass)
      ended = ended.reshape((vocab,) * (i + 1))
      said = said[..., None] * law + ended
      target = target[..., None] * law
    return np.abs(said - target).max()

  @property
  def expected_tokens(self):
    lengths = np.arange(1, self.stop.shape[1] + 1)
    return (self.weight[:, None] * self.stop * lengths).sum()


def _run(verifier, tables, enumerated=None, dtype=np.float64):
  """The rounds of all tables of one shape, in one call."""
  enumerated = enumerated or [_enumerate(table) for table in tables]
  with jax.enable_x64(True):
    tokens, p, q, valid, _ = (
      jnp.asarray(np.concatenate(part))
      for part in zip(*enumerated, strict=True)
    )
    draft = Draft(
      tokens=tokens,
      q=q.astype(dtype),
      tree=TokenTree.chain(q.shape[1]),
      law='iid',
      valid=valid,
    )
    stop, leave = _stop_and_leave(verifier, draft, p.astype(dtype))
    assert stop.dtype == leave.dtype == dtype
    stop, leave = np.asarray(stop), np.asarray(leave)
  splits = np.cumsum([len(part[0]) for part in enumerated])[:-1]
  return [
    Round(table, tokens, valid, weight, p, stop, leave)
    for table, (tokens, p, _, valid, weight), stop, leave in zip(
      tables,
      enumerated,
      np.split(stop, splits),
      np.split(leave, splits),
      strict=True,
    )
  ]


@functools.cache
def _rounds(rule, vocab, length):
  return _run(make(rule), _tables(vocab, length))


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_says_the_targets_law(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    assert round_.error <= TOLERANCE, round_.table.name


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_stop_and_leave_are_laws(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    name = round_.table.name
    for probs in (round_.stop, round_.leave):
      assert (probs >= 0).all(), name  # and no NaN
      np.testing.assert_allclose(
        probs.sum(-1), 1, rtol=0, atol=TOLERANCE, err_msg=name
      )


@pytest.mark.parametrize(('vocab', 'length'), SHAPES)
@pytest.mark.parametrize('rule', RULES)
def test_never_says_what_the_target_cannot(rule, vocab, length):
  for round_ in _rounds(rule, vocab, length):
    name = round_.table.name
    assert (round_.leave[round_.p == 0] == 0).all(), name
    drafted = np.take_along_axis(
      round_.p[:, :-1], round_.tokens[:, 1:, None], axis=2
    )[..., 0]
    possible = np.cumprod(drafted > 0, axis=1).astype(bool)
    assert (round_.stop[:, 1:][~possible] == 0).all(), name
    assert (round_.stop[~round_.valid] == 0).all(), name


def test_block_never_expects_fewer_tokens_and_sometimes_more():
  gains = []
  for vocab, length in SHAPES:
    rounds = zip(
      _rounds('token', vocab, length),
      _rounds('block', vocab, length),
      strict=True,
    )
    for token, block in rounds:
      gain = block.expected_tokens - token.expected_tokens
      assert gain >= -TOLERANCE, token.table.name
      gains.append(gain)
  assert max(gains) > 1e-2


def test_token_rule_accepts_with_one_less_the_total_variation():
  for round_ in _rounds('token', 5, 1):
    if round_.table.name.endswith('cut1'):
      overlap = np.minimum(round_.table.p[0], round_.table.q[0]).sum()
      assert abs(round_.expected_tokens - 1 - overlap) <= TOLERANCE


@pytest.mark.parametrize('rule', RULES)
def test_a_shorter_draft_is_the_shorter_chain(rule):
  """A row cut at 2 of 3 is judged as a chain of 2, to the last bit or so."""
  longer = {r.table.name: r for r in _rounds(rule, 4, 3)}['close-cut2']
  table = longer.table
  shorter = _run(
    make(rule),
    [
      dataclasses.replace(
        table, p=table.p[:3], q=table.q[:2], ends=table.ends[:2]
      )
    ],
  )[0]
  keep = slice(None, None, 4)  # one of the rows with the same two tokens
  for name in ('stop', 'leave'):
    np.testing.assert_allclose(
      getattr(longer, name)[keep, :3], getattr(shorter, name), atol=1e-15
    )


@pytest.mark.parametrize('rule', RULES)
def test_float32_is_as_good_as_float32_can_be(rule):
  for round_ in _run(make(rule), _tables(4, 3), dtype=np.float32):
    assert round_.error <= 1e-6, round_.table.name
    assert (round_.leave[round_.p == 0] == 0).all(), round_.table.name


# The proof can fail: rules that are wrong in the ways of real code bases.


@dataclasses.dataclass(frozen=True)
class ResidualFromTarget(TokenVerifier):
  """Says a token of p, not of the residual, after a rejection."""

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
  tokens, p, q, valid, weight = _enumerate(tables[0])
  reported = _normalize(q**0.7)
  rounds = _run(make(rule), tables, [(tokens, p, reported, valid, weight)])
  assert rounds[0].error > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_validity_that_looks_at_the_token_is_found_out(rule):
  """Throwing a token away for being improbable: `Draft.valid` forbids it."""
  tables = [t for t in _tables(4, 2) if t.name == 'dense-cut2']
  tokens, p, q, valid, weight = _enumerate(tables[0])
  drafted = np.take_along_axis(q, tokens[:, 1:, None], axis=2)[..., 0]
  valid = np.concatenate([valid[:, :1], drafted > 0.3], axis=1)
  rounds = _run(make(rule), tables, [(tokens, p, q, valid, weight)])
  assert rounds[0].error > 1e-3
