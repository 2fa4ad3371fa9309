r"""Table 2 of ParallelSpec: what self-distillation gains.

Xiao et al. 2410.05589, section 5.3: EAGLE + ParallelSpec trained on a text and
on the target's own continuations, here the standard library and the embedded
target's. Both begin as the embedded EAGLE and go on for as many steps, for
TEXT and OWN

  python launch/distill.py --workdir=RUNS/TEXT \
    --config=configs/distill_pycode.py:eagle_parallel \
    --config.init=specsamp/zoo/pycode/drafters/eagle --config.optimizer=muon \
    --config.retention=0.8 --config.learning_rate=1.5e-3 --config.steps=200 \
    --config.num_continuations=0

and the same to RUNS/OWN, with --config.num_continuations=2048 and
--config.temperatures='(0.0, 1.0)': ten minutes of a core each, and three for
the target's continuations. Then, three minutes on 2 CPU cores,

  python launch/evaluate.py --workdir=runs/parallelspec2 \
    --config=configs/papers/parallelspec/table2.py:RUNS

`:smoke` is the smallest size, the embedded drafter in both places.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: folder of both drafters' runs, `TEXT` and `OWN`, or smoke."""
  if not arg:
    raise ValueError("expected the folder of both drafters' runs")
  smoke = arg == 'smoke'
  text, own = (
    'eagle_parallel' if smoke else f'{arg}/{name}/drafter'
    for name in ('TEXT', 'OWN')
  )
  methods = [
    dict(
      name=name,
      drafter=drafter,
      branching=(1,) * (2 if smoke else 5),
      temperature=temperature,
      paper='' if temperature else paper,
    )
    for temperature in (0.0, 1.0)
    for name, drafter, paper in (
      ('EAGLE', 'eagle', '2.40 / 3.55'),
      ('+ ParallelSpec', text, '2.74 / 3.49'),
      ('+ self-distillation', own, '2.82 / 3.78'),
    )
  ]
  return ml_collections.ConfigDict(
    dict(
      title='ParallelSpec: table 2',
      # Folders of models for `specsamp.load`; '' is the embedded pair's.
      target='',
      draft='',
      dtype='',  # the target computes in; '' is its folder's
      # Each a `experiments.method_config.MethodConfig`; the baseline is added.
      methods=tuple(methods),
      top_p=1.0,  # of the temperatures above 0
      tasks=('code',),
      data='../shared/data',  # folder with the published sets of prompts
      chat=False,  # prompts as turns in the target's chat template
      num_prompts=1 if smoke else 16,  # of each task
      samples=1,  # of each prompt, at temperatures above 0
      max_prompt_tokens=32 if smoke else 128,
      max_new_tokens=16 if smoke else 128,
      seed=0,
      plot='by_method',
      passes=False,  # time what a pass over the best trees costs
      parts=False,  # time rounds of which the paper has figures
      bounds=False,  # find the most that any rule could accept
      search=False,  # search the best static trees, and try them
      note=(
        'The paper: Llama 2 7B on an A100. The embedded EAGLE is '
        "self-distilled here, the paper's was not."
      ),
    )
  ).lock()
