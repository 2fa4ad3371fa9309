r"""Converts a model or a drafter to a folder of another format.

python launch/import_weights.py --source=MODELS/llama-2-7b-chat --to=OUT
python launch/import_weights.py --source=RUNS/target/model --to=OUT \
  --format=huggingface
python launch/import_weights.py --source=RUNS/eagle3/drafter --to=OUT \
  --format=speculators --target=MODELS/llama-3.1-8b

specsamp.load and --config.target=DIR read all these folders as they are. An
orbax checkpoint lies as it is computed with, in 16 bits if the weights have no
more, and all hosts of a pod read and write it in parallel. A drafter's of
speculators is what vLLM serves beside the target that --target names.
"""

from absl import flags

from specsamp import cli
from specsamp.checkpoints import convert

_SOURCE = cli.define_required(
  'source',
  'Folder of the model or drafter to read, or its name at the hub.',
)
_TO = cli.define_required(
  'to', 'Folder to write; one with a model that was written here is replaced.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'orbax', convert.FORMATS, 'What to write.'
)
_TARGET = flags.DEFINE_string(
  'target',
  '',
  "With --format=speculators: the drafter's target as vLLM shall find it, a "
  'folder of Hugging Face or a name of its hub.',
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
    _SOURCE.value,
    _TO.value,
    _FORMAT.value,
    _mesh(),
    _DTYPE.value,
    _TARGET.value,
  )


if __name__ == '__main__':
  cli.run(main)
