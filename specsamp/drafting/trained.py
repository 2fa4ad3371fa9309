"""The kinds of drafters that are trained for a target: one record each."""

import dataclasses
import operator
from typing import Any, NamedTuple

from specsamp.drafting import candidates
from specsamp.drafting.dflash import DFlashDrafter, DFlashLayers
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.eagle import EagleDrafter, EagleLayer
from specsamp.drafting.eagle3 import Eagle3Drafter, Eagle3Layer
from specsamp.drafting.features import DraftModule, FeatureDrafter, TargetHead
from specsamp.drafting.hydra import HydraDrafter, HydraHeads
from specsamp.drafting.medusa import MedusaDrafter, MedusaHeads
from specsamp.drafting.parallel import (
  EagleParallelLayer,
  MedusaParallelLayer,
  ParallelDrafter,
)
from specsamp.drafting.peagle import PEagleDrafter, PEagleLayers
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.models import TransformerConfig, float16
from specsamp.sharding import mesh as meshes


class Kind(NamedTuple):
  """A kind of trained drafters.

  Attributes:
    name: in configs.
    module: class of its parameters. `module.of(target, ahead, num_layers)` is
      for a target; `ahead` of one is how deep it drafts, None for any depth.
    drafter: drafts from a module.
    least_ahead: the fewest tokens that it is trained to draft.
    has_layers: whether it is made of layers of the target's shape.
    fields: of the module, beside those that all have: `of` takes them, and a
      folder holds them. With `draft_vocab`, how many tokens it can draft, its
      parameters have `draft_rows`, which ones.
    is_trained_here: else its weights are others'.
  """

  name: str
  module: Any
  drafter: type[FeatureDrafter]
  least_ahead: int = 1
  has_layers: bool = True
  fields: tuple[str, ...] = ()
  is_trained_here: bool = True


_ALL = (
  Kind('medusa', MedusaHeads, MedusaDrafter, has_layers=False),
  Kind('hydra', HydraHeads, HydraDrafter, has_layers=False),
  Kind('eagle', EagleLayer, EagleDrafter),
  Kind(
    'eagle3',
    Eagle3Layer,
    Eagle3Drafter,
    fields=('draft_vocab', 'has_embedding', 'taps'),
  ),
  Kind('medusa_parallel', MedusaParallelLayer, ParallelDrafter, least_ahead=2),
  Kind('eagle_parallel', EagleParallelLayer, ParallelDrafter, least_ahead=2),
  Kind('peagle', PEagleLayers, PEagleDrafter, is_trained_here=False),
  Kind('dflash', DFlashLayers, DFlashDrafter, fields=('taps',)),
)
KINDS = {kind.name: kind for kind in _ALL if kind.is_trained_here}


def make(
  name: str,
  target: TransformerConfig,
  ahead: int,
  num_layers: int = 1,
  **fields,
):
  """The module of a drafter of this kind.

  Args:
    name: one of `KINDS`.
    target: shape of the target.
    ahead: tokens that it drafts in a round: heads, or masks and one; EAGLE
      drafts as many as it is asked for.
    num_layers: of the target's shape; heads have none.
    **fields: of those that this kind has, others than `of` would choose.

  Raises:
    UserError: an unknown kind, too few tokens ahead, or fields of no module.
  """
  check_name('drafter', name, KINDS)
  kind = KINDS[name]
  if operator.index(ahead) < kind.least_ahead:
    raise UserError(f'ahead: got {ahead}, expected at least {kind.least_ahead}')
  return kind.module.of(target, ahead, num_layers, **fields)


def kind_of(module) -> Kind:
  """The kind of a module, or of the class that its own comes from."""
  classes = {kind.module: kind for kind in _ALL}
  for each in type(module).__mro__:
    if each in classes:
      return classes[each]
  raise UserError(
    f'drafter: got a {type(module).__name__}, which is no module of '
    'specsamp.drafting.trained'
  )


def taps(module) -> tuple[int, ...]:
  """Layers of the target whose input a module is trained on; see `Drafter`."""
  return getattr(module, 'taps', ())


def trained_drafter(
  trained: DraftModule,
  target: LanguageModel,
  shape: int | TokenTree,
  law: Law = 'iid',
):
  """A drafter that drafts from trained parameters.

  Args:
    trained: of `specsamp.zoo`, `launch/distill.py` or a folder of heads that
      others have published.
    target: that they were trained for.
    shape: a draft length, or a tree numbered breadth first.
    law: how the candidates of a node are chosen: `iid`, `without_replacement`,
      `top_plus_one` (the most probable ones and one draw) or `deterministic`
      (the most probable ones).

  Raises:
    UserError: parameters for another target, or beyond the float16 that it
      computes in, a target of too few layers for what they read of it, a
      deeper draft than they can make, or a shape or law that `model_drafter`
      refuses.
  """
  tree = candidates.check_shape(shape, law)
  trained.check(target)
  module = trained.module
  kind = kind_of(module)
  fewest = kind.drafter.fewest_layers(module)
  if target.config.num_layers < fewest:
    raise UserError(
      f'{kind.name}: got a target of {target.config.num_layers} layers, '
      f'expected at least {fewest}'
    )
  if module.ahead is not None and tree.depth > module.ahead:
    raise UserError(
      f'{kind.name}: drafts at most {module.ahead} tokens deep, got a draft of '
      f'depth {tree.depth}'
    )
  config = dataclasses.replace(module.config, dtype=target.config.dtype)
  try:
    # Once, and not in every pass.
    params = float16.cast_matrices(trained.params, config.dtype)
  except float16.OutOfRange as error:
    raise UserError(
      f'{kind.name}: {error}, expected at most {float16.LARGEST:.0f} for a '
      'target in float16; load it in float32'
    ) from None
  if meshes.of(params) != target.mesh:
    if target.mesh is None:
      raise UserError(
        'drafter: lies on a mesh and the target on one device; load it anew'
      )
    params = meshes.shard(params, target.mesh)
  return kind.drafter(
    params=params,
    target_head=TargetHead.of(target.transformer, target.params),
    module=module.clone(config=config),
    tree=tree,
    law=law,
    trained_for=trained.target or target.fingerprint,
  )
