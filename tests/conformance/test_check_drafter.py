"""`check_drafter` refuses wrong drafters and no correct one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from testing import tiny

from specsamp.conformance import check_drafter, drafters
from specsamp.drafting import (
  Drafter,
  LanguageModelDrafter,
  TokenTree,
  candidates,
  lookahead_drafter,
  model_drafter,
)
from specsamp.drafting.drafter import root_of
from specsamp.errors import UserError
from specsamp.sampling import draw

pytestmark = pytest.mark.integration

VOCAB = 11
TREE = TokenTree.branching((3, 2))


@pytest.fixture(scope='module')
def target():
  return tiny.model(VOCAB, 0, num_layers=1)


@pytest.fixture(scope='module')
def draft():
  return tiny.draft(VOCAB, 1)


@pytest.mark.parametrize('law', ['without_replacement', 'top_plus_one'])
def test_a_tree_of_draws(target, draft, law):
  check_drafter(model_drafter(draft, TREE, law), target)


def test_a_drafter_with_memory(target):
  """Lookahead guesses by earlier rounds."""
  drafter = lookahead_drafter(TokenTree.chain(2), window=2)
  check_drafter(drafter, target, reads_text_alone=False)
  with pytest.raises(UserError, match='differ from those after the same text'):
    check_drafter(drafter, target)


@struct.dataclass
class Fixed(Drafter):
  """Draws a chain from one q, with a fault."""

  fault: str = struct.field(pytree_node=False)
  # It drafts only if this divides the length.
  every: int = struct.field(pytree_node=False, default=1)
  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(3))
  law = 'iid'

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    return jnp.zeros(len(length_b))

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    batch, depth = len(length_b), self.tree.depth
    weight_v = jnp.arange(1, VOCAB + 1, dtype=jnp.float32)
    q_bgv = jnp.tile(weight_v / weight_v.sum(), (batch, depth, 1))
    drawn_bgv = q_bgv
    round_b = length_b - 1
    if self.fault == 'the drafts of two rounds':
      round_b = jnp.zeros_like(round_b)
    keys_b = draw.stream_keys(keys_b, round_b, draw.Stream.DRAFT)
    if self.fault == 'the drafts of two rows':
      keys_b = jnp.broadcast_to(keys_b[:1], keys_b.shape)
    if self.fault == 'state':  # q depends on the number of rounds
      q_bgv = jnp.where(state[:, None, None] > 2, 1 / VOCAB, q_bgv)
      drawn_bgv = q_bgv
    uniform_bg = draw.uniforms(keys_b, depth)
    if self.fault == 'q of some texts':  # too flat in one half, too sharp
      is_odd_b = tokens_bs[:, 0] % 2 == 1
      drawn_bgv = jnp.where(is_odd_b[:, None, None], q_bgv**0.01, q_bgv**3)
    if self.fault == 'two tokens of a draft':
      uniform_bg = jnp.broadcast_to(uniform_bg[:, :1], uniform_bg.shape)
    tokens_bg = jax.vmap(draw.inverse_cdf, (1, 1), 1)(uniform_bg, drawn_bgv)
    if self.fault == 'most probable':
      tokens_bg = jnp.argmax(q_bgv, axis=-1).astype(jnp.int32)
    if self.fault == 'q':
      q_bgv = jnp.sqrt(q_bgv) / jnp.sqrt(q_bgv).sum(axis=-1, keepdims=True)
    valid_b1 = length_b[:, None] % self.every == 0
    draft = candidates.draft_of(
      self.tree,
      self.law,
      root_of(tokens_bs, length_b),
      tokens_bg,
      jnp.broadcast_to(valid_b1, tokens_bg.shape),
      jnp.where(valid_b1[:, :, None], q_bgv, jnp.nan),
    )
    return draft, state + 1


@struct.dataclass
class OwnWords(Drafter):
  """Draws from the token frequencies; reports them raised to a power."""

  power: int = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(2))
  law = 'iid'

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    slots_s = jnp.arange(tokens_bs.shape[1], dtype=jnp.int32)
    is_text_bs = slots_s[None, :] < length_b[:, None]
    count = lambda tokens_s, is_text_s: (
      jnp.zeros(VOCAB).at[tokens_s].add(is_text_s)
    )
    counts_bv = jax.vmap(count)(tokens_bs, is_text_bs.astype(jnp.float32))
    reported_bv = counts_bv**self.power
    reported_bv = reported_bv / reported_bv.sum(axis=1, keepdims=True)
    keys_b = draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)
    uniform_bg = draw.uniforms(keys_b, self.tree.depth)
    tokens_bg = jax.vmap(draw.inverse_cdf, (1, None), 1)(uniform_bg, counts_bv)
    draft = candidates.draft_of(
      self.tree,
      self.law,
      root_of(tokens_bs, length_b),
      tokens_bg,
      jnp.ones(tokens_bg.shape, bool),
      jnp.repeat(reported_bv[:, None], self.tree.depth, axis=1),
    )
    return draft, state


def test_a_q_computed_from_the_text(target):
  """In a text without repetition both powers give the same uniform q."""
  check_drafter(OwnWords(1), target)
  with pytest.raises(UserError, match='not drawn from the q that it reports'):
    check_drafter(OwnWords(2), target)


@pytest.mark.parametrize('every', [1, 2])
def test_a_correct_user_defined_drafter(target, every):
  check_drafter(Fixed('', every), target)


def test_a_q_that_depends_on_rounds(target):
  """It is found although some rows have no draft and no q."""
  with pytest.raises(UserError, match='differ from those after the same text'):
    check_drafter(Fixed('state', every=2), target)


def test_too_few_draws(target):
  with pytest.raises(UserError, match='drafted 0 tokens, too few to test'):
    check_drafter(Fixed('q', every=999), target)


@pytest.mark.parametrize(
  'fault',
  [
    'two tokens of a draft',
    'the drafts of two rounds',
    'the drafts of two rows',
  ],
)
def test_draws_that_are_not_independent(target, fault):
  line = f'Fixed: {fault} are not independent draws: p = '
  with pytest.raises(UserError, match=line):
    check_drafter(Fixed(fault), target)


@pytest.mark.parametrize('fault', ['q', 'q of some texts', 'most probable'])
def test_draws_from_another_q_than_the_reported_one(target, fault):
  """The wrong q is reported although it also makes two rounds alike."""
  line = 'Fixed: its tokens are not drawn from the q that it reports: '
  with pytest.raises(UserError, match=line):
    check_drafter(Fixed(fault), target)


def test_ranks_of_independent_draws():
  """A tenth of 300 tables has a p below 0.1."""
  rng = np.random.default_rng(0)
  ranks = lambda: rng.random((4, 100)).argsort(axis=0) / 4
  p_of = lambda: drafters._p_of_independent(
    ranks(), ranks(), drafters._RANK_SCALE
  )[0]
  share = np.mean([p_of() < 0.1 for _ in range(300)])
  assert 0.05 < share < 0.15


@struct.dataclass
class Forgetful(LanguageModelDrafter):
  """Keeps the first path in its cache, not the accepted one."""

  def commit(self, state, draft, verdict, root_b, scored):
    return state


def test_a_wrong_state_after_a_round(target, draft):
  right = model_drafter(draft, TokenTree.branching((3, 2, 1)))
  fields = [field.name for field in dataclasses.fields(right)]
  drafter = Forgetful(**{name: getattr(right, name) for name in fields})
  with pytest.raises(UserError, match='commit leaves a state of another text'):
    check_drafter(drafter, target)
