"""n-grams first, a draft model where there is no match.

A match costs nothing and may be long; a model always has something to propose,
of which each token costs a pass. A token that was looked up is a draw from a
one-hot q, so that both are drafts of one law, and one verifier serves a batch
in which rows do either.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import CATCH_UP, Drafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.ngram import NgramDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import KVCache
from specsamp.utils import flow


@struct.dataclass
class NgramOrModelState:
  """The model's cache, and how far it goes.

  Attributes:
    cache: see `LanguageModelDrafter`.
    known: int32 [B], tokens of the row that it holds.
    found: bool [B], whether the row drafts from a match.
  """

  cache: KVCache
  known: jax.Array
  found: jax.Array


@struct.dataclass
class NgramOrModelDrafter(Drafter):
  """Drafts a chain from a match, or from the model in rows without one.

  A round in which all rows have a match takes no pass of the model; others take
  as many as its draft is long, after what it has not read since the last of
  them. Rows that are done count.

  Attributes:
    ngram: looks up.
    model: drafts the other rows, a chain no longer than those of matches.
  """

  ngram: NgramDrafter
  model: LanguageModelDrafter
  reads_features: ClassVar[bool] = False

  @property
  def tree(self) -> TokenTree:
    return self.ngram.tree

  @property
  def passes(self) -> tuple[int, ...]:
    return tuple(sorted({self.model.tree.size, self.tree.size}))

  @property
  def room(self) -> int:
    return max(super().room, CATCH_UP)

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
      known=length_b,
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
      behind = (length_b - 2 - state.known).max()
      cache = self.model.catch_up(carry[1], tokens_bs, length_b, behind, None)
      drafted, cache = self.model.propose(cache, *inputs)
      pick = lambda a, b: jnp.where(
        found_b.reshape((-1,) + (1,) * (a.ndim - 1)), a, b
      )
      draft = jax.tree.map(pick, looked_up, self._as_long(drafted))
      return draft, cache, length_b

    draft, cache, known_b = flow.cond_in_place(
      ~found_b.all(), ask, (looked_up, state.cache, state.known)
    )
    return draft, NgramOrModelState(cache, known_b, found_b)

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
    # What was accepted of the model's draft it has read, but maybe the last.
    read_b = root_b + verdict.num_accepted
    return state.replace(known=jnp.where(state.found, state.known, read_b))

  def catch_up(self, state, tokens_bs, length_b, behind, features_bwf):
    return state  # it knows how far the model has read


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
