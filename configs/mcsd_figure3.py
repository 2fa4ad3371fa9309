"""Figure 3 of multi-candidate speculative decoding: acceptance by candidates.

Yang et al. 2401.06706: the share of rounds that accept one of 1 to 64
candidates for the next token. About three minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/mcsd_figure3.py --workdir=runs/fig3

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import comparison


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  smoke = comparison.is_smoke(arg)
  candidates = (1, 4) if smoke else (1, 2, 4, 8, 16, 32, 64)
  rules = [
    ('without replacement', 'multi_candidate', 'without_replacement'),
    ('with replacement', 'multi_candidate', 'iid'),
    ('naive', 'naive', 'without_replacement'),
  ]
  methods = [
    dict(
      name=name,
      branching=(count,),
      temperature=temperature,
      verifier=verifier,
      law=law,
    )
    for temperature in (0.0, 1.0)
    for name, verifier, law in rules
    for count in candidates
    # At temperature 0 all rules are the same.
    if temperature or law != 'iid' and verifier != 'naive'
  ]
  return ml_collections.ConfigDict(
    comparison.defaults(smoke)
    | dict(
      title='Multi-candidate speculative decoding: figure 3',
      methods=tuple(methods),
      plot='by_candidates',
      num_prompts=1 if smoke else 8,
      max_new_tokens=16 if smoke else 64,
    )
  ).lock()
