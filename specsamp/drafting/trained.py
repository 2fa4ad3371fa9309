"""Kinds of drafters that are trained for a target, one record each."""

import dataclasses
import inspect
import operator
from typing import Any, NamedTuple

from specsamp.drafting import (
  candidates,
  dflash,
  dspark,
  eagle,
  eagle3,
  medusa,
  parallel,
  treeflash,
)
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.features import DraftModule, FeatureDrafter, TargetHead
from specsamp.errors import UserError, check_name
from specsamp.language_model import LanguageModel
from specsamp.models import TransformerConfig, float16
from specsamp.models.transformer import Layers
from specsamp.sharding import mesh as meshes


class Kind(NamedTuple):
  """Kind of trained drafters. One record adds a kind to all of the package.

  Attributes:
    name: name in configs.
    module: class of its layers. `module.for_target(target, ahead, num_layers)`
      makes them; their `ahead` is the maximum depth of a draft, None for any,
      and their `taps` are the layers of the target that they read.
    drafter: class that drafts from the layers.
    loss: 'MODULE.FUNCTION' of `specsamp.training.objectives`; None if only
      published weights exist.
    reads_features: True if the layers read the target's features.
    min_ahead: least depth that it is trained to draft.
  """

  name: str
  module: Any
  drafter: type[FeatureDrafter]
  loss: str | None = None
  reads_features: bool = True
  min_ahead: int = 1

  @property
  def fields(self) -> tuple[str, ...]:
    """Fields of the module that `for_target` takes and a folder stores.

    If a module drafts only `draft_vocab` tokens, its parameters include
    `draft_rows`, the LM head's row of each token.
    """
    return tuple(inspect.signature(self.module.for_target).parameters)[3:]

  @property
  def has_layers(self) -> bool:
    """True if the drafter is made of layers with the target's shape."""
    return issubclass(self.module, Layers)


_ALL = (
  Kind('medusa', medusa.MedusaHeads, medusa.MedusaDrafter, 'layers.heads'),
  Kind('hydra', medusa.HydraHeads, medusa.HydraDrafter, 'layers.heads'),
  Kind('eagle', eagle.EagleLayer, eagle.EagleDrafter, 'layers.eagle'),
  Kind(
    'draft_model',
    eagle.TokenLayers,
    eagle.EagleDrafter,
    'layers.on_tokens',
    reads_features=False,
  ),
  Kind('mtp', eagle.MTPLayer, eagle.EagleDrafter, 'layers.eagle'),
  Kind('eagle3', eagle3.Eagle3Layer, eagle3.Eagle3Drafter, 'eagle3.loss'),
  Kind(
    'medusa_parallel',
    parallel.MedusaParallelLayer,
    parallel.ParallelDrafter,
    'layers.on_tokens',
    reads_features=False,
    min_ahead=2,
  ),
  Kind(
    'eagle_parallel',
    parallel.EagleParallelLayer,
    parallel.ParallelDrafter,
    'layers.eagle',
    min_ahead=2,
  ),
  Kind('peagle', eagle3.PEagleLayers, eagle3.PEagleDrafter),
  Kind('dflash', dflash.DFlashLayers, dflash.DFlashDrafter, 'blocks.dflash'),
  Kind('dspark', dspark.DSparkLayers, dspark.DSparkDrafter),
  Kind(
    'treeflash',
    treeflash.TreeFlashLayers,
    treeflash.TreeFlashDrafter,
    'blocks.dflash',
  ),
)
KINDS = {kind.name: kind for kind in _ALL if kind.loss}


def make(
  name: str,
  target: TransformerConfig,
  ahead: int,
  num_layers: int = 1,
  **fields,
):
  """Returns the module of a drafter of a kind, one of `KINDS`.

  Args:
    name: name of the kind.
    target: the target's configuration.
    ahead: maximum depth of a draft; EAGLE drafts to any depth.
    num_layers: number of layers; heads have none.
    **fields: values of `Kind.fields`.

  Raises:
    UserError: the kind is unknown, `ahead` is too small, or a field is invalid.
  """
  check_name('drafter', name, KINDS)
  kind = KINDS[name]
  if operator.index(ahead) < kind.min_ahead:
    raise UserError(f'ahead: got {ahead}, expected at least {kind.min_ahead}')
  count, num_tokens = fields.get('draft_vocab', 0), target.num_tokens
  if type(count) is not int or not 0 <= count <= num_tokens:
    raise UserError(
      f'draft_vocab: got {count!r}, expected at most the {num_tokens} tokens '
      'of the target, or 0 for all'
    )
  return kind.module.for_target(target, ahead, num_layers, **fields)


def head_for(module, params, transformer, target_params) -> TargetHead:
  """Returns a target's head for a drafter with these parameters."""
  head = TargetHead.of(transformer, target_params)
  has_own = isinstance(module, (eagle3.Eagle3Layer, dflash.DFlashLayers))
  if getattr(module, 'draft_vocab', 0) and not has_own:
    return head.narrowed(params['draft_rows'], module.draft_vocab)
  return head


def kind_of(module) -> Kind:
  """Returns the kind of a module: that of its class or of a base class."""
  kinds = {kind.module: kind for kind in _ALL}
  for cls in type(module).__mro__:
    if cls in kinds:
      return kinds[cls]
  raise UserError(
    f'drafter: got a {type(module).__name__}, expected a module of '
    'specsamp.drafting.trained'
  )


def trained_drafter(
  trained: DraftModule,
  target: LanguageModel,
  shape: int | TokenTree,
  law: Law = 'iid',
  coupled: bool = False,
):
  """Returns a drafter that drafts from trained parameters.

  Args:
    trained: module and parameters, from `specsamp.zoo`, `launch/distill.py` or
      a folder of published heads.
    target: the target that they were trained for.
    shape: see `model_drafter`.
    law: see `model_drafter`.
    coupled: see `model_drafter`.

  Raises:
    UserError: the parameters are for another target or exceed its float16, the
      target has too few layers, the draft is deeper than the module drafts, or
      `model_drafter` refuses the shape, law or coupling.
  """
  tree = candidates.check_shape(shape, law, coupled)
  trained.check(target)
  module, kind = trained.module, kind_of(trained.module)
  if module.ahead is not None and tree.depth > module.ahead:
    raise UserError(
      f'{kind.name}: drafts at most {module.ahead} tokens deep, got a draft of '
      f'depth {tree.depth}'
    )
  config = dataclasses.replace(module.config, dtype=target.config.dtype)
  try:
    # Cast once here, not in every pass.
    params = float16.cast_matrices(trained.params, config.dtype)
  except float16.OutOfRange as error:
    raise UserError(
      f'{kind.name}: {error}, expected at most {float16.LARGEST:.0f} for a '
      'target in float16; load it in float32'
    ) from None
  if target.mesh is not None and meshes.of(params) != target.mesh:
    params = meshes.shard(params, target.mesh)
  drafter = kind.drafter(
    params=params,
    target_head=head_for(module, params, target.transformer, target.params),
    module=module.clone(config=config),
    tree=tree,
    law=law,
    trained_for=trained.target or target.fingerprint,
    coupled=coupled,
  )
  min_layers = max(drafter.taps, default=1)
  if target.config.num_layers < min_layers:
    raise UserError(
      f'{kind.name}: got a target of {target.config.num_layers} layers, '
      f'expected at least {min_layers}'
    )
  return drafter
