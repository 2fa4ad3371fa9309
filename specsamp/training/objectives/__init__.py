"""Losses of the drafters that `drafting.trained` names: one for each kind."""

from collections.abc import Callable
from typing import NamedTuple

from specsamp.training.objectives import blocks, eagle3, heads, layers
from specsamp.training.objectives.batch import Weights


class Objective(NamedTuple):
  """Loss of a kind of drafters.

  Attributes:
    loss: (module, params, target_head, batch, weights) -> the loss to minimize
      and metrics, see `depths.weighted_sum`. The module is a drafter's, params
      are its parameters, `target_head` is a `TargetHead`; see `batch.Batch` and
      `batch.Weights`.
    drafts_from_features: True if the drafter reads the target's features.
  """

  loss: Callable
  drafts_from_features: bool = True

  def reads_features(self, weights: Weights) -> bool:
    """Returns True if the drafter or the loss needs the target's features."""
    return self.drafts_from_features or weights.read_p


OBJECTIVES = {
  'medusa': Objective(heads.loss),
  'hydra': Objective(heads.loss),
  'eagle': Objective(layers.eagle),
  'eagle3': Objective(eagle3.loss),
  'medusa_parallel': Objective(
    layers.medusa_parallel, drafts_from_features=False
  ),
  'eagle_parallel': Objective(layers.eagle),
  'dflash': Objective(blocks.dflash),
}
