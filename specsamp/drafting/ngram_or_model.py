"""n-grams first, and a draft model if there is no match.

A match is free and may be long. A model always proposes something, but each of
its tokens costs a pass. A token that was looked up is a draw from a one-hot q.
So both kinds of drafts have one law, and one verifier serves a batch in which
rows have either.
"""

import operator

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.drafter import SkippingDrafter
from specsamp.drafting.language_model import LanguageModelDrafter
from specsamp.drafting.ngram import NgramDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import KVCache
from specsamp.utils import flow


@struct.dataclass
class NgramOrModelState:
  """State of a `NgramOrModelDrafter`.

  Attributes:
    cache: see `LanguageModelDrafter`.
    known: int32 [B], tokens of the row that the cache holds.
    matched: bool [B], True if the row drafts from a match.
  """

  cache: KVCache
  known: jax.Array
  matched: jax.Array


@struct.dataclass
class NgramOrModelDrafter(SkippingDrafter):
  """Drafter of a chain from a match, or from the model if there is no match.

  The model does not run in a round in which all rows, finished ones included,
  have a match. In other rounds it first reads the text that it skipped.

  Attributes:
    ngram: looks up matches.
    model: drafts for the other rows, a chain no longer than a match's.
  """

  ngram: NgramDrafter
  model: LanguageModelDrafter
  tree = property(operator.attrgetter('ngram.tree'))
  law = property(operator.attrgetter('model.law'))

  @property
  def passes(self) -> tuple[int, ...]:
    return tuple(sorted({self.model.tree.size, self.tree.size}))

  def check(self, target: LanguageModel, batch: int) -> None:
    self.ngram.check(target, batch)
    self.model.check(target, batch)

  def with_params(self, params=None, target=None):
    return self.replace(model=self.model.with_params(params, target))

  def init(self, tokens_bp, length_b, no_feature_b1f, capacity):
    return NgramOrModelState(
      cache=self.model.init(tokens_bp, length_b, no_feature_b1f, capacity),
      known=length_b,
      matched=jnp.zeros(length_b.shape, bool),
    )

  def prefill(self, state, *chunk):
    return state.replace(cache=self.model.prefill(state.cache, *chunk))

  def resume(self, state, tokens_bs, start_b, length_b):
    return NgramOrModelState(
      # The model may have skipped the end of what is held.
      cache=self._catch_up(state, tokens_bs, start_b + 3),
      known=length_b,
      matched=jnp.zeros(length_b.shape, bool),
    )

  def _catch_up(self, state, tokens_bs, length_b):
    """Returns the model's cache once it can draft after `length` tokens."""
    behind = (length_b - 2 - state.known).max()
    return self.model.catch_up(state.cache, tokens_bs, length_b, behind)

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    inputs = (tokens_bs, length_b, sampling, keys_b)
    match, _ = self.ngram.propose((), *inputs)
    matched_b = match.valid[:, 1]
    match = match.replace(law=self.law)
    if self.law != 'deterministic':
      vocab = self.model.transformer.config.vocab_size
      one_hot = jax.nn.one_hot(match.tokens[:, 1:], vocab, dtype=jnp.float32)
      match = match.replace(q=one_hot)

    def run_model(carry):
      _, cache, _ = carry
      cache = self._catch_up(state.replace(cache=cache), tokens_bs, length_b)
      draft, cache = self.model.propose(cache, *inputs)

      def select(matched, x):
        matched_b1 = matched_b.reshape((-1,) + (1,) * (x.ndim - 1))
        padding = ((0, 0), missing) + ((0, 0),) * (x.ndim - 2)
        return jnp.where(matched_b1, matched, jnp.pad(x, padding))

      missing = 0, self.tree.depth - draft.tree.depth
      draft = draft.replace(tree=self.tree)
      return jax.tree.map(select, match, draft), cache, length_b

    draft, cache, known_b = flow.cond_in_place(
      ~matched_b.all(), run_model, (match, state.cache, state.known)
    )
    return draft, NgramOrModelState(cache, known_b, matched_b)

  def commit(self, state, draft, verdict, root_b, scored):
    # The model has read the accepted tokens, except perhaps the last one.
    read_b = root_b + verdict.num_accepted
    return state.replace(known=jnp.where(state.matched, state.known, read_b))


def ngram_or_model(
  ngram: NgramDrafter, model: LanguageModelDrafter
) -> NgramOrModelDrafter:
  """Returns a drafter that looks up matches, or else runs the model.

  Use the verifier that suits the model alone.

  Raises:
    UserError: a draft is not a chain, the model drafts more tokens than a match
      has, or its law is neither `iid` nor `deterministic`.
  """
  if not (ngram.tree.is_chain and model.tree.is_chain):
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
