"""The launcher: mistakes in one line, and an end without losses."""

import dataclasses
import os
import re
import signal
import socket
import sys

import httpx
import pytest
import running
from testing import launching, tiny

from specsamp.checkpoints import model_dir

_CONFIG = '--config=configs/serve.py:smoke'


@pytest.fixture(scope='module')
def folder(tmp_path_factory, tokenizer):
  """A saved model."""
  path = tmp_path_factory.mktemp('models') / 'small'
  model = tiny.model(tokenizer.vocab_size, seed=0)
  model_dir.save(dataclasses.replace(model, tokenizer=tokenizer), path)
  return path


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--config.slots=0'], 'slots: '),
    (['--config.queue=-1'], 'queue: '),
    (['--config.max_length=65'], 'max_length: got 65'),
    (['--config.verifier=tokens'], 'did you mean token?'),
    (['--config.logprobs=65'], 'logprobs: got 65'),
    (['--config.drafter=medusas'], 'drafter'),
    (['--port=65536'], '--port: got 65536'),
    (['--host=no.such.host.invalid'], '--host=no.such.host.invalid'),
  ],
)
def test_mistakes(folder, flags, words):
  ended = launching.run_here('serve', _CONFIG, *_models(folder), *flags)
  assert ended.code == 2 and ended.out == ''
  assert words in ended.err and ended.err.count('\n') == 1


def test_a_port_that_is_taken(folder):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    flag = f'--port={taken.getsockname()[1]}'
    ended = launching.run_here('serve', _CONFIG, *_models(folder), flag)
  assert ended.code == 2 and f'{flag}: ' in ended.err


def test_the_extra_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, 'starlette', None)
  ended = launching.run_here('serve', _CONFIG)
  wanted = "serve.py: serving needs starlette; pip install 'specsamp[serve]'\n"
  assert (ended.code, ended.out, ended.err) == (2, '', wanted)


def _models(folder):
  return f'--config.target={folder}', f'--config.draft={folder}'


def test_sigterm_completes_requests_in_flight(server, tmp_path, folder):
  secret = 'def secret_of_mine():'
  body = {
    'prompt': secret, 'max_tokens': 40, 'n': 64, 'ignore_eos': True,
    'stream': True,
  }  # fmt: skip
  flags = ['--port=0', '--config.slots=1', '--config.queue=100']
  started = launching.start(
    server, tmp_path, 'serve', _CONFIG, *_models(folder), *flags
  )
  printed = lambda: started.out.exists() and started.out.read_text()
  running.wait_for(lambda: not started.process.is_alive() or printed())
  match = re.fullmatch(r'small at (http://127\.0\.0\.1:\d+/)\n', printed())
  assert match, (printed(), started.err.read_text())
  url = match[1]
  with (
    httpx.Client(base_url=url, timeout=60) as other,
    httpx.stream('POST', f'{url}v1/completions', json=body) as response,
  ):
    # Connected before, so that the stream does not end meanwhile.
    assert other.get('health').status_code == 200
    lines = response.iter_lines()
    texts = [next(lines)]
    os.kill(started.process.pid, signal.SIGTERM)
    running.wait_for(lambda: other.get('health').status_code == 503)
    refused = other.post('v1/completions', json={'prompt': 'x'})
    assert refused.status_code == 503, refused.text
    assert 'shutting down' in refused.json()['error']['message']
    texts += lines
  ended = started.join(running.PATIENCE)
  # Nothing is printed except the bar of compiled programs.
  assert ended.code == 0 and not re.sub('compiling.*\n', '', ended.err), ended
  events = running.events('\n'.join([*texts, '']))
  reasons = [event['choices'][0]['finish_reason'] for event in events]
  assert reasons.count('length') == 64
  assert secret not in ended.out
