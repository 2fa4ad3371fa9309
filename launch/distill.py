r"""Trains a drafter on a target's features; resumes an interrupted run.

python launch/distill.py --config=configs/distill_pycode.py:eagle \
  --workdir=RUNS/eagle
"""

from specsamp import cli
from specsamp.training import distill, run
from specsamp.training.distill_config import DistillConfig
from specsamp.utils import schema

_WORKDIR = cli.define_workdir()
_mesh = cli.define_mesh('data')


def main(config):
  job = schema.read(DistillConfig, config.to_dict())
  mesh = _mesh()
  workdir = cli.make_workdir(_WORKDIR.value, config)
  distill.distill(job, workdir, mesh)
  print(run.summary(workdir, workdir / 'drafter'))


if __name__ == '__main__':
  cli.run(main, DistillConfig)
