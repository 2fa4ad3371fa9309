"""Figure 4 of ParallelSpec: speedup and τ against the number of masks.

Xiao et al. 2410.05589, section 5.3, train a drafter for every k; here one of
8 masks serves for all: mask j does not see those after it. A few minutes on
2 CPU cores.

  python launch/evaluate.py --config=configs/paper_parallelspec_figure4.py \
    --workdir=runs/parallelspec4

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import experiments


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
  size = experiments.parse(arg)
  smoke = size.smoke
  methods = [
    dict(
      name='EAGLE + ParallelSpec',
      drafter='eagle_parallel',
      branching=(1,) * (1 + masks),
      temperature=temperature,
    )
    for temperature in (0.0, 1.0)
    for masks in ((1, 2) if smoke else range(1, 9))
  ]
  return ml_collections.ConfigDict(
    experiments.defaults(size)
    | dict(
      title='ParallelSpec: figure 4',
      methods=tuple(methods),
      plot='by_masks',
      note='The paper finds its best speedup at k = 4, where τ levels off.',
    )
  ).lock()
