"""What the kinds of `drafting.trained` learn: one objective each."""

from collections.abc import Callable
from typing import NamedTuple

from specsamp.training.objectives import blocks, eagle3, heads, layers


class Objective(NamedTuple):
  """A loss.

  Attributes:
    loss: (module, params, target_head, batch, weights) -> loss, metrics; see
      `batch.Batch` and `batch.Weights`.
    reads_features: whether the batch must have the target's features.
  """

  loss: Callable
  reads_features: bool = True


OBJECTIVES = {
  'medusa': Objective(heads.loss),
  'hydra': Objective(heads.loss),
  'eagle': Objective(layers.eagle),
  'eagle3': Objective(eagle3.loss),
  'medusa_parallel': Objective(layers.medusa_parallel, reads_features=False),
  'eagle_parallel': Objective(layers.eagle),
  'dflash': Objective(blocks.dflash),
}
