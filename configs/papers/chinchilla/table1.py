r"""Table 1 of speculative sampling: XSum and HumanEval, nucleus and greedy.

Chen et al. 2302.01318: autoregressive (ArS) against speculative sampling (SpS)
with drafts of 4 tokens: scores of the task that must not change, milliseconds a
token that must. The embedded pair writes Python: its summaries are worth
nothing, their speed is measured. 40 prompts of each, about five minutes on 2
CPU cores; the published files of XSum and HumanEval must be in `--config.data`.

  python launch/evaluate.py --config=configs/papers/chinchilla/table1.py \
    --workdir=runs/chinchilla1 --allow_code_execution

As in the paper: `--config.num_prompts=11305`, 100 samples of each problem of
HumanEval (`--config.samples=100`), and a pair such as
`:llama-3.1-70b+llama-3.1-8b` on MODELS/..; `:smoke`, or `,smoke` behind a pair,
is the smallest size.
"""

import ml_collections

from specsamp.experiments import config

_PAPER = {0.0: {'xsum': '2.01'}, 1.0: {'xsum': '1.92', 'humaneval': '2.46'}}


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  return ml_collections.ConfigDict(
    dict(
      title='Speculative sampling: table 1',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(
        dict(
          name='SpS',
          branching=(1,) * (2 if smoke else 4),
          temperature=temperature,
          paper='' if smoke else _PAPER[temperature],
        )
        for temperature in (1.0, 0.0)
      ),
      top_p=0.8,  # of the temperatures above 0
      tasks=('xsum', 'humaneval'),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 40,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 320,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'The paper (Chinchilla 70B and 4B, 16 TPU v4; ArS 14.1 ms/token): '
        'XSum nucleus ROUGE-2 0.112 -> 0.114, 7.52 ms/token; greedy 0.157 -> '
        '0.156, 7.00; HumanEval nucleus 45.1% -> 47.0%, 5.73. It does not say '
        'which nucleus; 0.8 here.'
      ),
    )
  ).lock()
