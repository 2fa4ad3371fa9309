r"""Table 4 of multi-candidate speculative decoding: the ablation.

Yang et al. 2401.06706, 4.5: one tree at temperature 1, verified by every rule,
and the first rule again without tree attention. Three minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/table4.py \
    --workdir=runs/mcsd_table4

A pair of the paper (`:llama-33b+llama-68m`, in MODELS/..) decodes Alpaca;
`:smoke` or `:PAIR,smoke` is the smallest size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'

# The best tree of the pair; speedup / τ without replacement, with replacement,
# naive, and without replacement and tree attention.
_PAPER = {
  'llama-13b+llama-68m': (
    (4, 2, 2), '1.91 / 2.45', '1.89 / 2.39', '1.21 / 1.52', '1.61 / 2.47'),
  'vicuna-13b+llama-68m': (
    (16, 1), '1.64 / 2.00', '1.55 / 1.95', '1.45 / 1.78', '1.36 / 1.99'),
  'llama-33b+llama-68m': (
    (8, 2, 1, 1), '2.17 / 2.71', '2.04 / 2.55', '1.33 / 1.65', '1.84 / 2.68'),
  'vicuna-33b+llama-68m': (
    (16, 1, 1), '1.73 / 2.10', '1.66 / 2.01', '1.50 / 1.80', '1.51 / 2.09'),
}  # fmt: skip
_FIRST = 'llama-33b+llama-68m'  # whose figures the embedded pair is shown with


def get_config(arg: str | None = None):
  """Returns the config of a size, see `config.parse`."""
  size = config.parse(arg)
  pair = size.pair or _FIRST
  branching, *paper = _PAPER.get(pair, ((8, 2, 1, 1), '', '', '', ''))
  rules = (
    # name, verifier, law, figure of the paper
    ('without replacement', 'multi_candidate', 'without_replacement', paper[0]),
    ('with replacement', 'multi_candidate', 'iid', paper[1]),
    ('naive', 'naive', 'iid', paper[2]),
    ('naive over the top choices', 'naive', 'deterministic', ''),
    ('K-SEQ', 'k_seq', 'iid', ''),
    ('traversal', 'traversal', 'without_replacement', ''),
    ('top plus one', 'top_plus_one', 'top_plus_one', ''),
    ('without tree attention', 'multi_candidate', 'without_replacement',
     paper[3]),
  )  # fmt: skip
  methods = tuple(
    dict(
      name=name,
      branching=(2, 2) if size.smoke else branching,
      temperature=1.0,
      verifier=verifier,
      law=law,
      tree_attention=name != 'without tree attention',
      paper='' if size.smoke else figure,
    )
    for name, verifier, law, figure in rules
  )
  return size.comparison(
    num_prompts=16,
    title='Multi-candidate speculative decoding: table 4, the ablation',
    methods=methods,
    tasks=('alpaca',) if size.pair else ('code',),
    bounds=not size.smoke,
    note=f'The paper: {pair}, Alpaca.'
    if pair in _PAPER
    else f'The paper has no figures of {pair}.',
  )
