r"""Runs all of configs/papers, each in a separate folder, with one summary.

python launch/papers.py --workdir=runs/papers --allow_code_execution

The same command resumes an interrupted run and skips finished experiments.
"""

from specsamp import cli
from specsamp.experiments import papers
from specsamp.experiments.config import ComparisonConfig

_WORKDIR = cli.define_workdir()
_ALLOW_CODE_EXECUTION = cli.define_code_execution()
_mesh = cli.define_mesh('model')


def load_config(name):
  return cli.load_config(name, ComparisonConfig, 'evaluate')


def main(config):
  papers.run(
    config,
    _WORKDIR.value,
    load_config,
    cli.command,
    cli.make_workdir,
    _mesh(),
    _ALLOW_CODE_EXECUTION.value,
  )


if __name__ == '__main__':
  cli.run(main, papers.PapersConfig, 'configs/papers/all.py')
