"""A transformer that reads and predicts the tokens of another vocabulary."""

import jax.numpy as jnp

from specsamp.models import kernels
from specsamp.models.transformer import Transformer


class TranslatedTransformer(Transformer):
  """A draft in the vocabulary of a target with another tokenizer.

  Its parameters are those of the draft, and two tables by the target's tokens:
  `read_tokens`, int32 [V], the token that the draft reads for each of them, and
  `draft_rows`, int32 [V], the row of each shared token, or `draft_vocab_size`
  for the tokens that are never drafted. Their logits are -1e30, their
  probabilities 0. The config has the target's vocabulary.

  Attributes:
    draft_vocab_size: rows of the draft's embedding.
  """

  draft_vocab_size: int = 0

  @property
  def rows(self) -> int:
    return self.draft_vocab_size

  def setup(self):
    super().setup()
    table = lambda _: jnp.zeros((self.config.vocab_size,), jnp.int32)
    self.read_tokens = self.param('read_tokens', table)
    self.draft_rows = self.param('draft_rows', table)

  def embed(self, tokens):
    return super().embed(self.read_tokens[tokens])

  def logits(self, hidden):
    return kernels.spread_rows(super().logits(hidden), self.draft_rows)
