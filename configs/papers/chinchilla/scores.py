r"""Speculative sampling: scores with and without a draft, on tasks that a small
model can pass.

Chen et al. 2302.01318 show in table 1 that a draft leaves ROUGE and pass@k what
they were. The embedded target passes nothing there, so that 0 beside 0 shows
little; here it ends calls and the heads of blocks and copies lines, all of
held-out files, and is right or wrong to the end of a line (exact match). The
report has p of each difference, by permutation. About five minutes on 2 CPU
cores.

  python launch/evaluate.py --config=configs/papers/chinchilla/scores.py \
    --workdir=runs/chinchilla_scores

A pair such as `:llama-3.1-70b+llama-3.1-8b` is read from MODELS/..; `:smoke`,
or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  length = 2 if smoke else 4
  drafts = [
    dict(name='SpS', branching=(1,) * length),
    dict(
      name='PLD',
      drafter='ngram',
      branching=(1,) * length,
      law='deterministic',
      verifier='naive',
    ),
    dict(
      name='multi-candidate',
      branching=(2, 1) if smoke else (4, 2, 2),
      law='without_replacement',
      verifier='multi_candidate',
    ),
  ]
  if not size.pair:  # its trained drafters are embedded
    drafts.append(dict(name='EAGLE', drafter='eagle', branching=(1,) * length))
  return ml_collections.ConfigDict(
    dict(
      title='Speculative sampling: scores with and without a draft',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(
        draft | dict(temperature=temperature)
        for temperature in (0.0, 1.0)
        for draft in drafts
      ),
      top_p=0.8,  # of the temperatures above 0
      tasks=('code_answers',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 32,  # of each task
      samples=1 if smoke else 4,  # of each prompt, at temperatures above 0
      max_prompt_tokens=96 if smoke else 192,
      max_new_tokens=16 if smoke else 32,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'The paper: XSum ROUGE-2 0.112 -> 0.114 and 0.157 -> 0.156, HumanEval '
        '45.1% -> 47.0%.'
      ),
    )
  ).lock()
