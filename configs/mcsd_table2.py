"""Table 2 of multi-candidate speculative decoding, on the embedded pair.

Yang et al. 2401.06706: chains of several lengths ("SD same γ", "SD best γ")
against trees of several candidates, without replacement, at temperatures 0 and
1. The report names the best of each, the chain as long as the best tree, and at
which cost of a pass a tree would win where it does not. About MINUTES on 2 CPU
cores.

  python launch/evaluate.py --config=configs/mcsd_table2.py \\
    --workdir=runs/table2

`:smoke` is the smallest size.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  if arg not in (None, 'smoke'):
    raise ValueError(f'expected smoke or nothing, got {arg!r}')
  smoke = arg == 'smoke'
  chains = (2, 4) if smoke else (2, 3, 4, 5, 6, 8)
  trees = [(2, 2), (4, 2, 1)]
  if not smoke:
    trees = [
      (2, 1, 1, 1),
      (2, 2, 1, 1, 1, 1),
      (8, 2, 1, 1),
      (4, 2, 2, 1, 1),
      (4, 2, 2, 1, 1, 1),
      (3, 2, 2, 1, 1, 1, 1, 1),
    ]
  methods = []
  for temperature in (0.0, 1.0):
    methods += [
      dict(name='speculative (SD)', branching=(1,) * n, temperature=temperature)
      for n in chains
    ]
    methods += [
      dict(
        name='multi-candidate',
        branching=branching,
        temperature=temperature,
        verifier='multi_candidate',
        law='without_replacement',
        paper={
          (8, 2, 1, 1): '2.17 / 2.71' if temperature else '',
          (4, 2, 2, 1, 1): '' if temperature else '3.06 / 3.93',
        }.get(branching, ''),
      )
      for branching in trees
    ]
  return ml_collections.ConfigDict(
    dict(
      title='Multi-candidate speculative decoding: table 2',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      # A JSON list of texts, such as the paper's WMT prompts; '' takes
      # held-out functions.
      prompts='',
      num_prompts=1 if smoke else 16,
      max_prompt_tokens=96 if smoke else 128,
      max_new_tokens=16 if smoke else 128,
      seed=0,
      plot='by_method',
      passes=True,
      search=False,
    )
  ).lock()
