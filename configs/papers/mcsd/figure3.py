r"""Figures 3 and 5 of multi-candidate speculative decoding: acceptance.

Yang et al. 2401.06706: the share of rounds that accept one of 1 to 64
candidates for the next token. About three minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/papers/mcsd/figure3.py \
    --workdir=runs/mcsd_figure3

A pair of the paper (`:llama-33b+llama-68m`, on MODELS/..) decodes Alpaca and
WMT; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  candidates = (1, 2) if smoke else (1, 2, 4, 8, 16, 32, 64)
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
    dict(
      title='Multi-candidate speculative decoding: figure 3',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('alpaca', 'wmt') if size.pair else ('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 8,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 64,
      seed=0,
      plot='by_candidates',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='In the paper the curves flatten beyond 32 candidates.',
    )
  ).lock()
