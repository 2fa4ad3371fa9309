"""What drafters share that were trained on the features of one target.

They read its features, its embedding and its LM head, so that they are small,
and of use to no other target.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.drafter import Drafter, check_fits
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import Transformer, TransformerConfig, kernels
from specsamp.sampling import draw
from specsamp.sharding.rules import constrain

_SHARED = ('embedding', 'position_embedding', 'head')


@struct.dataclass
class TargetHead:
  """A target's embedding and LM head: the target's own arrays, no copies.

  Attributes:
    params: of the target, those that belong to no layer.
    transformer: the target, static.
  """

  params: Any
  transformer: Transformer = struct.field(pytree_node=False)

  @classmethod
  def of(cls, transformer: Transformer, params) -> 'TargetHead':
    """The head of a target with these parameters."""
    shared = {name: params[name] for name in _SHARED if name in params}
    return cls(params=shared, transformer=transformer)

  def embed(self, tokens_bt):
    return self._apply('embed', tokens_bt)

  def place(self, positions_bt):
    return self._apply('place', positions_bt)

  def logits(self, hidden_btd):
    return self._apply('logits', hidden_btd)

  def widen(self, logits_btv):
    """Logits of another LM head, of as many rows as the target's has.

    A target that is sharded, or has fewer pieces than rows, has rows
    that are no tokens.
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
  """A trained drafter as it is stored: what `load` and the zoo return.

  Attributes:
    module: its own layers, of a kind that `specsamp.drafting.trained` names.
    params: theirs.
    target: `LanguageModel.fingerprint` of the target it was trained for; ''
      if its folder does not tell, as those that others have written.
  """

  module: nn.Module
  params: Any
  target: str

  def __repr__(self) -> str:
    """Returns one line. The parameters would fill many pages."""
    count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
    kind = type(self.module).__name__
    return f'DraftModule({kind}, {count / 1e6:,.1f}M parameters)'

  def check(self, target: LanguageModel) -> None:
    """Raises `UserError` if it was trained for another target.

    Where it is not known, only shapes are compared.
    """
    own, there = self.module.config, target.config
    # A layer with an embedding of its own may be of another width.
    width = getattr(self.module, 'target_width', 0) or own.width
    # Rows that are no tokens may have been added on a mesh, and not here.
    wrong = [('width', width, there.width)] * (width != there.width)
    if not there.num_tokens <= own.vocab_size <= there.vocab_size:
      wrong.append(('vocab_size', own.vocab_size, there.vocab_size))
    for name, got, expected in wrong:
      raise UserError(
        f'drafter: trained for a target of {name} {got}, this one has '
        f'{expected}'
      )
    if self.target:
      check_fingerprint(self.target, target)


def check_fingerprint(trained_for: str, target: LanguageModel) -> None:
  """Raises `UserError` if these are not the weights of the target."""
  if trained_for != target.fingerprint:
    raise UserError(
      f'drafter: trained for the target {trained_for}, this one is '
      f'{target.fingerprint}; a drafter serves the weights it was trained on'
    )


class LMHead(nn.Module):
  """An LM head that is a drafter's own.

  Attributes:
    config: of the drafter.
    rows: logits that it makes.
  """

  config: TransformerConfig
  rows: int

  @nn.compact
  def __call__(self, hidden):
    """[.., D] -> float32 [.., rows]."""
    c = self.config
    head = self.param(
      'head', nn.initializers.normal(c.width**-0.5), (self.rows, c.width)
    )
    return kernels.logits(hidden, head, c.dtype)


@struct.dataclass
class FeatureDrafter(Drafter):
  """What the drafters of this kind have in common.

  Attributes:
    params: the drafter's own.
    target_head: the target's embedding and LM head.
    module: the drafter's own layers, static.
    tree: numbered breadth first, static.
    law: how the candidates of a node are chosen, static.
    trained_for: fingerprint of the target, static.
    least_confidence: see `growth.grow`, which some do not ask at every depth.
  """

  params: Any
  target_head: TargetHead
  module: nn.Module = struct.field(pytree_node=False)
  tree: TokenTree = struct.field(pytree_node=False)
  law: Law = struct.field(pytree_node=False)
  trained_for: str = struct.field(pytree_node=False)
  least_confidence: jax.Array | None = None

  @classmethod
  def fewest_layers(cls, module: nn.Module) -> int:
    """Of a target that this module can read."""
    return 1

  def check(self, target: LanguageModel, batch: int) -> None:
    check_fingerprint(self.trained_for, target)
    check_fits(self.params, self.tree, target)

  def with_params(self, params=None, target=None):
    drafter = self if params is None else self.replace(params=params)
    if target is None:
      return drafter
    head = TargetHead.of(self.target_head.transformer, target)
    return drafter.replace(target_head=head)

  def read(self, features_btd):
    """What of the target's features a token is paired with: [B, T, D]."""
    return features_btd

  def embed(self, tokens_bt, positions_bt):
    """What is paired with it: [B, T, D]."""
    return self.target_head.embed(tokens_bt) + self.target_head.place(
      positions_bt
    )

  def logits(self, hidden_btd):
    """Logits of the next token: float32 [B, T, V]."""
    return self.target_head.logits(hidden_btd)

  def _uniforms(self, keys_b, length_b):
    """Returns the numbers of a draw for each drafted node, [B, N - 1, 2]."""
    keys_b = draw.stream_keys(keys_b, length_b - 1, draw.Stream.DRAFT)
    return draw.uniforms(keys_b, self.tree.size - 1)


def as_taps(taps: Sequence[int]) -> tuple[int, ...]:
  """Layers whose inputs are read; `UserError` if these are no numbers of any.

  How many they are is held to the shapes of parameters.
  """
  if not all(type(tap) is int and tap >= 0 for tap in taps):
    raise UserError(f'taps: got {taps!r}, expected numbers of layers')
  return tuple(taps)


def shifted(features_btd):
  """Each token beside the feature before it: [B, T, D], zeros at the first."""
  return jnp.pad(features_btd, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def at(array_btd, index_b):
  """[B, 1, D], the entry of each row's index."""
  return jnp.take_along_axis(array_btd, index_b[:, None, None], axis=1)
