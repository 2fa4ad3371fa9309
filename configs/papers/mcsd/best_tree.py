r"""The best static trees of the embedded pair, searched and compared.

Sequoia (Chen et al. 2402.12374): measures acceptance by candidate rank and the
time of a pass by its size, and finds the best tree of every size by dynamic
programming. The report compares them with chains and branchings of Yang et al.
2401.06706. Eight minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/best_tree.py \
    --workdir=runs/mcsd_best_tree

`:smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  lengths = (2,) if size.smoke else (2, 4, 8)
  branchings = [(2, 1)] if size.smoke else [(8, 2, 1, 1), (4, 2, 2, 1, 1)]
  rule = dict(verifier='multi_candidate', law='without_replacement')
  methods = [
    *(
      dict(name='speculative (SD)', branching=(1,) * length, temperature=t)
      for t in (0.0, 1.0)
      for length in lengths
    ),
    *(
      dict(name='branching', branching=branching, temperature=t, **rule)
      for t in (0.0, 1.0)
      for branching in branchings
    ),
  ]
  return size.comparison(
    num_prompts=12,
    title='The best static trees of the pair',
    methods=tuple(methods),
    passes=not size.smoke,
    search=True,
  )
