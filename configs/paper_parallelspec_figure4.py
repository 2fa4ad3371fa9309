"""Figure 4 of ParallelSpec: speedup and τ against the number of masks.

Xiao et al. 2410.05589, section 5.3, train a drafter for every k; here one of
8 masks serves for all: mask j does not see those after it. A few minutes on
2 CPU cores.

  python launch/evaluate.py --config=configs/paper_parallelspec_figure4.py \
    --workdir=runs/parallelspec4

A pair of the paper (`:vicuna-7b+vicuna-68m`, on MODELS/.., the drafter that
`launch/distill.py` trained in MODELS/vicuna-7b-eagle_parallel) decodes
Spec-Bench; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.jobs import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
  size = config.parse(arg)
  smoke = size.smoke
  target = size.pair.partition('+')[0]
  drafter = f'MODELS/{target}-eagle_parallel' if target else 'eagle_parallel'
  methods = [
    dict(
      name='EAGLE + ParallelSpec',
      drafter=drafter,
      branching=(1,) * (1 + masks),
      temperature=temperature,
    )
    for temperature in (0.0, 1.0)
    for masks in ((1, 2) if smoke else range(1, 9))
  ]
  return ml_collections.ConfigDict(
    config.defaults(size)
    | dict(
      title='ParallelSpec: figure 4',
      methods=tuple(methods),
      tasks=('spec_bench',) if target else ('code',),
      plot='by_masks',
      note='The paper finds its best speedup at k = 4, where τ levels off.',
    )
  ).lock()
