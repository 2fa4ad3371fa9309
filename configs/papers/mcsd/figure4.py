r"""Figure 4 of multi-candidate speculative decoding: budgets of paths.

Yang et al. 2401.06706, 4.4: branchings of 8, 16 and 32 paths and one depth at
temperature 1, decreasing and increasing ones. About three
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/figure4.py \
    --workdir=runs/mcsd_figure4

A pair of the paper (`:llama-33b+llama-68m`, on MODELS/..) decodes Alpaca;
`:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  branchings = [(2, 2), (1, 4)]
  if not smoke:
    branchings = [
      *((8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 2, 4)),
      *((8, 2, 1), (4, 4, 1), (4, 2, 2), (2, 2, 4), (1, 4, 4)),
      *((16, 2, 1), (8, 2, 2), (4, 4, 2), (2, 4, 4), (2, 2, 8)),
    ]
  methods = [
    dict(
      name='multi-candidate',
      branching=branching,
      temperature=1.0,
      verifier='multi_candidate',
      law='without_replacement',
    )
    for branching in branchings
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Multi-candidate speculative decoding: figure 4, budgets',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('alpaca',) if size.pair else ('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 12,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 96,
      seed=0,
      plot='by_budget',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'The paper (13B targets, Alpaca): factors that do not increase are the '
        'better ones of a budget, and 16 paths are faster than 32.'
      ),
    )
  ).lock()
