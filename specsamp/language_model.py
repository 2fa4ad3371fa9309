"""A transformer with its parameters and tokenizer."""

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import Mesh

from specsamp import fingerprint
from specsamp.data.tokenizers import Tokenizer
from specsamp.models import Transformer
from specsamp.sharding import mesh as meshes


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """What `specsamp.load` returns and `specsamp.generate` takes.

  Attributes:
    transformer: the architecture, static and hashable.
    params: its parameters, a nested dict of arrays; decoding runs where they
      are, on one device or on a mesh.
    tokenizer: text to tokens and back.
  """

  transformer: Transformer
  params: Any
  tokenizer: Tokenizer

  @property
  def config(self):
    return self.transformer.config

  def on(self, mesh: Mesh | None) -> 'LanguageModel':
    """The model laid on a mesh; None leaves it where it is.

    Raises:
      UserError: heads or hidden units do not divide into the mesh's shards.
    """
    if mesh is None:
      return self
    return dataclasses.replace(self, params=meshes.shard(self.params, mesh))

  @property
  def mesh(self) -> Mesh | None:
    """The mesh that the parameters lie on, or None."""
    return meshes.of(self.params)

  @property
  def num_params(self) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(self.params))

  @functools.cached_property
  def fingerprint(self) -> str:
    """What drafters trained for this target know it by; see `fingerprint`."""
    return fingerprint.of(self.params)
