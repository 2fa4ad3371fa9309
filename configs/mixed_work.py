r"""Draft lengths chosen in each round, against fixed ones, on mixed work.

Held-out functions, code edits and Spec-Bench's summaries (prose), greedy and at
temperature 1: tokens a second of fixed draft lengths and of
`adaptive_drafter`, for every part and for all of it, by turns. One length is
the best of a part, another of the next. About ten minutes on 2 CPU cores; the
published question.jsonl must be in `--config.data`, or
`--config.tasks="('code', 'code_edits')"` leaves the prose out.

  python launch/evaluate.py --config=configs/mixed_work.py --workdir=runs/mixed

`--config.batch_size=8` answers eight prompts of a part together, with
`--config.shuffled=true` eight of all parts. `:random` has a draft of random
weights, of which nothing is accepted: what it costs to have one. A pair
(`:vicuna-7b+vicuna-68m`) is read from MODELS/..; `:smoke` is the smallest size;
`,` stands between several, `:random,smoke`.
"""

import ml_collections

from specsamp.experiments import config

_LENGTHS = (1, 2, 4, 6, 8)


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `random`, a pair of published models, `smoke`, or several of them."""
  given = arg.split(',') if arg else []
  is_random = 'random' in given
  if is_random:
    given.remove('random')
  size = config.parse(','.join(given) or None)
  smoke = size.smoke
  lengths = (1, 2) if smoke else _LENGTHS
  names = {'SpS': ''}
  if is_random:
    names = {'random': 'specsamp.experiments.accelerator.random_models:draft'}
  elif not size.pair:
    names['EAGLE'] = 'eagle'
  methods = [
    dict(name=name, drafter=drafter, temperature=temperature) | shape
    for temperature in (0.0, 1.0)
    for name, drafter in names.items()
    for shape in (
      *(dict(branching=(1,) * n) for n in lengths),
      # Chosen in each round from these and from not drafting.
      dict(branching=(1,) * lengths[-1], depths=(0, *lengths)),
    )
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Mixed work: chosen and fixed draft lengths',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      # Or humaneval, xsum, alpaca, wmt, all of spec_bench, a .json or .jsonl
      # file of prompts.
      tasks=('code', 'code_edits', 'spec_bench/summarization'),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 8,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      batch_size=1,  # prompts that are answered together
      shuffled=False,  # of all tasks and temperatures, else of one
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 192,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      # Or by_draft_length, by_candidates, by_budget, by_masks.
      plot='by_draft_length',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note='',
    )
  ).lock()
