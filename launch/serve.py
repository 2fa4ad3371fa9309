"""Serves a target and its draft over HTTP, with OpenAI's interface.

python launch/serve.py --config=configs/serve.py
python launch/serve.py --config=configs/serve.py --host=0.0.0.0 --port=80

Needs the extra, pip install 'specsamp[serve]'. Writes no files, and logs no
prompts.
"""

from absl import flags

from specsamp import cli
from specsamp.experiments import serve

_HOST = flags.DEFINE_string(
  'host', '127.0.0.1', 'Address to listen on; 0.0.0.0 is all interfaces.'
)
_PORT = flags.DEFINE_integer(
  'port', 8000, 'Port to listen on; 0 picks a free one.'
)
_ALLOW = flags.DEFINE_list(
  'allow_hosts',
  [],
  'Further host names in requests, such as those of a reverse proxy.',
)
_mesh = cli.define_mesh('model')


def main(config):
  serve.run(config.to_dict(), _HOST.value, _PORT.value, _mesh(), _ALLOW.value)


if __name__ == '__main__':
  cli.run(main, serve.ServeConfig, 'configs/serve.py', distributes=False)
