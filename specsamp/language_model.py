"""A transformer with its parameters and tokenizer."""

import dataclasses
from typing import Any

import jax

from specsamp.data.tokenizers import Tokenizer
from specsamp.models import Transformer


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """What `specsamp.load` returns and `specsamp.generate` takes.

  Attributes:
    transformer: the architecture, static and hashable.
    params: its parameters, a nested dict of arrays.
    tokenizer: text to tokens and back.
  """

  transformer: Transformer
  params: Any
  tokenizer: Tokenizer

  @property
  def config(self):
    return self.transformer.config

  @property
  def num_params(self) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(self.params))
