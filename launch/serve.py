"""Serves a target and its draft over HTTP, in the words of OpenAI's interface.

python launch/serve.py --config=configs/serve.py
python launch/serve.py --config=configs/serve.py --host=0.0.0.0 --port=80

Needs starlette, uvicorn and prometheus_client, pip install 'specsamp[serve]'.
Nothing is written, and no prompt is logged.
"""

from absl import flags

from specsamp import cli
from specsamp.jobs import serve

_HOST = flags.DEFINE_string(
  'host', '127.0.0.1', 'Where to listen; 0.0.0.0 is for all who can reach it.'
)
_PORT = flags.DEFINE_integer('port', 8000, 'Likewise; 0 takes any.')
_ALLOW = flags.DEFINE_list(
  'allow_hosts',
  [],
  'Names by which it may be called beside its own: those of a proxy before it.',
)

_mesh = cli.define_mesh('model')


def main():
  config = flags.FLAGS.config.to_dict()
  serve.prepare(config, _HOST.value, _PORT.value, _mesh(), _ALLOW.value).run()


if __name__ == '__main__':
  cli.define_config('configs/serve.py')
  cli.run(main, distributes=False)
