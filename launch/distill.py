r"""Trains a drafter on a target's features, or resumes where it was cut off.

python launch/distill.py --config=configs/distill_pycode.py:eagle \
  --workdir=RUNS/eagle
"""

from absl import flags

from specsamp import cli
from specsamp.training import distill, distill_config, run

_mesh = cli.define_mesh('data')


def main():
  config = flags.FLAGS.config
  job = distill_config.from_dict(config.to_dict())
  mesh = _mesh()
  workdir = cli.make_workdir(flags.FLAGS.workdir, config)
  distill.distill(job, workdir, mesh)
  print(run.summary(workdir, workdir / 'drafter'))


if __name__ == '__main__':
  cli.define_flags()
  cli.run(main)
