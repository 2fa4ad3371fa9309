r"""All tables and figures of the four papers, in one command.

Every config of this folder, one after another, each into a folder of its own
below --workdir, with a bar of all of them and the time left; papers.md there
has a line for each. About an hour and a half on 2 CPU cores; the published
files of XSum and HumanEval must be in `--config.data`.

  python launch/papers.py --config=configs/papers/all.py \
    --workdir=runs/papers --allow_code_execution

The same command again goes on where a run was cut off, and runs nothing that
has ended. Table 2 of ParallelSpec compares drafters that are not embedded: it
is left out unless `:FOLDER` has them. `:smoke` is the smallest size of each.
"""

import ml_collections


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """arg: `smoke`, or the folder of `parallelspec/table2`'s drafters."""
  size = arg if arg == 'smoke' else ''
  experiments = (
    # name, minutes on 2 CPU cores
    ('chinchilla/figure1', 5),
    ('chinchilla/table1', 4),
    ('chinchilla/sampling', 6),
    ('chinchilla/scores', 11),
    ('mcsd/table1', 1),
    ('mcsd/table2', 8),
    ('mcsd/table4', 9),
    ('mcsd/figure3', 5),
    ('mcsd/figure4', 5),
    ('mcsd/best_tree', 8),
    ('parallelspec/figure4', 4),
    ('parallelspec/table1', 13),
    ('llama31/tables', 1),
  )
  return ml_collections.ConfigDict(
    dict(
      title='All tables and figures of the papers',
      data='../shared/data',  # folder with the published sets of prompts
      # Each a config of this folder, the minutes that it should take, and its
      # argument. What `needs` one is left out without it.
      experiments=(
        *(dict(name=name, minutes=m, arg=size) for name, m in experiments),
        dict(
          name='parallelspec/table2',
          minutes=2,
          arg=arg or '',
          needs='the folder of its two drafters, :FOLDER',
        ),
      ),
    )
  ).lock()
