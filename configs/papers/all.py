r"""All tables and figures of the four papers, in one command.

Runs every config of this folder, one after another, each in a folder
below --workdir, with a bar of the remaining time; papers.md has a line for
each. An hour and a half on 2 CPU cores; the published files of XSum and
HumanEval must be in `--config.data`.

  python launch/papers.py --config=configs/papers/all.py \
    --workdir=runs/papers --allow_code_execution

The same command resumes an interrupted run and skips finished experiments.
`:qwen2.5-coder-1.5b+qwen2.5-coder-0.5b,small` runs those of models and trees on
a published pair in MODELS/.., `:smollm2-135m,small` those of ParallelSpec on
SmolLM2 and its trained drafters; without `,small` they have the papers' sizes.
Table 2 of ParallelSpec compares drafters that are not embedded: it is skipped
unless `:FOLDER` has them. `:smoke` is the smallest size of each.
"""

from specsamp.evaluation import pairs
from specsamp.experiments.papers import PapersConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'papers'

_MINUTES = {  # of the embedded pair on 2 CPU cores
  'chinchilla/figure1': 5,
  'chinchilla/table1': 4,
  'chinchilla/sampling': 6,
  'mcsd/table1': 1,
  'mcsd/table2': 8,
  'mcsd/table4': 9,
  'mcsd/figure3': 5,
  'mcsd/figure4': 5,
  'mcsd/best_tree': 8,
  'parallelspec/figure4': 4,
  'parallelspec/table1': 13,
  'llama31/tables': 1,
}
_TRAINED = ('parallelspec/figure4', 'parallelspec/table1')


def get_config(arg: str = ''):
  """Returns the config of `smoke`, published models, or a folder of drafters.

  Published models are a pair or a target, see `experiments.config.parse`.
  """
  models = arg.split(',')[0]
  names, size = list(_MINUTES), arg if arg == 'smoke' else ''
  if is_published := models in (*pairs.PAIRS, *pairs.TARGETS):
    left_out = (*_TRAINED, 'mcsd/best_tree')  # its trees take hours
    names = [name for name in names if name not in left_out]
    names, size = list(_TRAINED) if models in pairs.TARGETS else names, arg
  experiments = [
    dict(name=name, minutes=_MINUTES[name], arg=size) for name in names
  ]
  note = ''
  if not arg:
    note = 'parallelspec/table2: left out, needs :FOLDER of its two drafters'
  elif not is_published:
    experiments.append(dict(name='parallelspec/table2', minutes=2, arg=arg))
  return config_dict(
    PapersConfig,
    title='All tables and figures of the papers',
    experiments=tuple(experiments),
    note=note,
  )
