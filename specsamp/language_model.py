"""A language model: a transformer with its parameters and tokenizer."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from specsamp import fingerprint
from specsamp.data import tokenizers, translation
from specsamp.data.tokenizers import Tokenizer
from specsamp.errors import UserError
from specsamp.models import Transformer, quantized
from specsamp.models.translated import TranslatedTransformer
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """A model as `specsamp.load` returns it and `specsamp.generate` takes it.

  Attributes:
    transformer: the architecture, static and hashable.
    params: its parameters, a nested dict of arrays. Decoding runs on their
      devices: one, or a mesh.
    tokenizer: text to tokens and back.
    stored_as: fingerprint of parameters after rounding to float16 or 8 bits ->
      that of the weights they were read from.
  """

  transformer: Transformer
  params: Any
  tokenizer: Tokenizer
  stored_as: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    config = self.config
    parts = [
      f'{self.num_params / 1e6:,.1f}M parameters',
      f'{config.num_layers} layers of width {config.width}',
      config.dtype,
      *([f'{self.weights} weights'] if self.weights else []),
      f'vocabulary of {config.num_tokens}',
    ]
    if self.mesh is not None:
      parts.append(f'mesh {"x".join(map(str, self.mesh.shape.values()))}')
    return f'LanguageModel({", ".join(parts)})'

  @property
  def config(self):
    return self.transformer.config

  def check_untranslated(self, call: str) -> None:
    """Raises `UserError` if it is a draft from `translated_for`."""
    if isinstance(self.transformer, TranslatedTransformer):
      raise UserError(
        f'{call}: got a draft that was translated for a target, expected the '
        'draft itself'
      )

  def on(self, mesh: Mesh | None) -> 'LanguageModel':
    """Returns the model sharded over a mesh; None returns it unchanged.

    Raises:
      UserError: heads or hidden units do not divide into the mesh's shards.
    """
    if mesh is None:
      return self
    return dataclasses.replace(self, params=meshes.shard(self.params, mesh))

  def for_target(self, target: 'LanguageModel') -> 'LanguageModel':
    """Returns this model with the vocabulary of the target it drafts for.

    Both tokenizers must agree on every token that both have. A token that one
    of them lacks is never drafted. If the target emits a token that this model
    lacks, this model reads an embedding of zeros.

    Raises:
      UserError: the tokenizers differ on a token.
    """
    self.check_untranslated('for_target')
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

  def translated_for(self, target: 'LanguageModel') -> 'LanguageModel':
    """Returns this model as a draft for a target with another tokenizer.

    The draft reads and predicts tokens of the target. It proposes the tokens
    that both vocabularies have, with its probabilities of them, renormalized.
    In place of a token that it lacks it reads one that ends alike. See
    `translation.translate`. The parameters are shared, not copied.

    Raises:
      UserError: the vocabularies share too little.
    """
    self.check_untranslated('translated_for')
    target_config, rows = target.config, self.config.vocab_size
    tables = translation.translate(
      target.tokenizer,
      self.tokenizer,
      target_config.num_tokens,
      self.config.num_tokens,
    )
    logging.info(
      'draft: has another tokenizer and shares %.1f %% of the smaller '
      'vocabulary, %d of the %d tokens of the target',
      100 * tables.share,
      (tables.shared >= 0).sum(),
      target_config.num_tokens,
    )
    # Rows of the target's embedding that are not tokens are never drafted.
    padding = (0, target_config.padding)
    drafted_v = np.where(tables.shared < 0, np.int32(rows), tables.shared)
    added = {
      'draft_rows': np.pad(drafted_v, padding, constant_values=rows),
      'read_tokens': np.pad(tables.read, padding),
    }
    if self.mesh is None:
      added = jax.tree.map(jnp.asarray, added)
    else:
      added = meshes.shard(added, self.mesh)
    config = dataclasses.replace(
      self.config, vocab_size=target_config.vocab_size, padding=0
    )
    transformer = TranslatedTransformer(config, draft_vocab_size=rows)
    return LanguageModel(transformer, self.params | added, target.tokenizer)

  @property
  def mesh(self) -> Mesh | None:
    """The mesh of the parameters, None if they are on a single device."""
    return meshes.of(self.params)

  @property
  def num_params(self) -> int:
    """Number of parameters, without the scales of quantized weights."""
    is_leaf = quantized.is_quantized
    leaves = jax.tree.leaves(self.params, is_leaf=is_leaf)
    return sum(leaf.size for leaf in leaves)

  @property
  def weights(self) -> str:
    """Kind of its quantized weights, int8 or w8a8; '' if it has none."""
    return quantized.kind_of(self.params)

  def quantized(self, kind: quantized.Kind) -> 'LanguageModel':
    """Returns the model with weights in 8 bits, which is another distribution.

    Arrays that stay floats are shared, not copied.
    """
    params = quantized.quantize(self.params, kind)
    digest = fingerprint.of(params, self.config.num_tokens)
    stored_as = {digest: self.source_fingerprint}
    return dataclasses.replace(self, params=params, stored_as=stored_as)

  @functools.cached_property
  def fingerprint(self) -> str:
    """A hash of the weights, which names the model's distribution.

    Quantized weights have another one than their floats. See
    `specsamp.fingerprint`.
    """
    if not self.weights:
      return self.source_fingerprint
    return fingerprint.of(self.params, self.config.num_tokens)

  @functools.cached_property
  def source_fingerprint(self) -> str:
    """Fingerprint of the weights that were rounded to those of the model.

    Trained drafters recognize their target by it.
    """
    digest = fingerprint.of(self.params, self.config.num_tokens)
    return self.stored_as.get(digest, digest)


def _with_rows(params: Any, rows: int) -> Any:
  """Returns parameters with this number of vocabulary rows; new ones are 0."""

  def resize(path, array):
    axes = rules.PARAM_AXES[rules.param_name(path)][: array.ndim]
    if 'vocab' not in axes:
      return array
    axis = axes.index('vocab')
    kept = min(rows, array.shape[axis])
    array = jax.lax.slice_in_dim(array, 0, kept, axis=axis)
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, rows - kept)
    return jnp.pad(array, padding)

  resize_all = functools.partial(jax.tree_util.tree_map_with_path, resize)
  mesh = meshes.of(params)
  if mesh is None:
    return resize_all(params)
  formats = rules.param_formats(jax.eval_shape(resize_all, params), mesh)
  return jax.jit(resize_all, out_shardings=formats)(params)
