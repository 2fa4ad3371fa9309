"""Figure 4 of multi-candidate speculative decoding: budgets of paths.

Yang et al. 2401.06706, 4.4: branchings of 8, 16 and 32 paths and one depth at
temperature 1, decreasing and increasing ones. About three
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/mcsd_figure4.py --workdir=runs/fig4

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import comparison


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  smoke = comparison.is_smoke(arg)
  branchings = [(2, 1), (1, 2)]
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
    comparison.defaults(smoke)
    | dict(
      title='Multi-candidate speculative decoding: figure 4, budgets',
      methods=tuple(methods),
      plot='by_budget',
      num_prompts=1 if smoke else 12,
      max_new_tokens=16 if smoke else 96,
    )
  ).lock()
