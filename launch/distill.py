r"""Trains a drafter on a target's features; resumes an interrupted run.

python launch/distill.py --config=configs/distill_pycode.py:eagle \
  --workdir=RUNS/eagle
"""

from specsamp import cli
from specsamp.training import distill, distill_config, run

_WORKDIR = cli.define_workdir()
_mesh = cli.define_mesh('data')


def main(config):
  job = distill_config.from_dict(config.to_dict())
  mesh = _mesh()
  workdir = cli.make_workdir(_WORKDIR.value, config)
  distill.distill(job, workdir, mesh)
  print(run.summary(workdir, workdir / 'drafter'))


if __name__ == '__main__':
  cli.run(main, distill_config.DistillConfig)
