r"""Figure 4 of multi-candidate speculative decoding: budgets of paths.

Yang et al. 2401.06706, 4.4: branchings of 8, 16 and 32 paths and one depth at
temperature 1, decreasing and increasing ones. Three minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/figure4.py \
    --workdir=runs/mcsd_figure4

A pair of the paper (`:llama-33b+llama-68m`, in MODELS/..) decodes Alpaca;
`:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'

_BRANCHINGS = (
  *((8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 2, 4)),
  *((8, 2, 1), (4, 4, 1), (4, 2, 2), (2, 2, 4), (1, 4, 4)),
  *((16, 2, 1), (8, 2, 2), (4, 4, 2), (2, 4, 4), (2, 2, 8)),
)


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  return size.comparison(
    num_prompts=12,
    max_new_tokens=96,
    title='Multi-candidate speculative decoding: figure 4, budgets',
    methods=tuple(
      dict(
        name='multi-candidate',
        branching=branching,
        temperature=1.0,
        verifier='multi_candidate',
        law='without_replacement',
      )
      for branching in (((2, 2), (1, 4)) if size.smoke else _BRANCHINGS)
    ),
    tasks=('alpaca',) if size.pair else ('code',),
    plot='by_budget',
    note=(
      'The paper (13B targets, Alpaca): factors that do not increase are the '
      'better ones of a budget, and 16 paths are faster than 32.'
    ),
  )
