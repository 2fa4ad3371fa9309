"""HumanEval: pass@k of a target and how fast it is said.

Chen et al. 2107.03374: samples of each problem are run against its tests, with
`--allow_code_execution` only, confined in a subprocess. pass@k must be the same
with a draft and without. The embedded target has 23M parameters: it passes next
to nothing. 164 problems, one sample each, about six minutes on 2 CPU cores; the
published HumanEval.jsonl.gz must be in `--config.data`.

  python launch/evaluate.py --config=configs/humaneval.py \
    --workdir=runs/humaneval --allow_code_execution

`--config.samples=100` for pass@10 and pass@100; a pair
(`:llama-2-13b+llama-68m`) is read from MODELS/..; `:smoke`, or `,smoke` behind
a pair, is the smallest size.
"""

import ml_collections

from specsamp.jobs import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: of `experiments.parse`."""
  size = config.parse(arg)
  return ml_collections.ConfigDict(
    config.defaults(size)
    | dict(
      title='HumanEval',
      methods=tuple(
        dict(
          name='SpS',
          branching=(1,) * (2 if size.smoke else 4),
          temperature=temperature,
        )
        for temperature in (0.0, 0.8)
      ),
      top_p=0.95,
      tasks=('humaneval',),
      num_prompts=2 if size.smoke else 164,
      max_prompt_tokens=32 if size.smoke else (1536 if size.pair else 320),
      max_new_tokens=16 if size.smoke else (512 if size.pair else 128),
      plot='by_method',
    )
  ).lock()
