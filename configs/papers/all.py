r"""All tables and figures of the four papers, in one command.

Runs every config of this folder, one after another, each in a folder
below --workdir, with a bar of the remaining time; papers.md has a line for
each. An hour and a half on 2 CPU cores; the published files of XSum and
HumanEval must be in `--config.data`.

  python launch/papers.py --config=configs/papers/all.py \
    --workdir=runs/papers --allow_code_execution

The same command resumes an interrupted run and skips finished experiments.
Table 2 of ParallelSpec compares drafters that are not embedded: it is skipped
unless `:FOLDER` has them. `:smoke` is the smallest size of each.
"""

from specsamp.experiments.papers import PapersConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'papers'

_MINUTES = {  # on 2 CPU cores
  'chinchilla/figure1': 5,
  'chinchilla/table1': 4,
  'chinchilla/sampling': 6,
  'chinchilla/scores': 11,
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


def get_config(arg: str | None = None):
  """Returns the config of `smoke`, or of a folder of two drafters."""
  size = arg if arg == 'smoke' else ''
  experiments = [
    dict(name=name, minutes=minutes, arg=size)
    for name, minutes in _MINUTES.items()
  ]
  note = 'parallelspec/table2: left out, needs :FOLDER of its two drafters'
  if arg:
    note = ''
    experiments.append(dict(name='parallelspec/table2', minutes=2, arg=arg))
  return config_dict(
    PapersConfig,
    title='All tables and figures of the papers',
    experiments=tuple(experiments),
    note=note,
  )
