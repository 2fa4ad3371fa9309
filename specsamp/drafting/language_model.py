"""A smaller language model drafts: Chen et al. 2302.01318, sections 4 to 6.

On a chain it is sampled γ times; on a tree level by level, all nodes of a level
in one pass (Yang et al. 2401.06706, section 3).
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.data.tokenizers import Tokenizer
from specsamp.drafting import candidates, growth
from specsamp.drafting.draft import DynamicTree, Law, TokenTree
from specsamp.drafting.drafter import (
  CATCH_UP,
  Drafter,
  check_fits,
  root_of,
)
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, kv_cache
from specsamp.sampling import coupling, draw
from specsamp.utils import flow


@struct.dataclass
class LanguageModelDrafter(Drafter):
  """Samples a tree from a model with the target's tokenizer.

  Its state is the model's cache. What it holds when a round begins: the text
  up to the root, but perhaps not the token before the root, for leaves are
  never fed. So a round's first pass takes two tokens. While it drafts, the
  internal nodes stand behind the root in their order in `tree.internal`.

  Attributes:
    params: of the draft model.
    transformer: the draft model, static.
    tokenizer: its tokenizer, static.
    tree: numbered breadth first, static.
    law: how the candidates of a node are chosen, static; deterministic ones
      are the most probable.
    coupled: whether drafts run the same races as a `GumbelVerifier`'s target;
      the law is then deterministic. Static.
    least_confidence: [], of the path so far; when those of all rows are below
      it a chain is not drafted on, and what would stand there is noise. None
      is always.
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)
  tokenizer: Tokenizer = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False, default='iid')
  coupled: bool = struct.field(pytree_node=False, default=False)
  least_confidence: jax.Array | None = None
  reads_features: ClassVar[bool] = False

  def check(self, target: LanguageModel, batch: int) -> None:
    if self.tokenizer != target.tokenizer:
      raise UserError(
        'draft and target must share a tokenizer; got '
        f'{self.tokenizer.vocab_size} and {target.tokenizer.vocab_size} pieces'
        ' of different tokenizers; LanguageModel.for_target makes a draft '
        'with fewer or more pieces fit'
      )
    got = self.transformer.config.vocab_size
    expected = target.config.vocab_size
    if got != expected:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has {got} '
        f'rows, the target {expected}; LanguageModel.for_target makes it fit'
      )
    check_fits(self.params, self.tree, target)

  def with_params(self, params=None, target=None):
    return self if params is None else self.replace(params=params)

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    variables = {'params': self.params}
    # A dynamic tree is chosen from more nodes than it has.
    capacity += max(0, self.tree.num_fed - self.tree.size)
    cache = self.transformer.init_cache(
      self.params, tokens_bp.shape[0], capacity
    )
    return self.transformer.apply(variables, tokens_bp, cache=cache).cache

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b = length_b - 1
    root_b1 = root_of(tokens_bs, length_b)
    round_keys_b = draw.stream_keys(keys_b, root_b, draw.Stream.DRAFT)
    uniform_bk2 = draw.uniforms(round_keys_b, self.tree.size - 1)
    handicap_bgv = None
    if self.coupled:
      at_g = 1 + jnp.arange(self.tree.depth, dtype=jnp.int32)
      handicap_bgv = coupling.handicaps(
        keys_b,
        root_b[:, None] + at_g[None, :],
        self.transformer.config.vocab_size,
      )
    cache, logits_b1v = self._feed_root(state, tokens_bs, length_b)
    grow = self._grow_chain if self.tree.is_chain else self._grow_tree
    return grow(
      root_b1, cache, logits_b1v, root_b, sampling, uniform_bk2, handicap_bgv
    )

  def commit(self, state, draft, verdict, root_b, scored):
    if self.tree.is_chain:
      return state  # the nodes stand where the text would have them
    if isinstance(self.tree, DynamicTree):  # in the order of the draft's
      kept_bt = jnp.maximum(verdict.path[:, 1:-1], 0)
      return kv_cache.keep_path(state, root_b, kept_bt)
    # The last level was not fed; a leaf above it may be the text's last token
    # but one, which the next round feeds.
    rank_n = np.zeros(self.tree.size, np.int32)
    rank_n[list(self.tree.internal)] = np.arange(len(self.tree.internal))
    fed_bt = jnp.asarray(rank_n)[jnp.maximum(verdict.path[:, 1:-1], 0)]
    return kv_cache.keep_path(state, root_b, fed_bt)

  def catch_up(self, state, tokens_bs, length_b, behind, features_bwf):
    # The token before the root of then may not have been fed; that of now is
    # fed when a round begins.
    first_b = jnp.maximum(length_b - 2 - behind, 0)
    last_b = jnp.maximum(length_b - 2, 0)
    at_t = jnp.arange(CATCH_UP, dtype=jnp.int32)

    def read(carry):
      done, cache = carry
      # No further than the text of a row that came later.
      start_b = jnp.minimum(first_b + done, last_b)
      positions_bt = start_b[:, None] + at_t[None, :]
      tokens_bt = jnp.take_along_axis(
        tokens_bs, positions_bt, axis=1, mode='clip'
      )
      cache = self.transformer.apply(
        {'params': self.params}, tokens_bt, positions_bt, cache
      ).cache
      return done + CATCH_UP, cache

    return jax.lax.while_loop(
      lambda carry: carry[0] < behind, read, (jnp.int32(0), state)
    )[1]

  def _feed_root(self, cache, tokens_bs, length_b):
    """Feeds the root and the token before it; logits [B, 1, V] at the root.

    A row of one token has none before: it is fed [root, what comes next], and
    the second, unseen by the first, is written over by the next pass.
    """
    before_b = jnp.maximum(length_b - 2, 0)
    positions_b2 = before_b[:, None] + jnp.arange(2, dtype=jnp.int32)[None, :]
    tokens_b2 = jnp.take_along_axis(tokens_bs, positions_b2, axis=1)
    return self._feed(cache, tokens_b2, positions_b2, length_b - 1 - before_b)

  def _feed(self, cache, tokens_bt, positions_bt, last_b):
    """Feeds T tokens; logits [B, 1, V] at the one of index `last`."""
    variables = {'params': self.params}
    out = self.transformer.apply(variables, tokens_bt, positions_bt, cache)
    hidden = jnp.take_along_axis(out.hidden, last_b[:, None, None], axis=1)
    return out.cache, self.transformer.apply(variables, hidden, method='logits')

  def _feed_next(self, cache, tokens_b2, position_b1):
    """Feeds the second of two tokens, that of this position."""

    def alone(cache, tokens_b2, position_b1):
      zero_b = jnp.zeros_like(position_b1[:, 0])
      return self._feed(cache, tokens_b2[:, 1:], position_b1, zero_b)

    def both(cache, tokens_b2, position_b1):
      positions_b2 = jnp.concatenate([position_b1 - 1, position_b1], axis=1)
      one_b = jnp.ones_like(position_b1[:, 0])
      return self._feed(cache, tokens_b2, positions_b2, one_b)

    # A TPU multiplies one token on its vector unit, which reads the weights in
    # an order of its own and so wants a copy of them; two it does not. For GPUs
    # XLA does the same.
    return jax.lax.platform_dependent(
      cache, tokens_b2, position_b1, cpu=alone, default=both
    )

  def _grow_chain(
    self,
    root_b1,
    cache,
    logits_b1v,
    root_b,
    sampling,
    uniform_bk2,
    handicap_bgv,
  ):
    def step(carry, inputs):
      if self.least_confidence is None:
        carry = advance(carry, inputs)
      else:
        goes_on = (carry[3] >= self.least_confidence).any()
        carry = flow.cond_in_place(
          goes_on, lambda carry: advance(carry, inputs), carry
        )
      return carry, carry[-1]

    def advance(carry, inputs):
      cache, tokens_b2, position_b1, path_b, _ = carry
      uniform_b2, handicap_bv = inputs
      cache, logits_b1v = self._feed_next(cache, tokens_b2, position_b1)
      picked = pick(logits_b1v, uniform_b2, handicap_bv)
      tokens_b2 = jnp.concatenate([tokens_b2[:, 1:], picked[0]], axis=1)
      return cache, tokens_b2, position_b1 + 1, path_b * prob(picked), picked

    def prob(picked):
      token_b1, _, q_b1v = picked
      return jnp.take_along_axis(q_b1v[:, 0], token_b1, axis=1)[:, 0]

    def pick(logits_b1v, uniform_b2, handicap_bv):
      token_b11, valid_b11, q_b1v = candidates.pick(
        logits_b1v,
        uniform_b2[:, None, None],
        sampling,
        self.law,
        handicap_bv,
        is_confidence=self.least_confidence is not None,
      )
      return token_b11[:, 0], valid_b11[:, 0], q_b1v

    handicap_gbv = handicap_bgv
    if self.coupled:
      handicap_gbv = jnp.swapaxes(handicap_bgv, 0, 1)
    # Of None, which has no leaves, these are None.
    one, rest = (
      jax.tree.map(lambda array, at=at: array[at], handicap_gbv)
      for at in (0, slice(1, None))
    )
    first = pick(logits_b1v, uniform_bk2[:, 0], one)
    (cache, *_), others = jax.lax.scan(
      step,
      (
        cache,
        jnp.concatenate([root_b1, first[0]], axis=1),
        root_b[:, None] + 1,
        prob(first),
        first,
      ),
      (jnp.moveaxis(uniform_bk2[:, 1:], 1, 0), rest),
    )
    tokens, valid, q = (
      jnp.concatenate([a, jnp.swapaxes(b[:, :, 0], 0, 1)], axis=1)
      for a, b in zip(first, others, strict=True)
    )
    return candidates.draft_of(
      self.tree, self.law, root_b1, tokens, valid, q
    ), cache

  def _grow_tree(
    self,
    root_b1,
    cache,
    logits_b1v,
    root_b,
    sampling,
    uniform_bk2,
    handicap_bgv,
  ):
    def feed(cache, level):
      out = self.transformer.apply(
        {'params': self.params},
        level.tokens,
        cache=cache,
        **level.attention(root_b, cache.capacity),
      )
      return out.cache, out.logits

    if not isinstance(self.tree, DynamicTree):
      return growth.grow(
        self.tree, self.law, sampling, root_b1, uniform_bk2, logits_b1v, feed,
        cache, handicap_bgv,
      )  # fmt: skip
    draft, cache, number_bn = growth.grow_dynamic(
      self.tree, sampling, root_b1, logits_b1v, feed, cache
    )
    # More was read, and in another order: each node to its slot.
    return draft, kv_cache.keep_path(cache, root_b, number_bn[:, 1:])


