"""What the kinds of `drafting.trained` learn: one objective each."""

from collections.abc import Callable
from typing import NamedTuple

from specsamp.training.objectives import blocks, eagle3, heads, layers
from specsamp.training.objectives.batch import Weights


class Objective(NamedTuple):
  """A loss.

  Attributes:
    loss: (module, params, target_head, batch, weights) -> loss, metrics; see
      `batch.Batch` and `batch.Weights`.
    drafts_from_features: whether its drafter reads the target's features.
  """

  loss: Callable
  drafts_from_features: bool = True

  def reads_features(self, weights: Weights) -> bool:
    """Whether a batch must have them, for the drafter or for the loss."""
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
