r"""Trees whose shape each draft chooses, against the best static ones.

EAGLE-2 (Li et al. 2406.16858) for EAGLE, DDTree (2604.12989) for three layers
that draft in one pass: of 8, 16, 32 and 64 nodes, beside the best static trees
of as many, which are searched as in `configs/papers/mcsd/best_tree.py`, from
what these drafters accept of the same prompts. Greedy and at temperature 1,
where static trees are draws and dynamic ones the most probable tokens. Each
about ten minutes on 2 CPU cores.

  python launch/evaluate.py --workdir=runs/dynamic_eagle \
    --config=configs/dynamic_trees.py:eagle
  python launch/evaluate.py --workdir=runs/dynamic_deep \
    --config=configs/dynamic_trees.py:eagle_parallel_deep

A static tree as deep as another draft is not always the best: acceptance falls
with depth, which a search by rank alone does not know:
`--config.search_depth=4` bounds it. `:smoke` is the smallest size.
"""

import ml_collections

from specsamp.errors import describe_unknown

_ARGS = 'eagle', 'eagle_parallel_deep', 'smoke'


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: one of `_ARGS`; eagle if left out."""
  arg = arg or 'eagle'
  if arg not in _ARGS:
    raise ValueError(describe_unknown('argument', arg, _ARGS))
  smoke = arg == 'smoke'
  drafter = 'eagle' if smoke else arg
  # EAGLE-2's: ten of a level are read. A pass of masks knows all levels.
  most = 4 if smoke else 11 if drafter == 'eagle' else 64
  # What is drafted in one pass is seldom accepted further down.
  depth = 2 if smoke else 8 if drafter == 'eagle' else 4
  methods = [
    dict(
      name='dynamic tree',
      drafter=drafter,
      dynamic_tree=(nodes, min(depth, nodes - 1), min(most, nodes) - 1),
      temperature=temperature,
      law='deterministic',
      verifier='naive',
    )
    for temperature in (0.0, 1.0)
    for nodes in ((8,) if smoke else (8, 16, 32, 64))
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Dynamic and static trees',
      target='',  # a folder of a model; '' is the embedded pair's
      draft='',  # likewise
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code',),  # held-out functions
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 12,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 128,
      max_new_tokens=16 if smoke else 96,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=not smoke,  # search the best static trees, and try them
      searched=drafter,  # whose trees; '' is the draft model
      search_depth=depth,  # of these trees, at most
      note='',
    )
  ).lock()
