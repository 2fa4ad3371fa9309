r"""Spec-Bench's six categories, any pair, the drafters that come with it.

Xia et al. 2401.07851: speedup and τ by category, the second turns of MT-bench
asked after the first answers. The embedded pair answers every question in
Python: speed and acceptance are real, answers are not. 8 prompts of
each category, about four minutes on 2 CPU cores; the published question.jsonl
must be in `--config.data`.

  python launch/evaluate.py --config=configs/spec_bench.py \
    --workdir=runs/spec_bench

`--config.num_prompts=80` is the whole of it, a pair (`:vicuna-7b+vicuna-68m`)
is read from MODELS/.. and asked in its chat template with `--config.chat=true`,
if it has one; `:smoke`, or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  chain = (1,) * (2 if smoke else 4)
  methods = [
    method | dict(branching=chain, temperature=temperature)
    for temperature in (0.0, 1.0)
    for method in (
      dict(name='SpS'),
      dict(name='EAGLE', drafter='eagle'),
      dict(name='PLD', drafter='ngram', law='deterministic', verifier='naive'),
    )
    if not (size.pair and method.get('drafter') == 'eagle')
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Spec-Bench',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      # Or code (held-out functions), code_edits, humaneval, xsum, alpaca, wmt,
      # spec_bench/CATEGORY, a .json or .jsonl file of prompts.
      tasks=('spec_bench',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 8,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      # Or by_draft_length, by_candidates, by_budget, by_masks.
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='',
    )
  ).lock()
