r"""Rules for trees of drawn and of most probable tokens, compared by τ.

The same trees at temperatures 0.6 and 1: multi-candidate and traversal
verification of candidates drawn without replacement, and `top_plus_one`, top
down and by traversal. `docs/results/traversal.md` has their exact figures for
random models. The best static trees of the pair are searched and compared as in
`configs/papers/mcsd/best_tree.py`. Prompts are decoded in batches, because τ
needs no times. About half an hour on 2 CPU cores.

  python launch/evaluate.py --config=configs/tree_rules.py \
    --workdir=runs/tree_rules

`:tree` compares the rules on one tree, ten minutes; `--config.search=true` adds
the search. For another pair:

  python launch/evaluate.py --config=configs/tree_rules.py:tree \
    --workdir=runs/tree_rules_pair --config.target=TARGET --config.draft=DRAFT \
    --config.dtype=float32 --config.num_prompts=6 --config.batch_size=6 \
    --config.max_new_tokens=48

`:smoke` is the smallest size.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'evaluate'

_RULES = (  # name, verifier, law
  ('multi-candidate', 'multi_candidate', 'without_replacement'),
  ('traversal', 'traversal', 'without_replacement'),
  ('top plus one', 'top_plus_one', 'top_plus_one'),
  ('traversal of top plus one', 'traversal', 'top_plus_one'),
)


def get_config(arg: str | None = None):
  """Returns the config of trees, tree or smoke."""
  arg = arg or 'trees'
  check_name('argument', arg, ('trees', 'tree', 'smoke'))
  smoke = arg == 'smoke'
  branchings = dict(trees=((2, 2, 2, 1), (8, 2, 1, 1)), smoke=((2, 2),))
  return config_dict(
    ComparisonConfig,
    title='Rules for trees',
    methods=tuple(
      dict(
        name=name,
        branching=branching,
        temperature=temperature,
        verifier=verifier,
        law=law,
      )
      for temperature in ((1.0,) if smoke else (0.6, 1.0))
      for branching in branchings.get(arg, ((2, 2, 2, 1),))
      for name, verifier, law in _RULES
    ),
    num_prompts=1 if smoke else 32,
    batch_size=1 if smoke else 16,
    max_prompt_tokens=32 if smoke else 128,
    max_new_tokens=16 if smoke else 96,
    search=arg == 'trees',
  )
