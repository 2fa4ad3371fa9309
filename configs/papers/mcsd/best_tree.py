r"""The best static trees of the embedded pair, searched and tried.

Sequoia (Chen et al. 2402.12374): acceptance by candidate rank and the time of a
pass by its size are measured, the best tree for every size is found by dynamic
programming, and tried beside chains and branchings of Yang et al. 2401.06706.
About eight minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/best_tree.py \
    --workdir=runs/mcsd_best_tree

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  methods = [
    dict(name='speculative (SD)', branching=(1,) * n, temperature=t)
    for t in (0.0, 1.0)
    for n in ((2,) if smoke else (2, 4, 8))
  ]
  methods += [
    dict(
      name='branching',
      branching=branching,
      temperature=t,
      verifier='multi_candidate',
      law='without_replacement',
    )
    for t in (0.0, 1.0)
    for branching in ([(2, 1)] if smoke else [(8, 2, 1, 1), (4, 2, 2, 1, 1)])
  ]
  return ml_collections.ConfigDict(
    dict(
      title='The best static trees of the pair',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 12,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_method',
      passes=not smoke,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=True,  # search the best static trees, and try them
      note='',
    )
  ).lock()
