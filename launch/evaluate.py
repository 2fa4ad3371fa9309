r"""Compares ways to draft and to verify: the papers' tables and figures.

python launch/evaluate.py --config=configs/papers/mcsd/table2.py \
  --workdir=runs/table2

The same command resumes an interrupted run.
"""

from specsamp import cli
from specsamp.experiments import compare
from specsamp.experiments.config import ComparisonConfig

_WORKDIR = cli.define_workdir()
_ALLOW_CODE_EXECUTION = cli.define_code_execution()
_mesh = cli.define_mesh('model')


def main(config):
  job = compare.prepare(config.to_dict(), _mesh())
  workdir = cli.make_workdir(_WORKDIR.value, config)
  job.run(workdir, _ALLOW_CODE_EXECUTION.value, cli.command())


if __name__ == '__main__':
  cli.run(main, ComparisonConfig)
