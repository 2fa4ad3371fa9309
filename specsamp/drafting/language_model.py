"""A smaller language model drafts: Chen et al. 2302.01318, sections 4 to 6.

On a chain it is sampled γ times; on a tree level by level, all nodes of a level
in one pass (Yang et al. 2401.06706, section 3).
"""

import functools
import numbers
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specsamp.data.tokenizers import Tokenizer
from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, attention, kv_cache
from specsamp.sampling import coupling, draw, transforms
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import mesh as meshes


@struct.dataclass
class LanguageModelDrafter:
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
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)
  tokenizer: Tokenizer = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False, default='iid')
  coupled: bool = struct.field(pytree_node=False, default=False)

  def check(self, target: LanguageModel) -> None:
    if self.tokenizer != target.tokenizer:
      raise UserError(
        'draft and target must share a tokenizer; got '
        f'{self.tokenizer.vocab_size} and {target.tokenizer.vocab_size} pieces'
        ' of different SentencePiece models'
      )
    got = self.transformer.config.vocab_size
    expected = target.config.vocab_size
    if got != expected:
      raise UserError(
        f'draft and target must share a vocabulary; the draft has {got} '
        f'tokens, the target {expected}'
      )
    if meshes.of(self.params) != target.mesh:
      raise UserError(
        f'draft and target must lie on one mesh; got {meshes.of(self.params)} '
        f'and {target.mesh}'
      )
    if self.tree.width > got:
      raise UserError(
        f'branching: got {self.tree.width} candidates, more than the {got} '
        'tokens of the vocabulary'
      )

  def init(self, tokens_bp, length_b, hidden_bpd, capacity):
    variables = {'params': self.params}
    cache = self.transformer.init_cache(
      self.params, tokens_bp.shape[0], capacity
    )
    return self.transformer.apply(variables, tokens_bp, cache=cache).cache

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    root_b = length_b - 1
    root_b1 = root_of(tokens_bs, length_b)
    round_keys_b = draw.stream_keys(keys_b, root_b, draw.Stream.DRAFT)
    uniform_bn = draw.uniforms(round_keys_b, self.tree.size - 1)
    handicap_bgv = None
    if self.coupled:
      at_g = 1 + jnp.arange(self.tree.depth, dtype=jnp.int32)
      handicap_bgv = coupling.handicaps(
        keys_b,
        root_b[:, None] + at_g[None, :],
        self.transformer.config.vocab_size,
      )
    cache, logits_b1v = self._feed_root(state, tokens_bs, length_b)
    grow = self._grow_tree
    if self.tree.is_chain:
      grow = functools.partial(self._grow_chain, root_b1)
    cache, drafted_bn, valid_bn, q_biv = grow(
      cache, logits_b1v, root_b, sampling, uniform_bn, handicap_bgv
    )
    draft = Draft(
      tokens=jnp.concatenate([root_b1, drafted_bn], axis=1),
      q=None if self.law == 'deterministic' else q_biv,
      tree=self.tree,
      law=self.law,
      valid=jnp.pad(valid_bn, ((0, 0), (1, 0)), constant_values=True),
    )
    return draft, cache

  def commit(self, state, draft, verdict, root_b, hidden_bnd):
    if self.tree.is_chain:
      return state  # the nodes stand where the text would have them
    # The last level was not fed; a leaf above it may be the text's last token
    # but one, which the next round feeds.
    rank_n = np.zeros(self.tree.size, np.int32)
    rank_n[list(self.tree.internal)] = np.arange(len(self.tree.internal))
    fed_bt = jnp.asarray(rank_n)[jnp.maximum(verdict.path[:, 1:-1], 0)]
    return kv_cache.keep_path(state, root_b, fed_bt)

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
    # an order of its own and so wants a copy of them; two it does not.
    return jax.lax.platform_dependent(
      cache, tokens_b2, position_b1, tpu=both, default=alone
    )

  def _grow_chain(
    self, root_b1, cache, logits_b1v, root_b, sampling, uniform_bn, handicap_bgv
  ):
    def step(carry, inputs):
      cache, tokens_b2, position_b1 = carry
      uniform_b, handicap_bv = inputs
      cache, logits_b1v = self._feed_next(cache, tokens_b2, position_b1)
      token_b1, *others = pick(logits_b1v, uniform_b, handicap_bv)
      tokens_b2 = jnp.concatenate([tokens_b2[:, 1:], token_b1], axis=1)
      return (cache, tokens_b2, position_b1 + 1), (token_b1, *others)

    def pick(logits_b1v, uniform_b, handicap_bv):
      picked = self._pick(
        logits_b1v, uniform_b[:, None, None], handicap_bv, sampling
      )
      token_b11, valid_b11, q_b1v = picked
      return token_b11[:, 0], valid_b11[:, 0], q_b1v

    handicap_gbv = handicap_bgv
    if self.coupled:
      handicap_gbv = jnp.swapaxes(handicap_bgv, 0, 1)
    # Of None, which has no leaves, these are None.
    one, rest = (
      jax.tree.map(lambda array, at=at: array[at], handicap_gbv)
      for at in (0, slice(1, None))
    )
    first = pick(logits_b1v, uniform_bn[:, 0], one)
    (cache, _, _), others = jax.lax.scan(
      step,
      (
        cache,
        jnp.concatenate([root_b1, first[0]], axis=1),
        root_b[:, None] + 1,
      ),
      (uniform_bn[:, 1:].T, rest),
    )
    tokens, valid, q = (
      jnp.concatenate([a, jnp.swapaxes(b[:, :, 0], 0, 1)], axis=1)
      for a, b in zip(first, others, strict=True)
    )
    return cache, tokens, valid, q

  def _grow_tree(
    self, cache, logits_b1v, root_b, sampling, uniform_bn, handicap_bgv
  ):
    tree, batch = self.tree, root_b.shape[0]
    internal = np.asarray(tree.internal)
    depths_i = np.asarray(tree.depths)[internal]
    ancestors_ii = tree.ancestor_mask[np.ix_(internal, internal)]
    logits_bwv = logits_b1v
    tokens, valids, laws = [], [], []
    for depth in range(tree.depth):
      # Nodes of this level that have children, and a table of their children;
      # a short row of the table draws more than it needs.
      level_w = internal[depths_i == depth]
      children = [tree.children(node) for node in level_w]
      width = max(map(len, children))
      table_wc = np.asarray(
        [c + (c[-1],) * (width - len(c)) for c in children], np.int32
      )
      kept = np.flatnonzero(
        [i < len(c) for c in children for i in range(width)]
      )
      token_bwc, valid_bwc, q_bwv = self._pick(
        logits_bwv,
        uniform_bn[:, table_wc - 1],
        None if handicap_bgv is None else handicap_bgv[:, depth],
        sampling,
      )
      tokens.append(token_bwc.reshape(batch, -1)[:, kept])
      valids.append(valid_bwc.reshape(batch, -1)[:, kept])
      laws.append(q_bwv)
      if depth + 1 < tree.depth:
        fed = np.flatnonzero(depths_i == depth + 1)  # side by side
        first_child = min(map(min, children))
        out = self.transformer.apply(
          {'params': self.params},
          tokens[-1][:, internal[fed] - first_child],
          cache=cache,
          **attention.tree_pass(
            root_b, depths_i, ancestors_ii[fed], int(fed[0]), cache.capacity
          ),
        )
        cache, logits_bwv = out.cache, out.logits
    concatenate = lambda parts: jnp.concatenate(parts, axis=1)
    return cache, concatenate(tokens), concatenate(valids), concatenate(laws)

  def _pick(self, logits_bwv, uniform_bwc, handicap_bv, sampling):
    """Candidates of W nodes, their validity, both [B, W, C], and q [B, W, V].

    Rows of temperature 0 take the C most probable tokens, and report the law
    of temperature 1: their target's law is a one-hot, of which every verifier
    says the argmax, whatever was drafted.
    """
    batch, width, count = uniform_bwc.shape
    vocab = logits_bwv.shape[-1]
    greedy_b = sampling.broadcast(batch).temperature == 0
    several = count > 1 or self.law == 'deterministic'
    if several:
      sampling = _without_cuts(sampling.broadcast(batch), greedy_b)
    q_bwv = transforms.probabilities(logits_bwv, sampling)
    q_rv = q_bwv.reshape(-1, vocab)

    def most_probable():
      speed_bwv = q_bwv
      if handicap_bv is not None:
        speed_bwv = jnp.where(
          greedy_b[:, None, None],
          q_bwv,
          coupling.speeds(q_bwv, handicap_bv[:, None]),
        )
      best, tokens = draw.largest(speed_bwv, count)
      return tokens, best > 0

    def drawn():
      uniform_rc = uniform_bwc.reshape(-1, count)
      if self.law == 'iid' or count == 1:
        each = jax.vmap(draw.inverse_cdf, in_axes=(1, None), out_axes=1)
        tokens = each(uniform_rc, q_rv)
        valid = jnp.ones(tokens.shape, bool)
      else:
        tokens, valid = draw.without_replacement(uniform_rc, q_rv)
      shape = (batch, width, count)
      return tokens.reshape(shape), valid.reshape(shape)

    if self.law == 'deterministic':
      tokens, valid = most_probable()
    elif not several:
      tokens, valid = drawn()
    else:
      greedy_b11 = greedy_b[:, None, None]
      tokens, valid = jax.lax.cond(
        greedy_b.any(),
        lambda: jax.tree.map(
          lambda a, b: jnp.where(greedy_b11, a, b), most_probable(), drawn()
        ),
        drawn,
      )
    return tokens, valid, q_bwv


