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
from starlette.testclient import TestClient
from testing import chat_templates, launching, tiny

from specsamp.checkpoints import model_dir
from specsamp.data.tokenizer_files import Files
from specsamp.data.tokenizers import SentencePiece
from specsamp.serving import server as http_server

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
    (['--config.verifier=synthetic:6'], 'got a draft of 4 tokens, expected'),
    (['--config.logprobs=65'], 'logprobs: got 65'),
    (['--config.drafter=medusas'], 'drafter'),
    (['--config.chat_template_kwargs.tools=1'], "'tools' is a reserved"),
    (['--port=65536'], '--port: got 65536'),
    (['--host=no.such.host.invalid'], '--host=no.such.host.invalid'),
  ],
)
def test_mistakes(folder, flags, words, monkeypatch):
  # A mistake that is not found ends the launcher with code 0.
  monkeypatch.setattr(http_server, 'run', lambda *_: None)
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


@pytest.mark.parity
def test_prompts_with_one_bos_and_the_variables_of_a_template(
  tokenizer, tmp_path, monkeypatch
):
  """A request overrides the variables of the config."""
  files = Files(chat_template=chat_templates.QWEN3, parses=True)
  tokenizer = SentencePiece(tokenizer.proto, files)
  model = tiny.model(tokenizer.vocab_size, seed=0, max_length=96)
  folder = tmp_path / 'model'
  model_dir.save(dataclasses.replace(model, tokenizer=tokenizer), folder)
  turns = [{'role': 'user', 'content': 'x = 1'}]
  thinks = {'enable_thinking': True}
  cases = [('<s>x = 1', 'completions', {'prompt': 'x = 1'})]
  for variables in ({}, {'unheard_of': 1}, thinks):
    text = chat_templates.of_transformers(
      turns, '<s>', **({'enable_thinking': False} | variables)
    )
    body = {'messages': turns, 'chat_template_kwargs': variables}
    cases.append((text, 'chat/completions', body))
  answers = []

  def answer(app, worker, listener):
    listener.close()
    with TestClient(app, 'http://localhost') as client:
      for text, route, body in cases:
        ids = tokenizer.encode(text, bos=False)
        assert ids.count(tokenizer.bos_id) == 1
        for path, prompt in ((route, body), ('completions', {'prompt': ids})):
          common = {'temperature': 0, 'max_tokens': 8}
          answers.append(client.post(f'v1/{path}', json=common | prompt).json())

  monkeypatch.setattr(http_server, 'run', answer)
  flags = ['--port=0', '--config.max_length=0']
  flags += ['--config.chat_template_kwargs.enable_thinking=false']
  ended = launching.run_here('serve', _CONFIG, *_models(folder), *flags)
  assert ended.code == 0, ended.err
  for response, wanted in zip(answers[::2], answers[1::2], strict=True):
    assert response['usage'] == wanted['usage']
    choice = response['choices'][0]
    text = (
      choice['message']['content'] if 'message' in choice else choice['text']
    )
    assert text == wanted['choices'][0]['text']
  counts = [response['usage']['prompt_tokens'] for response in answers[::2]]
  assert counts[1] == counts[2] > counts[3] > counts[0]


def test_a_lossy_verifier_is_marked(folder, monkeypatch, caplog):
  details = []

  def answer(app, worker, listener):
    listener.close()
    body = {'prompt': 'x = 1', 'max_tokens': 12, 'ignore_eos': True}
    with TestClient(app, 'http://localhost') as client:
      usage = client.post('v1/completions', json=body).json()['usage']
      details.append(usage['completion_tokens_details'])

  monkeypatch.setattr(http_server, 'run', answer)
  flags = ['--port=0', '--config.verifier=synthetic:3']
  ended = launching.run_here('serve', _CONFIG, *_models(folder), *flags)
  assert ended.code == 0, ended.err
  assert 'verifier synthetic:3 is NOT lossless' in caplog.text
  assert details == [{'accepted_prediction_tokens': 8}]  # 2 of every 3


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
