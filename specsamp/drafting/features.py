"""Common parts of drafters that are trained on the features of one target."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from specsamp.drafting import candidates, growth
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.drafter import Drafter, check_fits, root_of
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, kernels, quantized
from specsamp.sharding.rules import constrain

_SHARED = ('embedding', 'position_embedding', 'head')


@struct.dataclass
class TargetHead:
  """Embedding and LM head of a target: the same arrays, not copies.

  Attributes:
    params: the target's parameters outside of its layers.
    transformer: the target, static.
    draft_rows: int [V], row of each token in `drafted`, K for tokens that the
      drafter cannot draft; None if it drafts all tokens.
    drafted: [K, D], rows of the LM head, copied from it; None if all.
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)
  draft_rows: Any = None
  drafted: Any = None

  @classmethod
  def of(cls, transformer: Transformer, params) -> 'TargetHead':
    """Returns the head of a target with these parameters."""
    shared = {name: params[name] for name in _SHARED if name in params}
    return cls(params=shared, transformer=transformer)

  def narrowed(self, draft_rows, draft_vocab: int) -> 'TargetHead':
    """Returns the head of a drafter that can draft only K tokens.

    Fewer rows of the LM head are read for each draft token (Zhao et al.
    2502.14856).

    Args:
      draft_rows: int [V], see above.
      draft_vocab: K.
    """
    tokens_k = row_tokens(draft_rows, draft_vocab)
    rows = jax.tree.map(
      lambda table: constrain(
        jnp.take(table, tokens_k, axis=0), 'vocab', *[None] * (table.ndim - 1)
      ),
      self.params.get('head', self.params['embedding']),
    )
    return self.replace(draft_rows=draft_rows, drafted=rows)

  def embed(self, tokens_bt):
    return self._apply('embed', tokens_bt)

  def place(self, positions_bt):
    return self._apply('place', positions_bt)

  @property
  def num_rows(self) -> int:
    """Number of tokens that have logits."""
    if self.draft_rows is None:
      return self.transformer.config.vocab_size
    return self.drafted.shape[0]

  def row_logits(self, hidden_btd):
    """Returns the logits of the tokens to draft: float32 [B, T, num_rows]."""
    if self.draft_rows is None:
      return self._apply('logits', hidden_btd)
    config = dataclasses.replace(
      self.transformer.config,
      vocab_size=self.num_rows,
      padding=0,
      tied_embeddings=True,
    )
    return self.transformer.clone(config=config).apply(
      {'params': self.params | {'embedding': self.drafted}},
      hidden_btd,
      method='logits',
    )

  def row_of(self, tokens):
    """Returns the tokens' rows in `row_logits`, or `num_rows` for none."""
    if self.draft_rows is None:
      return tokens
    return jnp.take(self.draft_rows, tokens, mode='clip')

  def logits(self, hidden_btd):
    """Returns logits, float32 [B, T, V], -1e30 for tokens without a row."""
    logits_btk = self.row_logits(hidden_btd)
    if self.draft_rows is None:
      return logits_btk
    return self.widen(kernels.spread_rows(logits_btk, self.draft_rows))

  def widen(self, logits_btv):
    """Returns logits of another LM head, padded to the target's vocabulary.

    A target that is sharded, or whose tokenizer is smaller than its embedding,
    has vocabulary rows without tokens.
    """
    missing = self.transformer.config.vocab_size - logits_btv.shape[-1]
    logits_btv = jnp.pad(
      logits_btv, ((0, 0), (0, 0), (0, missing)), constant_values=-1e30
    )
    return constrain(logits_btv, 'batch', None, 'vocab')

  def _apply(self, method: str, array):
    return self.transformer.apply({'params': self.params}, array, method=method)


@dataclasses.dataclass(frozen=True)
class DraftModule:
  """Trained drafter, in the form that folders store and `load` returns.

  Attributes:
    module: the layers, of a kind in `specsamp.drafting.trained`.
    params: the module's parameters.
    target: `LanguageModel.fingerprint` of the target it was trained for; '' if
      unknown, as for published heads.
    acceptance: acceptance in the trial after its training, in [0, 1], see
      `decoding.trial`; None if it was not recorded.
  """

  module: nn.Module
  params: Any
  target: str
  acceptance: float | None = None

  def __repr__(self) -> str:
    """Returns one line. The parameters would fill many pages."""
    leaves = jax.tree.leaves(self.params, is_leaf=quantized.is_quantized)
    count = sum(leaf.size for leaf in leaves)
    kind = type(self.module).__name__
    return f'DraftModule({kind}, {count / 1e6:,.1f}M parameters)'

  def quantized(self, kind: quantized.Kind) -> 'DraftModule':
    """Returns the drafter with weights in 8 bits."""
    params = quantized.quantize(self.params, kind)
    return dataclasses.replace(self, params=params)

  def check(self, target: LanguageModel) -> None:
    """Raises `UserError` if the drafter was trained for another target.

    If its target is unknown, only shapes are compared.
    """
    config, expected = self.module.config, target.config
    # A layer with a separate embedding may have another width.
    width = getattr(self.module, 'target_width', 0) or config.width
    # On a mesh the target may have been padded by rows without tokens.
    is_vocab = expected.num_tokens <= config.vocab_size <= expected.vocab_size
    for name, is_right, got in (
      ('width', width == expected.width, width),
      ('vocab_size', is_vocab, config.vocab_size),
    ):
      if not is_right:
        raise UserError(
          f'drafter: trained for a target of {name} {got}, this one has '
          f'{getattr(expected, name)}'
        )
    if self.target:
      check_fingerprint(self.target, target)


