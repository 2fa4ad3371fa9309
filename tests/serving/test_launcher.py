"""The launcher: mistakes in one line, and an end without losses."""

import contextlib
import dataclasses
import os
import re
import signal
import socket
import sys
import threading

import httpx
import pytest
import running
from testing import launching, tiny

from specsamp.checkpoints import model_dir
from specsamp.decoding.engine import Engine
from specsamp.serving import server

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
    port = taken.getsockname()[1]
    ended = launching.run_here(
      'serve', _CONFIG, *_models(folder), f'--port={port}'
    )
  assert ended.code == 2 and f'--port={port}: ' in ended.err


def test_clients_connect_before_it_serves(folder, monkeypatch):
  def run(app, worker, listener):
    (url,) = re.findall(r'small at (.*)\n', sys.stdout.getvalue())
    assert url == server.address(listener)
    socket.create_connection(listener.getsockname(), timeout=9).close()
    listener.close()
    urls.append(url)

  urls = []
  monkeypatch.setattr(server, 'run', run)
  monkeypatch.setattr(Engine, 'compile', lambda self: None)
  ended = launching.run_here('serve', _CONFIG, '--port=0', *_models(folder))
  assert ended.code == 0 and urls, ended.err


@pytest.mark.parametrize('missing', ['starlette', 'pydantic'])
def test_the_extra_is_missing(monkeypatch, missing):
  monkeypatch.setitem(sys.modules, missing, None)
  ended = launching.run_here('serve', _CONFIG)
  assert (ended.code, ended.out) == (2, '')
  wanted = f"serving needs {missing}; pip install 'specsamp[serve]'\n"
  assert ended.err == f'serve.py: {wanted}'


def _models(folder):
  return f'--config.target={folder}', f'--config.draft={folder}'


@contextlib.contextmanager
def _started(server, tmp_path, folder, *flags):
  """Yields a server's process, and a client of it."""
  started = launching.start(
    server, tmp_path, 'serve', _CONFIG, '--port=0', *_models(folder), *flags
  )
  try:
    running.wait_for(
      lambda: (
        not started.process.is_alive()
        or (started.out.exists() and 'http' in started.out.read_text())
      )
    )
    printed = started.out.read_text()
    match = re.fullmatch(r'small at (http://127\.0\.0\.1:\d+/)\n', printed)
    assert match, (printed, started.err.read_text())
    with httpx.Client(base_url=match[1], timeout=running.PATIENCE) as client:
      yield started, client
  finally:
    if started.process.is_alive():
      started.process.kill()


def test_sigterm_completes_requests_in_flight(server, tmp_path, folder):
  secret = 'def secret_of_mine():'
  body = {
    'prompt': secret, 'max_tokens': 40, 'n': 64, 'ignore_eos': True,
    'stream': True,
  }  # fmt: skip
  with _started(
    server, tmp_path, folder, '--config.slots=1', '--config.queue=100'
  ) as (started, client):
    texts = []
    # Connected before, so that the stream does not end meanwhile.
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
      assert other.get('health').status_code == 200
      with client.stream('POST', 'v1/completions', json=body) as response:
        lines = response.iter_lines()
        texts.append(next(lines))
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


def test_a_second_signal_gives_up(server, tmp_path, folder):
  body = {'prompt': 'x', 'max_tokens': 60, 'n': 64, 'ignore_eos': True}
  flags = ('--config.slots=1', '--config.queue=100')
  with _started(server, tmp_path, folder, *flags) as (started, client):
    responses = []
    thread = threading.Thread(
      target=lambda: responses.append(client.post('v1/completions', json=body)),
      daemon=True,
    )
    thread.start()
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
      running.wait_for(lambda: 'active_slots 1.0' in other.get('metrics').text)
      os.kill(started.process.pid, signal.SIGINT)
      running.wait_for(lambda: other.get('health').status_code == 503)
    os.kill(started.process.pid, signal.SIGTERM)
    thread.join(running.PATIENCE)
    ended = started.join(running.PATIENCE)
  # Nothing is printed except the bar of compiled programs.
  assert ended.code == 0 and not re.sub('compiling.*\n', '', ended.err), ended
  (response,) = responses
  assert response.status_code == 503
  assert response.json()['error']['code'] == 'unavailable'
