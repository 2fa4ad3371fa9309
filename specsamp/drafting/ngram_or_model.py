"""n-grams first, a draft model where there is no match.

A match costs nothing and may be long; a model always has something to propose,
of which each token costs a pass. A token that was looked up is a draw from a
one-hot q, so that both are drafts of one law, and one verifier serves a batch
in which rows do either.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from specsamp import flow
from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import Drafter, emitted_tokens
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.ngram import NgramDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import KVCache


@struct.dataclass
class NgramOrModelState:
  """The model's cache, and what it has not read of the round.

  Attributes:
    cache: see `LanguageModelDrafter`.
    before: int32 [B], the token before the root.
    found: bool [B], whether the row drafts from a match.
  """

  cache: KVCache
  before: jax.Array
  found: jax.Array


@struct.dataclass
class NgramOrModelDrafter(Drafter):
  """Drafts a chain from a match, or from the model in rows without one.

  A round in which all rows have a match takes one pass of the model, over the
  emitted tokens; others take as many as its draft is long. Rows that are done
  count.

  Attributes:
    ngram: looks up.
    model: drafts the other rows, a chain no longer than those of matches.
  """

  ngram: NgramDrafter
  model: LanguageModelDrafter

  @property
  def tree(self) -> TokenTree:
    return self.ngram.tree

  @property
  def passes(self) -> tuple[int, ...]:
    return tuple(sorted({self.model.tree.size, self.tree.size}))

  @property
  def law(self) -> Law:
    return self.model.law

  @property
  def rounds_differ(self) -> bool:
    return True

  def check(self, target: LanguageModel, batch: int) -> None:
    self.ngram.check(target, batch)
    self.model.check(target, batch)

  def with_params(self, params=None, target=None):
    return self.replace(model=self.model.with_params(params, target))

  def init(self, tokens_bp, length_b, features_bpd, capacity):
    return NgramOrModelState(
      cache=self.model.init(tokens_bp, length_b, features_bpd, capacity),
      before=jnp.zeros_like(length_b),
      found=jnp.zeros(length_b.shape, bool),
    )

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    inputs = (tokens_bs, length_b, sampling, keys_b)
    match, _ = self.ngram.propose((), *inputs)
    found_b = match.valid[:, 1]
    looked_up = match.replace(law=self.law)
    if self.law != 'deterministic':
      vocab = self.model.transformer.config.vocab_size
      one_hot = jax.nn.one_hot(match.tokens[:, 1:], vocab, dtype=jnp.float32)
      looked_up = looked_up.replace(q=one_hot)

    def ask(carry):
      drafted, cache = self.model.propose(carry[1], *inputs)
      pick = lambda a, b: jnp.where(
        found_b.reshape((-1,) + (1,) * (a.ndim - 1)), a, b
      )
      return jax.tree.map(pick, looked_up, self._as_long(drafted)), cache

    draft, cache = flow.cond_in_place(
      ~found_b.all(), ask, (looked_up, state.cache)
    )
    before_b1 = jnp.maximum(length_b[:, None] - 2, 0)
    before_b = jnp.take_along_axis(tokens_bs, before_b1, axis=1)[:, 0]
    return draft, NgramOrModelState(cache, before_b, found_b)

  def _as_long(self, draft: Draft) -> Draft:
    """The model's draft with nothing drafted behind it."""
    missing = self.tree.depth - draft.tree.depth
    longer = lambda x: jnp.pad(
      x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)]
    )
    return draft.replace(
      tokens=longer(draft.tokens),
      q=None if draft.q is None else longer(draft.q),
      valid=longer(draft.valid),
      tree=self.tree,
    )

  def commit(self, state, draft, verdict, root_b, scored):
    root_b1, before_b1 = draft.tokens[:, :1], state.before[:, None]
    emitted_bt = emitted_tokens(draft, verdict)
    # A row of one token has none before it, and one place less to feed.
    text_bt = jnp.where(
      root_b[:, None] > 0,
      jnp.concatenate([before_b1, root_b1, emitted_bt], axis=1),
      jnp.concatenate([root_b1, emitted_bt, emitted_bt[:, -1:]], axis=1),
    )
    first_b = jnp.maximum(root_b - 1, 0)
    at_t = jnp.arange(text_bt.shape[1], dtype=jnp.int32)

    def read(cache):
      return self.model.transformer.apply(
        {'params': self.model.params},
        text_bt,
        first_b[:, None] + at_t[None, :],
        cache,
      ).cache

    cache = flow.cond_in_place(state.found.any(), read, state.cache)
    return dataclasses.replace(state, cache=cache)


def ngram_or_model(
  ngram: NgramDrafter, model: LanguageModelDrafter
) -> NgramOrModelDrafter:
  """A drafter that looks up first and asks the model where that fails.

  Args:
    ngram: of chains.
    model: of chains as long or shorter. Verify as what it drafts alone; of
      draws, which a match is too, only independent ones make sense.

  Raises:
    UserError: drafts that are no chains, a model that drafts more than a match
      may, or a law that no match has.
  """
  trees = ngram.tree, model.tree
  if not all(tree.is_chain for tree in trees):
    raise UserError(
      'n-gram or model: both must draft chains; got parents '
      f'{ngram.tree.parents} and {model.tree.parents}'
    )
  if model.tree.depth > ngram.tree.depth:
    raise UserError(
      f'n-gram or model: got {model.tree.depth} tokens from the model, '
      f'expected at most the {ngram.tree.depth} of a match'
    )
  if model.law not in ('iid', 'deterministic'):
    raise UserError(
      "n-gram or model: the law must be 'iid' or 'deterministic', got "
      f'{model.law!r}'
    )
  return NgramOrModelDrafter(ngram=ngram, model=model)
