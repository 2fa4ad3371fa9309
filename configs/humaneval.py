r"""HumanEval: pass@k of a target, and milliseconds a token.

Chen et al. 2107.03374: samples of each problem are run against its tests, with
`--allow_code_execution` only, in a subprocess. pass@k must be the same
with a draft and without. The embedded target has 23M parameters: it passes next
to nothing. 164 problems, one sample each, about eight minutes on 2 CPU cores;
the published HumanEval.jsonl.gz must be in `--config.data`.

  python launch/evaluate.py --config=configs/humaneval.py \
    --workdir=runs/humaneval --allow_code_execution

`--config.samples=100` for pass@10 and pass@100; a pair
(`:llama-2-13b+llama-68m`) is read from MODELS/..; `:smoke`, or `,smoke` behind
a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  return ml_collections.ConfigDict(
    dict(
      title='HumanEval',
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
        )
        for temperature in (0.0, 0.8)
      ),
      top_p=0.95,  # of the temperatures above 0
      # Or code (held-out functions), code_edits, humaneval, xsum, alpaca, wmt,
      # spec_bench/CATEGORY, a .json or .jsonl file of prompts.
      tasks=('humaneval',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=2 if smoke else 164,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 320,
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
