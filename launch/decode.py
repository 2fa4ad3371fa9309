"""Decodes text with a target and a draft, and measures what the draft gains.

python launch/decode.py --config=configs/quickstart.py
python launch/decode.py --config=configs/quickstart.py --prompt='def add(a, b):'
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import decode

_PROMPT = flags.DEFINE_string(
  'prompt', None, 'Your own text to complete; - reads standard input.'
)
_PROMPTS_FILE = flags.DEFINE_string(
  'prompts_file',
  None,
  'A file of texts to complete, one a line; one of .json or .jsonl is for '
  '--config.prompts.',
)

_SPEEDUP = flags.DEFINE_bool(
  'speedup',
  False,
  'Also times plain decoding of each of your prompts, and prints the speedup. '
  'A comparison always does.',
)

_mesh = cli.define_mesh('model')


def main():
  config = flags.FLAGS.config
  job = decode.prepare(
    config.to_dict(), _PROMPT.value, _PROMPTS_FILE.value, _mesh()
  )
  workdir = cli.make_workdir(flags.FLAGS.workdir, config, resumes=False)
  job.run(workdir, _SPEEDUP.value)


if __name__ == '__main__':
  cli.define_flags('runs/decode', 'configs/quickstart.py')
  cli.run(main)
