r"""Figure 4 of ParallelSpec: speedup and τ against the number of masks.

Xiao et al. 2410.05589, section 5.3, train a drafter for every k; here one of
8 masks serves for all: mask j does not see those after it. A few minutes on
2 CPU cores.

  python launch/evaluate.py --config=configs/papers/parallelspec/figure4.py \
    --workdir=runs/parallelspec4

A pair of the paper (`:vicuna-7b+vicuna-68m`, on MODELS/.., the drafter that
`launch/distill.py` trained in MODELS/vicuna-7b-eagle_parallel) decodes
Spec-Bench; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
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
    dict(
      title='ParallelSpec: figure 4',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('spec_bench',) if size.pair else ('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_masks',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='The paper finds its best speedup at k = 4, where τ levels off.',
    )
  ).lock()
