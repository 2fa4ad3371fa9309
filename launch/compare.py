"""Times a pair here and in transformers, side by side.

python launch/compare.py --config=configs/compare_transformers.py

Needs transformers and torch, pip install 'specsamp[parity]'.
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import transformers_baseline


def main():
  config = flags.FLAGS.config
  job = transformers_baseline.prepare(config.to_dict())
  job.run(cli.make_workdir(flags.FLAGS.workdir, config, resumes=False))


if __name__ == '__main__':
  cli.define_flags('runs/compare', 'configs/compare_transformers.py')
  cli.run(main, distributes=False)
