r"""Trees whose shape each draft chooses, against the best static ones.

EAGLE-2 (Li et al. 2406.16858) for EAGLE, and DDTree (2604.12989) for a layer
that drafts in one pass: trees of 8, 16, 32 and 64 nodes, and the best static
trees of the same sizes. These are searched as in
`configs/papers/mcsd/best_tree.py`, from the acceptance of these drafters on the
same prompts. Greedy and at temperature 1, where static trees are drawn and
dynamic ones have the most probable tokens. Ten minutes each on 2 CPU cores.

  python launch/evaluate.py --workdir=runs/dynamic_eagle \
    --config=configs/dynamic_trees.py:eagle
  python launch/evaluate.py --workdir=runs/dynamic_parallel \
    --config=configs/dynamic_trees.py:eagle_parallel

The deepest static tree is not always the best, because acceptance falls with
depth and the search only knows the rank: `--config.search_depth=4` bounds it.
`:smoke` is the smallest size.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  """Returns the config of eagle, eagle_parallel or smoke."""
  arg = arg or 'eagle'
  check_name('argument', arg, ('eagle', 'eagle_parallel', 'smoke'))
  smoke = arg == 'smoke'
  drafter = 'eagle' if smoke else arg
  # EAGLE-2 reads ten tokens of a level. One pass of masks knows all levels,
  # but its tokens are seldom accepted further down.
  widest, depth = {'eagle': (11, 8), 'smoke': (4, 2)}.get(arg, (64, 4))
  return config_dict(
    ComparisonConfig,
    title='Dynamic and static trees',
    methods=tuple(
      dict(
        name='dynamic tree',
        drafter=drafter,
        dynamic_tree=(nodes, min(depth, nodes - 1), min(widest, nodes) - 1),
        temperature=temperature,
        law='deterministic',
        verifier='naive',
      )
      for temperature in (0.0, 1.0)
      for nodes in ((8,) if smoke else (8, 16, 32, 64))
    ),
    num_prompts=1 if smoke else 12,
    max_prompt_tokens=32 if smoke else 128,
    max_new_tokens=16 if smoke else 96,
    search=not smoke,
    searched=drafter,
    search_depth=depth,
  )
