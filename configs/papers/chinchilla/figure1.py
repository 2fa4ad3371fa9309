r"""Figure 1 of speculative sampling: the draft length K.

Chen et al. 2302.01318: the time of a loop (linear in K), the speedup (flat or
falling) and the accepted share of the draft (falling), of XSum and HumanEval,
nucleus and greedy. About four minutes on 2 CPU cores; the published files of
XSum and HumanEval must be in `--config.data`.

  python launch/evaluate.py --config=configs/papers/chinchilla/figure1.py \
    --workdir=runs/chinchilla_figure1

A pair such as `:llama-3.1-70b+llama-3.1-8b` is read from MODELS/..; `:smoke`,
or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  return ml_collections.ConfigDict(
    dict(
      title='Speculative sampling: figure 1',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(
        dict(name='SpS', branching=(1,) * length, temperature=temperature)
        for temperature in (1.0, 0.0)
        for length in ((1, 2) if smoke else range(1, 8))
      ),
      top_p=0.8,  # of the temperatures above 0
      tasks=('xsum', 'humaneval'),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_draft_length',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'In the paper loops get longer linearly, HumanEval is fastest, XSum '
        'with nucleus sampling is fastest at K = 3, and longer drafts raise '
        'P90 and P99.'
      ),
    )
  ).lock()
