r"""Table 4 of multi-candidate speculative decoding: the ablation.

Yang et al. 2401.06706, 4.5: one tree at temperature 1, verified by every rule,
and the first one again without tree attention. About three
minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/table4.py \
    --workdir=runs/mcsd_table4

A pair of the paper (`:llama-33b+llama-68m`, on MODELS/..) decodes Alpaca;
`:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config

# The best tree of the pair; speedup / τ without replacement, with it, naive,
# and the first without tree attention.
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
_FIRST = 'llama-33b+llama-68m'  # stands beside the embedded pair


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  unknown = ((8, 2, 1, 1), '', '', '', '')
  branching, *paper = _PAPER.get(size.pair or _FIRST, unknown)
  branching = (2, 2) if smoke else branching
  rules = [
    # name, verifier, law, what the paper reports
    ('without replacement', 'multi_candidate', 'without_replacement', paper[0]),
    ('with replacement', 'multi_candidate', 'iid', paper[1]),
    ('naive', 'naive', 'iid', paper[2]),
    ('naive over the top choices', 'naive', 'deterministic', ''),
    ('K-SEQ', 'k_seq', 'iid', ''),
    ('traversal', 'traversal', 'without_replacement', ''),
    ('top plus one', 'top_plus_one', 'top_plus_one', ''),
  ]  # fmt: skip
  methods = [
    dict(
      name=name,
      branching=branching,
      temperature=1.0,
      verifier=verifier,
      law=law,
      paper='' if smoke else figure,
    )
    for name, verifier, law, figure in rules
  ]
  methods.append(
    methods[0]
    | dict(
      name='without tree attention',
      tree_attention=False,
      paper='' if smoke else paper[3],
    )
  )
  return ml_collections.ConfigDict(
    dict(
      title='Multi-candidate speculative decoding: table 4, the ablation',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('alpaca',) if size.pair else ('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=not smoke,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=f'The paper: {size.pair or _FIRST}, Alpaca.'
      if (size.pair or _FIRST) in _PAPER
      else f'The paper has no figures of {size.pair}.',
    )
  ).lock()
