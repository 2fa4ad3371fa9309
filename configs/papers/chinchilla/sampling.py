r"""Speculative sampling: acceptance against temperature, top-p and top-k.

Chen et al. 2302.01318, 4.2: "the overall acceptance rate is robust to the exact
parameters used", of which they show nothing. 6.2 has HumanEval faster than XSum
for three reasons, one of them its temperature, which sharpens draft and target:
here both tasks are decoded at each. Drafts of 4 tokens, one value changed at a
time. About six minutes on 2 CPU cores; the published files of XSum and
HumanEval must be in `--config.data`.

  python launch/evaluate.py --config=configs/papers/chinchilla/sampling.py \
    --workdir=runs/chinchilla_sampling

A pair such as `:llama-3.1-70b+llama-3.1-8b` is read from MODELS/..; `:smoke`,
or `,smoke` behind a pair, is the smallest size.
"""

import ml_collections

from specsamp.experiments import config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, a pair of published models, or both: `PAIR,smoke`."""
  size = config.parse(arg)
  smoke = size.smoke
  temperatures = (0.5, 1.0) if smoke else (0.0, 0.25, 0.5, 0.8, 1.0, 1.25)
  samplings = [
    *(dict(temperature=t) for t in temperatures),
    *(dict(temperature=1.0, top_p=p) for p in (0.5, 0.8, 0.95)[smoke:]),
    *(dict(temperature=1.0, top_k=k) for k in (5, 20, 100)[smoke:]),
  ]
  return ml_collections.ConfigDict(
    dict(
      title='Speculative sampling: temperature, top-p and top-k',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target=size.target,
      draft=size.draft,
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(
        dict(name='SpS', branching=(1,) * (2 if smoke else 4)) | sampling
        for sampling in samplings
      ),
      top_p=1.0,  # of the temperatures above 0 that name no other
      tasks=('xsum', 'humaneval'),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 12,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 1536 if size.pair else 128,
      max_new_tokens=16 if smoke else 512 if size.pair else 128,
      seed=0,
      plot='by_sampling',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'The paper: acceptance is robust to the exact parameters, and a '
        'temperature that sharpens both distributions raises it.'
      ),
    )
  ).lock()
