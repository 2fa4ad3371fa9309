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

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  target = size.pair.partition('+')[0]
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
      for masks in ((1, 2) if size.smoke else range(1, 9))
    ),
    tasks=('spec_bench',) if size.pair else ('code',),
    plot='by_masks',
    note='The paper finds its best speedup at k = 4, where τ levels off.',
  )
