r"""What the embedded pair writes: functions completed, and whether Python can
read them.

The bodies of 64 held-out functions, up to 160 tokens of them, greedy and at
temperature 0.8, with a draft and without: how many are valid as far as they go,
how many are whole, how many are valid and no more words about code than code,
and in how many of these the code reads a parameter of its function
(`specsamp.evaluation.tasks.scorers.valid_python`). The texts are in
`metrics.jsonl`. About ten minutes on 2 CPU cores.

  python launch/evaluate.py --config=configs/completions.py \
    --workdir=runs/completions

`--config.target=FOLDER --config.draft=FOLDER` has another pair's, of one
tokenizer. `:smoke` is the smallest size.
"""

import ml_collections

from specsamp.errors import describe_unknown


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, or nothing."""
  if arg not in (None, 'smoke'):
    raise ValueError(describe_unknown('argument', arg, ('smoke',)))
  smoke = arg == 'smoke'
  methods = [
    dict(name='SpS', branching=(1,) * 4, temperature=temperature)
    for temperature in (0.0, 0.8)
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Completed functions',
      target='',  # a folder of a model; '' is the embedded pair's
      draft='',  # likewise
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code',),  # held-out functions
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 64,  # of each task
      samples=1 if smoke else 4,  # of each prompt, at temperatures above 0
      # Prompts that are answered together: what is written needs no times.
      batch_size=1 if smoke else 8,
      max_prompt_tokens=32 if smoke else 128,
      max_new_tokens=16 if smoke else 160,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='',
    )
  ).lock()
