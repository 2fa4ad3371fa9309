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
  model_drafter,
)
from specsamp.drafting.drafter import root_of
from specsamp.drafting.trained import trained_drafter
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


@pytest.mark.parametrize(
  'law',
  ['without_replacement', pytest.param('top_plus_one', marks=pytest.mark.slow)],
)
def test_a_tree_of_draws(target, draft, law):
  check_drafter(model_drafter(draft, TREE, law), target)


@pytest.mark.extended
def test_levels_that_depend_on_drawn_tokens(target):
  trained = tiny.published(target, 'dspark')
  drafter = trained_drafter(trained, target, TREE, 'without_replacement')
  check_drafter(drafter, target)


@struct.dataclass
class Fixed(Drafter):
  """Draws a chain from one q, with a fault."""

  fault: str = struct.field(pytree_node=False)
  # It drafts only if this divides the length.
  every: int = struct.field(pytree_node=False, default=1)
  tree: TokenTree = struct.field(pytree_node=False, default=TokenTree.chain(3))
  law = 'iid'

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    return jnp.zeros(len(length_b))

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    batch, depth = len(length_b), self.tree.depth
    weight_v = jnp.arange(1, VOCAB + 1, dtype=jnp.float32)
    q_bgv = jnp.tile(weight_v / weight_v.sum(), (batch, depth, 1))
    drawn_bgv = q_bgv
    round_b = length_b - 1
    if self.fault == 'two rounds':
      round_b = jnp.zeros_like(round_b)
    keys_b = draw.stream_keys(keys_b, round_b, draw.Stream.DRAFT)
    if self.fault == 'two rows':
      keys_b = jnp.broadcast_to(keys_b[:1], keys_b.shape)
    if self.fault == 'keys':  # the same draws from a state, whatever the keys
      keys_b = draw.row_keys(jnp.arange(batch) + length_b)
    if self.fault == 'state':  # q depends on the number of rounds
      q_bgv = jnp.where(state[:, None, None] > 2, 1 / VOCAB, q_bgv)
      drawn_bgv = q_bgv
    uniform_bg = draw.uniforms(keys_b, depth)
    if self.fault == 'q of some texts':  # too flat in one half, too sharp
      is_odd_b = tokens_bs[:, 0] % 2 == 1
      drawn_bgv = jnp.where(is_odd_b[:, None, None], q_bgv**0.01, q_bgv**3)
    if self.fault == 'q of repetitive texts':
      slots_s = jnp.arange(tokens_bs.shape[1], dtype=jnp.int32)
      is_text_bs = slots_s[None, :] < length_b[:, None]
      text_bs = jnp.where(is_text_bs, tokens_bs, -1)
      counts_bv = jax.nn.one_hot(text_bs, VOCAB).sum(axis=1)
      drawn_bgv = jnp.repeat(counts_bv[:, None], depth, axis=1)
      q_bgv = drawn_bgv**2 / (drawn_bgv**2).sum(axis=-1, keepdims=True)
    if self.fault == 'two tokens of a draft':
      uniform_bg = jnp.broadcast_to(uniform_bg[:, :1], uniform_bg.shape)
    tokens_bg = jax.vmap(draw.inverse_cdf, (1, 1), 1)(uniform_bg, drawn_bgv)
    if self.fault == 'most probable':
      tokens_bg = jnp.argmax(q_bgv, axis=-1).astype(jnp.int32)
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


def test_a_correct_user_defined_drafter(target):
  check_drafter(Fixed('', every=2), target)
  check_drafter(Fixed('state', every=2), target, reads_text_alone=False)


@pytest.mark.parametrize(
  ('fault', 'every', 'line'),
  [
    ('two tokens of a draft', 1, 'two tokens of a draft are not independent'),
    ('two rounds', 1, 'the drafts of two rounds are not independent draws'),
    ('two rows', 1, 'the drafts of two rows are not independent draws'),
    # The wrong q is reported although it also makes two rounds alike.
    ('q of some texts', 1, 'not drawn from the q that it reports: p = '),
    ('q of repetitive texts', 1, 'not drawn from the q that it reports: p = '),
    ('keys', 1, 'not drawn from the q that it reports: p = '),
    ('most probable', 1, 'not drawn from the q that it reports: p = '),
    # It is found although some rows have no draft and no q.
    ('state', 2, 'differ from those after the same text'),
    ('state', 999, 'drafted 0 tokens, too few to test'),
  ],
)
def test_wrong_drafters(target, fault, every, line):
  with pytest.raises(UserError, match=f'^drafter Fixed: .*{line}'):
    check_drafter(Fixed(fault, every), target)


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
