r"""Converts a model or a drafter to a folder of another format.

python launch/import_weights.py --source=MODELS/llama-2-7b-chat --to=OUT
python launch/import_weights.py --source=RUNS/target/model --to=OUT \
  --format=huggingface
python launch/import_weights.py --source=RUNS/eagle3/drafter --to=OUT \
  --format=speculators --target=MODELS/llama-3.1-8b

specsamp.load and --config.target=DIR read all these folders without conversion.
An orbax checkpoint has the layout of the computation, in 16 bits if the weights
have no more, and all hosts of a pod read and write it in parallel. vLLM serves
a drafter in the speculators format with the target that --target names.
"""

from absl import flags

from specsamp import cli
from specsamp.checkpoints import convert

_SOURCE = flags.DEFINE_string(
  'source',
  None,
  'Folder of the model or drafter to read, a GGUF file, or its name at the '
  'hub. Must be given.',
  required=True,
)
_TO = flags.DEFINE_string(
  'to',
  None,
  'Folder to write; a model that this launcher wrote there is replaced. Must '
  'be given.',
  required=True,
)
_FORMAT = flags.DEFINE_enum(
  'format', 'orbax', convert.FORMATS, 'Format to write.'
)
_TARGET = flags.DEFINE_string(
  'target',
  '',
  "With --format=speculators: the drafter's target for vLLM, a folder in the "
  'Hugging Face format or a name of its hub.',
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  None,
  ('float32', 'bfloat16', 'float16'),
  'Dtype of matrices. If left out, as stored.',
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