def _without_cuts(sampling: SamplingParams, where_b) -> SamplingParams:
  """Temperature 1 and no cuts in these rows."""
  default = SamplingParams().broadcast(where_b.shape[0])
  return jax.tree.map(
    lambda value, plain: jnp.where(where_b, plain, value), sampling, default
  )


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
    law: how the candidates of a node are chosen: `iid`, `without_replacement`
      or `deterministic` (the most probable ones).
    coupled: for the verifier `gumbel`: drafts run the races of the target;
      the law must be `deterministic`.

  Raises:
    UserError: a draft length below 1 (`Empty` is the drafter that drafts
      nothing), a tree that is not numbered breadth first, an unknown law, or
      a coupled drafter of another law than `deterministic`.
  """
  if not isinstance(shape, TokenTree):
    if not isinstance(shape, numbers.Integral):
      raise UserError(
        f'shape: got {shape!r}, expected a draft length or a TokenTree, such '
        'as TokenTree.branching((4, 2))'
      )
    if shape < 1:
      raise UserError(f'draft length must be at least 1, got {shape}')
    shape = TokenTree.chain(shape)
  if shape.size < 2 or not shape.is_breadth_first:
    raise UserError(
      'the tree of a draft must have a node below the root and be numbered '
      f'breadth first, got parents {shape.parents}'
    )
  if law not in get_args(Law):
    raise UserError(
      f'law: got {law!r}, expected one of {", ".join(get_args(Law))}'
    )
  if coupled and law != 'deterministic':
    raise UserError(f'a coupled drafter is deterministic, got law {law!r}')
  return LanguageModelDrafter(
    params=draft.params,
    transformer=draft.transformer,
    tokenizer=draft.tokenizer,
    tree=shape,
    law=law,
    coupled=coupled,
  )