def check_fingerprint(trained_for: str, target: LanguageModel) -> None:
  """Raises `UserError` if the target has other weights than at training."""
  # A drafter also serves the quantized weights: any draft is lossless.
  if trained_for not in (target.fingerprint, target.source_fingerprint):
    raise UserError(
      f'drafter: trained for the target {trained_for}, this one is '
      f'{target.fingerprint}; a drafter serves the weights it was trained on'
    )


def draft_rows(module: nn.Module):
  """Declares the parameter of each token's row: int [V], K if it has none."""
  shape = (module.config.vocab_size,)
  return module.param('draft_rows', lambda _: jnp.zeros(shape, jnp.int32))


def row_tokens(rows_v, count: int):
  """Returns the token of each of K rows: int [K]."""
  tokens_v = jnp.arange(len(rows_v), dtype=jnp.int32)
  tokens_k = jnp.zeros(count, jnp.int32)
  return tokens_k.at[rows_v].set(tokens_v, mode='drop')


class LMHead(nn.Module):
  """LM head that belongs to a drafter, with this number of rows."""

  config: TransformerConfig
  rows: int

  @nn.compact
  def __call__(self, hidden):
    """Returns logits, float32 [.., rows], of hidden states [.., D]."""
    c = self.config
    head = self.param(
      'head', nn.initializers.normal(c.width**-0.5), (self.rows, c.width)
    )
    return kernels.logits(hidden, head, c.dtype)


@struct.dataclass
class FeatureDrafter(Drafter):
  """Base of drafters that read the target's features.

  They share the target's embedding and LM head, so they are small and serve no
  other target.

  Attributes:
    params: the drafter's parameters.
    target_head: the target's embedding and LM head.
    module: the drafter's layers, static. Its `taps` are the drafter's.
    tree: numbered breadth first, or dynamic; static.
    law: how the candidates of a node are chosen, static.
    trained_for: fingerprint of the target, static.
    coupled: see `LanguageModelDrafter`, static.
    least_confidence: see `growth.grow`.
  """

  params: Any
  target_head: TargetHead
  module: nn.Module = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False)
  trained_for: str = struct.field(pytree_node=False)
  coupled: bool = struct.field(pytree_node=False, default=False)
  least_confidence: jax.Array | None = None

  @property
  def taps(self) -> tuple[int, ...]:
    return self.module.taps

  def apply(self, *args, **kwargs):
    """Applies the module with the drafter's parameters."""
    return self.module.apply({'params': self.params}, *args, **kwargs)

  def check(self, target: LanguageModel, batch: int) -> None:
    check_fingerprint(self.trained_for, target)
    check_fits(self.params, self.tree, target)

  def with_params(self, params=None, target=None):
    drafter = self if params is None else self.replace(params=params)
    old = self.target_head
    head = TargetHead.of(old.transformer, target or old.params)
    if old.draft_rows is not None:
      head = head.narrowed(drafter.params['draft_rows'], old.num_rows)
    return drafter.replace(target_head=head)

  def read(self, features_btd):
    """Returns the features that the layers read: [B, T, D]."""
    return features_btd

  def embed(self, tokens_bt, positions_bt):
    """Returns the tokens' embeddings that the layers read: [B, T, D]."""
    placed_btd = self.target_head.place(positions_bt)
    return self.target_head.embed(tokens_bt) + placed_btd

  def logits(self, hidden_btd):
    """Returns the logits of the next token: float32 [B, T, V]."""
    return self.target_head.logits(hidden_btd)

  def _numbers(self, keys_b, length_b):
    """Returns the random numbers of a round: `candidates.random_numbers`."""
    vocab_size = self.target_head.transformer.config.vocab_size
    return candidates.random_numbers(
      self.tree, keys_b, length_b - 1, vocab_size if self.coupled else None
    )


@struct.dataclass
class OnePassDrafter(FeatureDrafter):
  """Base of drafters whose q depend on committed tokens alone.

  They read only whether `least_confidence` is set, not its value.
  """

  def outputs(self, state):
    """Returns the input of `logits` for each depth: [B, depth, D]."""
    # A pass has more outputs than a shallower tree reads.
    return state.hidden[:, : self.tree.depth]

  def propose(self, state, tokens_bs, length_b, sampling, keys_b):
    tree, law, root_b1 = self.tree, self.law, root_of(tokens_bs, length_b)
    uniform_bk2, handicap_bgv = numbers = self._numbers(keys_b, length_b)
    logits_bgv = self.logits(self.outputs(state))
    if tree.is_chain:
      tokens_bg1, valid_bg1, q_bgv = candidates.pick(
        logits_bgv,
        uniform_bk2[:, :, None],
        sampling,
        law,
        handicap_bgv,
        is_confidence=self.least_confidence is not None,
      )
      return candidates.draft_of(
        tree, law, root_b1, tokens_bg1[:, :, 0], valid_bg1[:, :, 0], q_bgv
      ), state

    # The nodes of a level share q, but have different candidates. Otherwise a
    # verifier that rejected a token under one parent would know it under
    # another.
    feed = lambda carry, level: (carry, logits_bgv[:, level.depth, None])
    return growth.grow(
      tree, law, sampling, root_b1, numbers, logits_bgv[:, :1], feed, state
    )


def shifted(features_btd):
  """Returns the feature before each token: [B, T, D], zeros at the first."""
  return jnp.pad(features_btd, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def within(index_b, size: int):
  """Returns indices of a chunk, those outside of it moved to its ends."""
  return jnp.clip(index_b, 0, size - 1)


def at(array_btd, index_b):
  """Returns each row's entry at an index, [B, 1, D]."""
  return jnp.take_along_axis(array_btd, index_b[:, None, None], axis=1)