def model_drafter(
  draft: LanguageModel,
  shape: int | TokenTree,
  law: Law = 'iid',
  coupled: bool = False,
) -> LanguageModelDrafter:
  """A drafter that drafts from a language model.

  Args:
    draft: the model.
    shape: a draft length, or a tree numbered breadth first.
    law: how the candidates of a node are chosen: `iid`, `without_replacement`,
      `top_plus_one` (the most probable ones and one draw) or `deterministic`
      (the most probable ones).
    coupled: for the verifier `gumbel`: drafts run the races of the target;
      the law must be `deterministic`.

  Raises:
    UserError: a draft length below 1 (`NoDrafter` is the drafter that drafts
      nothing), a tree that is not numbered breadth first, an unknown law, or
      a coupled drafter of another law than `deterministic`.
  """
  shape = candidates.check_shape(shape, law)
  if coupled and law != 'deterministic':
    raise UserError(f'a coupled drafter is deterministic, got law {law!r}')
  if coupled and isinstance(shape, DynamicTree):
    raise UserError(
      'a coupled drafter takes the winners of races, not the most probable '
      'tokens: got a dynamic tree'
    )
  return LanguageModelDrafter(
    params=draft.params,
    transformer=draft.transformer,
    tokenizer=draft.tokenizer,
    tree=shape,
    law=law,
    coupled=coupled,
  )
