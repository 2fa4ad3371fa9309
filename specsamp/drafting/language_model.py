"""A smaller language model drafts: Chen et al. 2302.01318, sections 4 to 6."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from specsamp.data.tokenizers import Tokenizer
from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer
from specsamp.sampling import draw, transforms


@struct.dataclass
class LanguageModelDrafter:
  """Samples a chain from a model with the target's tokenizer.

  Its state is the model's cache. What it holds when a round begins: the text
  up to the root, but perhaps not the token before the root, for the last
  drafted token is never fed. So a round's first pass takes two tokens.

  Attributes:
    params: of the draft model.
    transformer: the draft model, static.
    tokenizer: its tokenizer, static.
    tree: a chain of the draft length, static.
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)
  tokenizer: Tokenizer = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False, default='iid')

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

  def init(self, tokens_bp, length_b, hidden_bpd, capacity):
    variables = {'params': self.params}
    cache = self.transformer.init_cache(
      self.params, tokens_bp.shape[0], capacity
    )
    return self.transformer.apply(variables, tokens_bp, cache=cache).cache

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    variables = {'params': self.params}
    root_b1 = root_of(tokens_bs, length_b)
    uniform_bg = draw.uniforms(keys_b, self.tree.depth)

    # The root and the token before it. A row of one token has none before: it
    # is fed [root, what comes next], and the second, unseen by the first, is
    # written over by the next pass.
    before_b = jnp.maximum(length_b - 2, 0)
    positions_b2 = before_b[:, None] + jnp.arange(2, dtype=jnp.int32)[None, :]
    out = self.transformer.apply(
      variables,
      jnp.take_along_axis(tokens_bs, positions_b2, axis=1),
      positions_b2,
      state,
    )
    at_root = (length_b - 1 - before_b)[:, None, None]
    hidden = jnp.take_along_axis(out.hidden, at_root, axis=1)
    logits = self.transformer.apply(variables, hidden, method='logits')

    def draw_next(logits_b1v, uniform_b):
      q_b1v = transforms.probabilities(logits_b1v, sampling)
      return draw.inverse_cdf(uniform_b, q_b1v[:, 0])[:, None], q_b1v

    def step(carry, inputs):
      cache, token_b1, position_b1 = carry
      out = self.transformer.apply(variables, token_b1, position_b1, cache)
      token_b1, q_b1v = draw_next(out.logits, inputs)
      return (out.cache, token_b1, position_b1 + 1), (token_b1, q_b1v)

    first_b1, q_b1v = draw_next(logits, uniform_bg[:, 0])
    (cache, _, _), (others_gb1, laws_gb1v) = jax.lax.scan(
      step,
      (out.cache, first_b1, length_b[:, None]),
      uniform_bg[:, 1:].T,
    )
    drafted = [first_b1, others_gb1[:, :, 0].T]
    laws = [q_b1v, jnp.swapaxes(laws_gb1v[:, :, 0], 0, 1)]
    tokens = jnp.concatenate([root_b1, *drafted], axis=1)
    draft = Draft(
      tokens=tokens,
      q=jnp.concatenate(laws, axis=1),
      tree=self.tree,
      law=self.law,
      valid=jnp.ones(tokens.shape, bool),
    )
    return draft, cache

  def commit(self, state, draft, verdict, hidden_bnd):
    return state


def model_drafter(draft: LanguageModel, draft_len: int) -> LanguageModelDrafter:
  """A drafter that samples `draft_len` tokens a round from `draft`.

  Raises:
    UserError: a draft length below 1; `Empty` is the drafter that drafts
      nothing.
  """
  if draft_len < 1:
    raise UserError(f'draft length must be at least 1, got {draft_len}')
  return LanguageModelDrafter(
    params=draft.params,
    transformer=draft.transformer,
    tokenizer=draft.tokenizer,
    tree=TokenTree.chain(draft_len),
  )
