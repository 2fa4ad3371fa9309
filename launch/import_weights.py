r"""Converts a model: a Hugging Face folder to orbax, or any model to theirs.

python launch/import_weights.py --source=MODELS/llama-2-7b --to=MODELS/7b-orbax
python launch/import_weights.py --source=RUNS/target/model --to=OUT \
  --format=huggingface

specsamp.load and --config.target=DIR read all these folders as they are. An
orbax checkpoint lies as it is computed with, in 16 bits if the weights have no
more, and all hosts of a pod read and write it in parallel.
"""

from absl import flags

from specsamp import cli
from specsamp.checkpoints import convert

_SOURCE = cli.define_required(
  'source', 'Folder of the model to read, or its name at the Hugging Face hub.'
)
_TO = cli.define_required(
  'to', 'Folder to write; one with a model that was written here is replaced.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'orbax', convert.FORMATS, 'What to write.'
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  None,
  ('float32', 'bfloat16', 'float16'),
  'Of matrices; as stored if left out.',
)
_mesh = cli.define_mesh('model')


def main():
  convert.convert(
    _SOURCE.value, _TO.value, _FORMAT.value, _mesh(), _DTYPE.value
  )


if __name__ == '__main__':
  cli.run(main)
