"""Figure 4 of multi-candidate speculative decoding: budgets of paths.

Yang et al. 2401.06706, 4.4: branchings of 8, 16 and 32 paths and one depth at
temperature 1, decreasing and increasing ones. About three
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/paper_mcsd_figure4.py \
    --workdir=runs/mcsd_figure4

A pair of the paper (`:llama-33b+llama-68m`, on MODELS/..) decodes Alpaca;
`:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.jobs import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
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
    config.defaults(size)
    | dict(
      title='Multi-candidate speculative decoding: figure 4, budgets',
      methods=tuple(methods),
      tasks=('alpaca',) if size.pair else ('code',),
      plot='by_budget',
      num_prompts=1 if smoke else 12,
      max_new_tokens=16 if smoke else 96,
      note=(
        'The paper (13B targets, Alpaca): factors that do not increase are the '
        'better ones of a budget, and 16 paths are faster than 32.'
      ),
    )
  ).lock()
