"""Times a queue of requests through an engine and in batches, side by side.

python launch/throughput.py --config=configs/throughput.py
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import throughput


def main():
  config = flags.FLAGS.config
  job = throughput.prepare(config.to_dict())
  job.run(cli.make_workdir(flags.FLAGS.workdir, config, resumes=False))


if __name__ == '__main__':
  cli.define_flags('runs/throughput', 'configs/throughput.py')
  cli.run(main, distributes=False)
