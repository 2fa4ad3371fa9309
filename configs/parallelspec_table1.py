"""Table 1 of ParallelSpec, on the embedded target and its trained drafters.

Xiao et al. 2410.05589: a small model (SpS), prompt lookup (PLD), Lookahead,
Medusa, Hydra and EAGLE against ParallelSpec's one-pass drafters for Medusa and
EAGLE, at temperatures 0 and 1, each as chains of several lengths; the report
names the fastest of each, and what the longest would gain if rounds cost what
the paper's do. Beside them stand prompt lookup with the small model where there
is no match, and Medusa's typical acceptance, which is not lossless. About
fifteen minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/parallelspec_table1.py \
    --workdir=runs/parallelspec1

`:smoke` is the smallest size.
"""

import ml_collections

from specsamp.evaluation import comparison

# Drafter: its name in the paper, speedup / τ at temperatures 0 and 1 (Vicuna
# 7B, the average over Spec-Bench; not all are reported).
_METHODS = {
  '': ('SpS', '1.53 / 2.27', '1.28 / 1.82'),
  'ngram': ('PLD', '1.62 / 1.75', ''),
  'lookahead': ('Lookahead', '1.35 / 1.64', ''),
  'ngram_or_draft': ('PLD, else SpS', '', ''),
  'medusa': ('Medusa', '1.42 / 2.39', ''),
  'medusa_parallel': ('Medusa + ParallelSpec', '2.31 / 3.31', ''),
  'hydra': ('Hydra', '2.13 / 3.26', ''),
  'eagle': ('EAGLE', '2.18 / 3.58', '1.84 / 3.18'),
  'eagle_parallel': ('EAGLE + ParallelSpec', '2.55 / 3.52', '2.02 / 3.09'),
}


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: smoke for the smallest run; left out, the full one."""
  smoke = comparison.is_smoke(arg)

  # The paper drafts five deep: what it reports stands beside the longest. The
  # embedded Hydra has four heads, prompt lookup copies ten tokens, Lookahead
  # has n-grams of five.
  def lengths(drafter):
    longest = {'hydra': 4, 'ngram': 10, 'lookahead': 4}.get(drafter, 5)
    return (2,) if smoke else (2, 3, longest)

  def shape(drafter, length):
    if drafter == 'lookahead':
      return dict(
        branching=(7, *(1,) * (length - 1)),
        law='deterministic',
        verifier='naive',
      )
    one = dict(branching=(1,) * length)
    if drafter == 'ngram':
      one |= dict(law='deterministic', verifier='naive')
    return one

  methods = [
    dict(
      name=name,
      drafter=drafter,
      temperature=temperature,
      **shape(drafter, length),
      paper=papers[temperature > 0] if length == lengths(drafter)[-1] else '',
    )
    for temperature in (0.0, 1.0)
    for drafter, (name, *papers) in _METHODS.items()
    for length in lengths(drafter)
  ]
  methods.append(
    dict(
      name='Medusa, typical acceptance',
      drafter='medusa',
      branching=(1,) * lengths('medusa')[-1],
      temperature=1.0,
      verifier='typical_lossy',
    )
  )
  return ml_collections.ConfigDict(
    comparison.defaults(smoke)
    | dict(
      title='ParallelSpec: table 1',
      methods=tuple(methods),
      plot='by_method',
      parts=not smoke,
      note='The paper: Vicuna 7B on an A100, token trees, Spec-Bench.',
    )
  ).lock()
