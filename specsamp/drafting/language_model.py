"""A smaller language model drafts: Chen et al. 2302.01318, sections 4 to 6.

On a chain the model is sampled γ times. On a tree it is sampled level by level,
all nodes of a level in one pass (Yang et al. 2401.06706, section 3).
"""

from typing import Any

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
  spans,
  tokens_from,
)
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, kv_cache, quantized
from specsamp.utils import flow


@struct.dataclass
class LanguageModelDrafter(Drafter):
  """Drafter that samples a chain or tree from a smaller language model.

  Its state is the model's cache. When a round begins, the cache holds the text
  before the root, but perhaps not that text's last token, because leaves are
  never fed. So the first pass of a round takes two tokens. In a round the
  internal nodes come after the root, in the order of `tree.internal`.

  Attributes:
    params: the draft model's parameters.
    transformer: the draft model, static.
    tokenizer: its tokenizer, static.
    tree: numbered breadth first, or dynamic; static.
    law: how the candidates of a node are chosen, static.
    coupled: True if drafts run the same random races as the target does with
      `GumbelVerifier`. The law is then `deterministic`. Static.
    least_confidence: see `growth.grow`.
    of_target: see `model_drafter`, static.
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)
  tokenizer: Tokenizer = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False, default='iid')
  coupled: bool = struct.field(pytree_node=False, default=False)
  least_confidence: jax.Array | None = None
  of_target: bool = struct.field(pytree_node=False, default=False)

  def check(self, target: LanguageModel, batch: int) -> None:
    rows, target_rows = (
      self.transformer.config.vocab_size,
      target.config.vocab_size,
    )
    if self.tokenizer != target.tokenizer or rows != target_rows:
      raise UserError(
        'draft and target must share a tokenizer and a vocabulary; got '
        f'{self.tokenizer.vocab_size} and {target.tokenizer.vocab_size} pieces'
        f', {rows} and {target_rows} rows; LanguageModel.for_target makes a '
        'draft with fewer or more pieces fit, translated_for any other one'
      )
    check_fits(self.params, self.tree, target)

  def with_params(self, params=None, target=None):
    if params is None and self.of_target and target is not None:
      params = {name: target[name] for name in self.params}
      if kind := quantized.kind_of(self.params):
        params = quantized.quantize(params, kind)
    return self if params is None else self.replace(params=params)

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    # A dynamic tree is chosen from more nodes than it has.
    capacity += max(0, self.tree.num_fed - self.tree.size)
    batch = tokens_bp.shape[0]
    return self.transformer.init_cache(self.params, batch, capacity)

  resume = Drafter.resume

  def prefill(self, state, tokens_bc, features_bcf, start_b, length_b):
    positions_bc = spans(start_b, tokens_bc.shape[1])
    return self._apply(tokens_bc, positions_bc, state).cache

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b = length_b - 1
    root_b1 = root_of(tokens_bs, length_b)
    num_racing = self.transformer.config.vocab_size if self.coupled else None
    numbers = candidates.random_numbers(self.tree, keys_b, root_b, num_racing)
    # A row of one token has no token before the root and is fed [root, any
    # token]. The first does not see the second, which the next pass overwrites.
    before_b = jnp.maximum(length_b - 2, 0)
    cache, logits_b1v = self._feed(
      state,
      tokens_from(tokens_bs, before_b, 2),
      spans(before_b, 2),
      root_b - before_b,
    )
    if self.tree.is_chain:
      return self._grow_chain(
        root_b1, cache, logits_b1v, root_b, sampling, numbers
      )

    def feed(cache, level):
      where = level.attention(root_b, cache.capacity)
      out = self._apply(level.tokens, cache=cache, **where)
      return out.cache, out.logits

    if isinstance(self.tree, DynamicTree):
      draft, cache, number_bn = growth.grow_dynamic(
        self.tree, sampling, root_b1, logits_b1v, feed, cache
      )
      # More nodes were read, in another order: moves each to its slot.
      return draft, kv_cache.keep_path(cache, root_b, number_bn[:, 1:])
    return growth.grow(
      self.tree, self.law, sampling, root_b1, numbers, logits_b1v, feed, cache
    )

  def commit(self, state, draft, verdict, root_b, scored):
    if self.tree.is_chain:
      return state  # the nodes are in the slots of accepted tokens already
    path_bt = jnp.maximum(verdict.path[:, 1:-1], 0)
    if not isinstance(self.tree, DynamicTree):
      # Leaves were not fed. If the last token but one of the text is a leaf,
      # the next round feeds it.
      number_n = np.zeros(self.tree.size, np.int32)
      number_n[list(self.tree.internal)] = np.arange(len(self.tree.internal))
      path_bt = jnp.asarray(number_n)[path_bt]
    return kv_cache.keep_path(state, root_b, path_bt)

  def catch_up(self, state, tokens_bs, length_b, behind):
    """Returns the cache after `behind` rounds in which nothing was drafted.

    A row inserted after some of these rounds reads older tokens again.
    """
    # The token before the first of these roots may not have been fed. The
    # present root is fed when the next round begins.
    first_b = jnp.maximum(length_b - 2 - behind, 0)
    last_b = jnp.maximum(length_b - 2, 0)

    def read(carry):
      done, cache = carry
      start_b = jnp.minimum(first_b + done, last_b)
      tokens_bt = tokens_from(tokens_bs, start_b, CATCH_UP)
      cache = self._apply(tokens_bt, spans(start_b, CATCH_UP), cache).cache
      return done + CATCH_UP, cache

    _, cache = jax.lax.while_loop(
      lambda carry: carry[0] < behind, read, (jnp.int32(0), state)
    )
    return cache

  def _apply(self, *args, **kwargs):
    return self.transformer.apply({'params': self.params}, *args, **kwargs)

  def _feed(self, cache, tokens_bt, positions_bt, last_b):
    """Feeds T tokens; returns the cache and the logits [B, 1, V] at `last`."""
    out = self._apply(tokens_bt, positions_bt, cache)
    hidden = jnp.take_along_axis(out.hidden, last_b[:, None, None], axis=1)
    return out.cache, self._apply(hidden, method='logits')

  def _feed_second(self, cache, tokens_b2, position_b1):
    """Feeds the second of two tokens, whose position is given; see `_feed`."""

    def alone(cache, tokens_b2, position_b1):
      zero_b = jnp.zeros_like(position_b1[:, 0])
      return self._feed(cache, tokens_b2[:, 1:], position_b1, zero_b)

    def both(cache, tokens_b2, position_b1):
      positions_b2 = jnp.concatenate([position_b1 - 1, position_b1], axis=1)
      one_b = jnp.ones_like(position_b1[:, 0])
      return self._feed(cache, tokens_b2, positions_b2, one_b)

    # A TPU multiplies one token on its vector unit, which reads the weights in
    # another order and so needs a copy of them; for two tokens it does not.
    # XLA for GPUs does the same.
    return jax.lax.platform_dependent(
      cache, tokens_b2, position_b1, cpu=alone, default=both
    )

  def _grow_chain(self, root_b1, cache, logits_b1v, root_b, sampling, numbers):
    """Drafts token by token; returns the draft and the cache."""

    def pick(logits_b1v, uniform_b2, handicap_bv):
      token_b11, valid_b11, q_b1v = candidates.pick(
        logits_b1v,
        uniform_b2[:, None, None],
        sampling,
        self.law,
        None if handicap_bv is None else handicap_bv[:, None],
        is_confidence=self.least_confidence is not None,
      )
      return token_b11[:, 0], valid_b11[:, 0], q_b1v

    def prob(picked):
      token_b1, _, q_b1v = picked
      return jnp.take_along_axis(q_b1v[:, 0], token_b1, axis=1)[:, 0]

    def advance(carry, inputs):
      cache, tokens_b2, position_b1, path_b, _ = carry
      uniform_b2, handicap_bv = inputs
      cache, logits_b1v = self._feed_second(cache, tokens_b2, position_b1)
      picked = pick(logits_b1v, uniform_b2, handicap_bv)
      tokens_b2 = jnp.concatenate([tokens_b2[:, 1:], picked[0]], axis=1)
      return cache, tokens_b2, position_b1 + 1, path_b * prob(picked), picked

    def step(carry, inputs):
      if self.least_confidence is None:
        carry = advance(carry, inputs)
      else:
        path_b = carry[3]
        carry = flow.cond_in_place(
          (path_b >= self.least_confidence).any(),
          lambda carry: advance(carry, inputs),
          carry,
        )
      return carry, carry[-1]

    inputs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), numbers)
    first = pick(logits_b1v, *jax.tree.map(lambda x: x[0], inputs))
    tokens_b2 = jnp.concatenate([root_b1, first[0]], axis=1)
    (cache, *_), others = jax.lax.scan(
      step,
      (cache, tokens_b2, root_b[:, None] + 1, prob(first), first),
      jax.tree.map(lambda x: x[1:], inputs),
    )
    tokens, valid, q = (
      jnp.concatenate([a, jnp.swapaxes(b[:, :, 0], 0, 1)], axis=1)
      for a, b in zip(first, others, strict=True)
    )
    return candidates.draft_of(
      self.tree, self.law, root_b1, tokens, valid, q
    ), cache


def model_drafter(
  draft: LanguageModel,
  shape: int | TokenTree,
  law: Law = 'iid',
  coupled: bool = False,
  of_target: bool = False,
) -> LanguageModelDrafter:
  """Returns a drafter that drafts from a language model.

  Args:
    draft: the draft model.
    shape: a draft length, or a tree numbered breadth first.
    law: how the candidates of a node are chosen: `iid`, `without_replacement`,
      `top_plus_one` (the most probable ones and one draw) or `deterministic`
      (the most probable ones).
    coupled: True for the verifier `gumbel`: the candidates of a node are the
      first tokens of its draft's race, which has the target's random numbers.
    of_target: True if the draft is made of the target's weights, such as
      `target.quantized('int8')`. `Engine.update_params` then makes it again.

  Raises:
    UserError: the draft length is below 1 (`NoDrafter` drafts nothing), the
      tree is not numbered breadth first, the law is unknown, or a coupled
      drafter has a dynamic tree or a law other than `deterministic`.
  """
  shape = candidates.check_shape(shape, law, coupled)
  return LanguageModelDrafter(
    draft.params, draft.transformer, draft.tokenizer, shape, law, coupled,
    of_target=of_target,
  )  # fmt: skip
