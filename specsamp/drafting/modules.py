"""The kinds of trained drafters, and a drafter made of one."""

import dataclasses
import operator

from specsamp.drafting import candidates
from specsamp.drafting.draft import Law, TokenTree
from specsamp.drafting.eagle import DraftLayer, EagleDrafter
from specsamp.drafting.eagle3 import Eagle3Drafter, Eagle3Layer, check_depth
from specsamp.drafting.features import DraftModule, TargetHead
from specsamp.drafting.hydra import HydraDrafter
from specsamp.drafting.medusa import Heads, MedusaDrafter
from specsamp.drafting.parallel import ParallelDrafter
from specsamp.errors import UserError
from specsamp.language_model import LanguageModel
from specsamp.models import TransformerConfig
from specsamp.sharding import mesh as meshes

# Those that are trained here.
KINDS = ('medusa', 'hydra', 'eagle', 'medusa_parallel', 'eagle_parallel')


def make(kind: str, target: TransformerConfig, ahead: int, num_layers: int = 1):
  """The layers of a drafter of this kind.

  Args:
    kind: one of `KINDS`.
    target: shape of the target.
    ahead: tokens that it drafts in a round: heads, or masks and one; EAGLE
      drafts as many as it is asked for.
    num_layers: of the target's shape; heads have none.

  Raises:
    UserError: an unknown kind, or nothing ahead.
  """
  least = 2 if kind.endswith('parallel') else 1
  if operator.index(ahead) < least:
    raise UserError(f'ahead: got {ahead}, expected at least {least}')
  shape = dataclasses.replace(target, num_layers=num_layers)
  match kind:
    case 'medusa' | 'hydra':
      return Heads(target, ahead, reads_path=kind == 'hydra')
    case 'eagle':
      return DraftLayer(shape)
    case 'medusa_parallel' | 'eagle_parallel':
      return DraftLayer(shape, ahead - 1, kind == 'eagle_parallel')
  raise UserError(f'drafter: got {kind!r}, expected one of {", ".join(KINDS)}')


def kind_of(module) -> tuple[str, int]:
  """(kind, ahead) of which `make` makes this module, or one of its kind.

  EAGLE's layers, 'eagle' and 'eagle3', draft as many tokens as they are asked
  for.
  """
  if isinstance(module, Eagle3Layer):
    return 'eagle3', 1
  if isinstance(module, Heads):
    return 'hydra' if module.reads_path else 'medusa', module.num_heads
  if not module.num_masks:
    return 'eagle', 1
  name = 'eagle_parallel' if module.reads_features else 'medusa_parallel'
  return name, module.num_masks + 1


def trained_drafter(
  trained: DraftModule,
  target: LanguageModel,
  shape: int | TokenTree,
  law: Law = 'iid',
):
  """A drafter that drafts from trained layers.

  Args:
    trained: of `specsamp.zoo`, `launch/distill.py` or a folder of heads that
      others have published.
    target: that they were trained for.
    shape: a draft length, or a tree numbered breadth first.
    law: how the candidates of a node are chosen: `iid`, `without_replacement`
      or `deterministic` (the most probable ones).

  Raises:
    UserError: layers of another target, a target of too few layers for what
      they read of it, a deeper draft than they can make, or a shape or law as
      of `model_drafter`.
  """
  tree = candidates.check_shape(shape, law)
  trained.check(target)
  kind, ahead = kind_of(trained.module)
  if kind == 'eagle3':
    check_depth(target.config)
  if kind not in ('eagle', 'eagle3') and tree.depth > ahead:
    raise UserError(
      f'{kind}: drafts at most {ahead} tokens deep, got a draft of depth '
      f'{tree.depth}'
    )
  drafters = {
    'medusa': MedusaDrafter,
    'hydra': HydraDrafter,
    'eagle': EagleDrafter,
    'eagle3': Eagle3Drafter,
  }
  config = dataclasses.replace(trained.module.config, dtype=target.config.dtype)
  params = trained.params
  if meshes.of(params) != target.mesh:
    if target.mesh is None:
      raise UserError(
        'drafter: lies on a mesh and the target on one device; load it anew'
      )
    params = meshes.shard(params, target.mesh)
  return drafters.get(kind, ParallelDrafter)(
    params=params,
    target_head=TargetHead.of(target.transformer, target.params),
    module=trained.module.clone(config=config),
    tree=tree,
    law=law,
    trained_for=trained.target or target.fingerprint,
  )
