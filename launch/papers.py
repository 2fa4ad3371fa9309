r"""Runs all of configs/papers, each into its own folder: one summary.

python launch/papers.py --workdir=runs/papers --allow_code_execution

What has ended is not run again, and a run that was cut off goes on, when the
same command is given again.
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import papers

_mesh = cli.define_mesh('model')
_ALLOW_CODE_EXECUTION = cli.define_code_execution()


def main():
  config = flags.FLAGS.config
  job = papers.prepare(config.to_dict(), cli.load_paper, cli.command)
  mesh = _mesh()
  workdir = cli.make_workdir(flags.FLAGS.workdir, config)
  job.run(workdir, cli.make_workdir, mesh, _ALLOW_CODE_EXECUTION.value)


if __name__ == '__main__':
  cli.define_flags(config='configs/papers/all.py')
  cli.run(main)
