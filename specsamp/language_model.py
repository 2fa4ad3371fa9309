"""A transformer with its parameters and tokenizer."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specsamp import fingerprint
from specsamp.data import tokenizers
from specsamp.data.tokenizers import Tokenizer
from specsamp.models import Transformer
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """What `specsamp.load` returns and `specsamp.generate` takes.

  Attributes:
    transformer: the architecture, static and hashable.
    params: its parameters, a nested dict of arrays; decoding runs where they
      are, on one device or on a mesh.
    tokenizer: text to tokens and back.
    stored_as: fingerprint of parameters that float16 has rounded -> that of the
      weights they were read from.
  """

  transformer: Transformer
  params: Any
  tokenizer: Tokenizer
  stored_as: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    """Returns one line. The parameters would fill many pages."""
    config = self.config
    parts = [
      f'{self.num_params / 1e6:,.1f}M parameters',
      f'{config.num_layers} layers of width {config.width}',
      config.dtype,
      f'vocabulary of {config.num_tokens}',
    ]
    if self.mesh is not None:
      parts.append(f'mesh {"x".join(map(str, self.mesh.shape.values()))}')
    return f'LanguageModel({", ".join(parts)})'

  @property
  def config(self):
    return self.transformer.config

  def on(self, mesh: Mesh | None) -> 'LanguageModel':
    """The model sharded over a mesh; None leaves it where it is.

    Raises:
      UserError: heads or hidden units do not divide into the mesh's shards.
    """
    if mesh is None:
      return self
    return dataclasses.replace(self, params=meshes.shard(self.params, mesh))

  def for_target(self, target: 'LanguageModel') -> 'LanguageModel':
    """This model with the vocabulary of a target that it shall draft for.

    Their tokenizers must agree on every token that both have. A token that one
    of them lacks is not drafted; one that this model lacks and the target emits
    is read by this model as an embedding of zeros.

    Raises:
      UserError: the tokenizers differ on a token.
    """
    if self.tokenizer != target.tokenizer:
      tokenizers.check_agree(target.tokenizer, self.tokenizer)
    rows = target.config.vocab_size
    tokens = min(self.config.num_tokens, target.config.num_tokens)
    config = dataclasses.replace(
      self.config, vocab_size=rows, padding=rows - tokens
    )
    params = self.params
    if config.vocab_size != self.config.vocab_size:
      params = _with_rows(params, rows)
    return LanguageModel(Transformer(config), params, target.tokenizer)

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
    found = fingerprint.of(self.params, self.config.num_tokens)
    return self.stored_as.get(found, found)


def _with_rows(params: Any, rows: int) -> Any:
  """Parameters with so many rows of the vocabulary, those added being zeros."""

  def resize(path, array):
    axes = rules.PARAMS[path[-1].key]
    if 'vocab' not in axes:
      return array
    at = axes.index('vocab')
    array = jax.lax.slice_in_dim(array, 0, min(rows, array.shape[at]), axis=at)
    missing = [(0, 0)] * array.ndim
    missing[at] = (0, rows - array.shape[at])
    return jnp.pad(array, missing)

  resize_all = functools.partial(jax.tree_util.tree_map_with_path, resize)
  mesh = meshes.of(params)
  if mesh is None:
    return resize_all(params)
  formats = rules.param_formats(jax.eval_shape(resize_all, params), mesh)
  return jax.jit(resize_all, out_shardings=formats)(params)
