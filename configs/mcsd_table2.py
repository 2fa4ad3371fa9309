"""Table 2 of multi-candidate speculative decoding, on the embedded pair.

Yang et al. 2401.06706: chains of several lengths ("SD same γ", "SD best γ")
against trees of several candidates, without replacement, at temperatures 0 and
1. The report names the best of each, the chain as long as the best tree, and at
which cost of a pass a tree would win where it does not. About
eight minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/mcsd_table2.py --workdir=runs/t2

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import comparison


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  smoke = comparison.is_smoke(arg)
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
      )
      for branching in trees
    ]
  return ml_collections.ConfigDict(
    comparison.defaults(smoke)
    | dict(
      title='Multi-candidate speculative decoding: table 2',
      methods=tuple(methods),
      plot='by_method',
      passes=True,
      note=(
        'The paper (33B target, 68M draft, Alpaca; speedup / τ): t=0 SD of the '
        'same γ 2.71 / 3.19, of the best 2.89 / 3.70, 4x2x2x1x1 3.06 / 3.93; '
        't=1 1.69 / 1.98, 1.73 / 2.02, 8x2x1x1 2.17 / 2.71.'
      ),
    )
  ).lock()
