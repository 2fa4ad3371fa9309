r"""HumanEval: pass@k of a target, and milliseconds a token.

Chen et al. 2107.03374: with `--allow_code_execution` samples of each problem
are run against its tests, in a subprocess. pass@k must be the same
with a draft and without. The embedded target has 23M parameters and passes
almost nothing. 164 problems, one sample each, eight minutes on 2 CPU cores; the
published HumanEval.jsonl.gz must be in `--config.data`.

  python launch/evaluate.py --config=configs/humaneval.py \
    --workdir=runs/humaneval --allow_code_execution

`--config.samples=100` gives pass@10 and pass@100. A pair
(`:llama-2-13b+llama-68m`) is read from MODELS/..; `:PAIR,small` has 40
problems, 8 at once, for CPU cores; `:smoke` or `:PAIR,smoke` is the smallest
size.
"""

from specsamp.experiments import config

LAUNCHER = 'evaluate'


def get_config(arg: str | None = None):
  size = config.parse(arg)
  chain = (1,) * (2 if size.smoke else 4)
  return size.comparison(
    num_prompts=164,
    max_prompt_tokens=320,
    title='HumanEval',
    methods=tuple(
      dict(name='SpS', branching=chain, temperature=temperature)
      for temperature in (0.0, 0.8)
    ),
    top_p=0.95,
    small=dict(num_prompts=40, max_new_tokens=256),
    tasks=('humaneval',),
  )
