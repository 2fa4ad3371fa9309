"""Figure 4 of multi-candidate speculative decoding: budgets of paths.

Yang et al. 2401.06706, 4.4: branchings of 8, 16 and 32 paths and one depth at
temperature 1, decreasing and increasing ones. About MINUTES on 2 CPU cores.

  python launch/evaluate.py --config=configs/mcsd_figure4.py \\
    --workdir=runs/figure4

`:smoke` is the smallest size.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(f'expected smoke or nothing, got {arg!r}')
  smoke = arg == 'smoke'
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
    dict(
      title='Multi-candidate speculative decoding: figure 4, budgets',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      # A JSON list of texts, such as the paper's WMT prompts; '' takes
      # held-out functions.
      prompts='',
      num_prompts=1 if smoke else 12,
      max_prompt_tokens=96 if smoke else 128,
      max_new_tokens=16 if smoke else 96,
      seed=0,
      plot='by_budget',
      passes=False,
      search=False,
    )
  ).lock()
