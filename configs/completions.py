r"""Functions that the embedded pair completes, and the share of valid Python.

The bodies of 64 held-out functions, up to 160 tokens of each, greedy and at
temperature 0.8, with a draft and without. The scores are the shares of
completions that are valid so far, that are whole, that are valid and have no
more words about code than code, and of these the share that reads a parameter
of its function (`specsamp.evaluation.tasks.scorers.valid_python`).
`metrics.jsonl` has the completions. Ten minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/completions.py \
    --workdir=runs/completions

`--config.target=FOLDER --config.draft=FOLDER` evaluates another pair with one
tokenizer. `:smoke` is the smallest size.
"""

from specsamp.errors import check_name
from specsamp.experiments.config import ComparisonConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'evaluate'


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  smoke = arg == 'smoke'
  return config_dict(
    ComparisonConfig,
    title='Completed functions',
    methods=tuple(
      dict(name='SpS', branching=(1,) * 4, temperature=temperature)
      for temperature in (0.0, 0.8)
    ),
    num_prompts=1 if smoke else 64,
    samples=1 if smoke else 4,
    batch_size=1 if smoke else 8,  # the texts matter here, not their times
    max_prompt_tokens=32 if smoke else 128,
    max_new_tokens=16 if smoke else 160,
  )
