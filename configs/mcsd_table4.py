"""Table 4 of multi-candidate speculative decoding: the ablation.

Yang et al. 2401.06706, 4.5: one tree at temperature 1, verified by every rule,
and the first one again without tree attention. About three
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/mcsd_table4.py --workdir=runs/t4

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import comparison


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  smoke = comparison.is_smoke(arg)
  branching = (2, 2) if smoke else (8, 2, 1, 1)
  rules = [
    # name, verifier, law, the paper's 33B target
    ('without replacement', 'multi_candidate', 'without_replacement',
     '2.17 / 2.71'),
    ('with replacement', 'multi_candidate', 'iid', '2.04 / 2.55'),
    ('naive', 'naive', 'iid', '1.33 / 1.65'),
    ('naive over the top choices', 'naive', 'deterministic', ''),
    ('K-SEQ', 'k_seq', 'iid', ''),
    ('traversal', 'traversal', 'without_replacement', ''),
  ]  # fmt: skip
  methods = [
    dict(
      name=name,
      branching=branching,
      temperature=1.0,
      verifier=verifier,
      law=law,
      paper='' if smoke else paper,
    )
    for name, verifier, law, paper in rules
  ]
  methods.append(
    methods[0]
    | dict(
      name='without tree attention',
      tree_attention=False,
      paper='' if smoke else '1.84 / 2.68',
    )
  )
  return ml_collections.ConfigDict(
    comparison.defaults(smoke)
    | dict(
      title='Multi-candidate speculative decoding: table 4, the ablation',
      methods=tuple(methods),
      plot='by_method',
    )
  ).lock()
