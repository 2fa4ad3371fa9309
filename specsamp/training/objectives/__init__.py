"""Losses of the drafters that `drafting.trained` names: one for each kind.

A loss is a function of a drafter's module, its parameters, a `TargetHead`, a
`depths.Batch` and a `DistillConfig`. It returns the loss to minimize and the
metrics of `depths.weighted_sum`.
"""

from specsamp.training.objectives import blocks, eagle3, layers

LOSSES = {
  'medusa': layers.heads,
  'hydra': layers.heads,
  'eagle': layers.eagle,
  'eagle3': eagle3.loss,
  'medusa_parallel': layers.medusa_parallel,
  'eagle_parallel': layers.eagle,
  'dflash': blocks.dflash,
}
