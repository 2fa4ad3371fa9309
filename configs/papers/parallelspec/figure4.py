r"""Figure 4 of ParallelSpec: speedup and τ against the number of masks.

Xiao et al. 2410.05589, section 5.3, train a drafter for every k. Here one
drafter of 8 masks serves all: mask j does not see the masks after it. A few
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/parallelspec/figure4.py \
    --workdir=runs/parallelspec4

A pair of the paper (`:vicuna-7b+vicuna-68m`, in MODELS/.., with the drafter
that `launch/distill.py` trained in MODELS/vicuna-7b-eagle_parallel) decodes
Spec-Bench; `:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.evaluation import pairs
from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  target, _ = pairs.folders(size.pair)
  most = 2 if size.smoke else 6 if size.pair in pairs.TARGETS else 8
  drafter = f'MODELS/{target}-eagle_parallel' if target else 'eagle_parallel'
  return size.comparison(
    num_prompts=16,
    title='ParallelSpec: figure 4',
    methods=tuple(
      dict(
        name='EAGLE + ParallelSpec',
        drafter=drafter,
        branching=(1,) * (1 + masks),
        temperature=temperature,
      )
      for temperature in (0.0, 1.0)
      for masks in range(1, 1 + most)
    ),
    tasks=('spec_bench',) if size.pair else ('code',),
    plot='by_masks',
    small=dict(num_prompts=4, batch_size=1),
    note='The paper finds its best speedup at k = 4, where τ levels off.',
  )
