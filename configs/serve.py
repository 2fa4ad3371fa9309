"""An OpenAI-compatible server of the embedded pair, eight texts at once.

It listens at 127.0.0.1:8000 after half a minute of compilation. SIGTERM ends it
when the texts in progress are complete.

  python launch/serve.py --config=configs/serve.py

`:smoke` has two slots and short texts.
"""

from specsamp.errors import check_name
from specsamp.experiments.serve import ServeConfig
from specsamp.utils.schema import config_dict

LAUNCHER = 'serve'


def get_config(arg: str = 'full'):
  """Returns the full config, or the smallest one for `smoke`."""
  check_name('argument', arg, ('full', 'smoke'))
  if arg == 'full':
    return config_dict(ServeConfig)
  return config_dict(ServeConfig, slots=2, queue=4, max_length=64)
