"""Mistakes of clients, and overload."""

import asyncio
import json
import socket

import pytest
import running

from specsamp.serving import app, server
from specsamp.serving.requests import HARMLESS, NEUTRAL

_BODY = {'prompt': 'abcd', 'max_tokens': 4}
_CHAT = {'messages': [{'role': 'user', 'content': 'ab'}], 'max_tokens': 4}
_JSON = {'content-type': 'application/json'}


def _error(response, status: int) -> dict:
  assert response.status_code == status, response.text
  assert response.json().keys() == {'error'}
  error = response.json()['error']
  assert error.keys() == {'message', 'type', 'param', 'code'}
  assert error['message'] and '\n' not in error['message']
  return error


@pytest.mark.parametrize(
  ('field', 'values'),
  [
    ('n', [0, 9, True]),
    ('max_tokens', [1.5, 10**9]),
    ('temperature', [-1, 'hot', 10**400]),
    ('top_p', [0]),
    ('top_k', [-2]),
    ('min_p', [1]),
    ('seed', [2**31]),
    ('stop', ['', ['a'] * 17, 'a' * 257, [1]]),
    ('logprobs', [5]),
    ('stream', [1]),
    ('stream_options', [[]]),
    ('best_of', [3]),
    *((name, ['x']) for name in NEUTRAL),
    ('guided_regex', ['.*']),
    ('chat_template_kwargs', [{}]),  # of a chat
    ('max_completion_tokens', [3]),  # of a chat
    ('messages', [[]]),  # of a chat
    ('prompt', [[], 7, [[]], [1, 'a'], ['ab', None], '', 'a' * 48]),
    ('prompt', [[10**20], [4, -1], [4, running.VOCAB], ['a'] * 9]),
  ],
  ids=lambda value: value if isinstance(value, str) else '',
)
def test_a_field_is_named(served, field, values):
  for value in values:
    content = json.dumps(_BODY | {field: value})
    response = served.client.post(
      'v1/completions', content=content, headers=_JSON
    )
    assert _error(response, 400)['param'] == field


def test_other_errors(served):
  error = _error(served.post(_BODY | {'model': 'gpt'}), 404)
  assert error['code'] == 'model_not_found' and error['param'] == 'model'
  options = {'stream_options': {'include_all': True}}
  error = _error(served.post(_BODY | options), 400)
  assert error['param'] == 'stream_options.include_all'
  too_long = served.post(_BODY | {'max_tokens': 45})
  assert _error(too_long, 400)['code'] == 'context_length_exceeded'
  assert served.post(_BODY | {'max_tokens': 44}).status_code == 200
  last_token = _BODY | {'prompt': [4, running.VOCAB - 1]}
  assert served.post(last_token).status_code == 200
  assert _error(served.post(_BODY | {'prompt': 'XYZ'}), 400)
  assert _error(served.client.get('nowhere'), 404)
  assert _error(served.client.get('v1/completions'), 405)
  no_type = served.client.post('v1/completions', content=json.dumps(_BODY))
  assert _error(no_type, 415)
  for content in (
    b'',
    b'[' * 9000,
    b'{"prompt": "\\ud800"}',
    b'{"n": \xff}',
    b'[]',
  ):
    post = served.client.post('v1/completions', content=content, headers=_JSON)
    assert _error(post, 400)


def test_chats(served):
  for messages in (
    None,
    [],
    ['hi'],
    [{'role': 'user'}],
    [{'content': 'ab'}],
    [{'role': 'user', 'content': 3}],
    [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}],
    [{'role': 'user', 'content': 'ab', 'tool_calls': [{}]}],
    [{'role': 'user', 'content': ''}],
  ):
    response = served.post(_CHAT | {'messages': messages}, chat=True)
    assert _error(response, 400)['param'] == 'messages', messages
  for variables in ([], 'x', 3, {'messages': []}, {'bos_token': 'x'}):
    body = _CHAT | {'chat_template_kwargs': variables}
    error = _error(served.post(body, chat=True), 400)
    assert error['param'] == 'chat_template_kwargs', variables
  error = _error(served.post(_CHAT | {'top_logprobs': 2}, chat=True), 400)
  assert error['param'] == 'top_logprobs'


def test_a_model_without_a_template_has_no_chat(served, tokenizer, monkeypatch):
  chat = lambda _, messages, **variables: tokenizer.chat(messages, **variables)
  monkeypatch.setattr(running.Chatty, 'chat', chat)
  error = _error(served.post(_CHAT, chat=True), 400)
  assert 'chat template' in error['message']


def test_neutral_fields_pass(served):
  plain = served.post(_BODY | {'seed': 1}).json()['choices']
  more = {name: values[0] for name, values in NEUTRAL.items()}
  more |= dict.fromkeys(HARMLESS, 'x') | {'best_of': 1, 'top_k': -1}
  more |= {'suffix': None, 'unheard_of': None, 'frequency_penalty': 0.0}
  response = served.post(_BODY | {'seed': 1, 'model': 'tiny'} | more)
  assert response.json()['choices'] == plain


def test_another_name_is_refused(served):
  """A page's name may resolve to this machine (DNS rebinding)."""
  for host in ('LocalHost:8000', '127.0.0.1:1', '[::1]:8000', '[::1]'):
    headers = {'host': host}
    assert served.client.get('/', headers=headers).status_code == 200
    response = served.client.post('v1/completions', json=_BODY, headers=headers)
    assert response.status_code == 200
  for host in (
    'evil.example:8000', 'localhost.evil.example', 'evil.example:localhost',
    'localhost:80:80', '',
  ):  # fmt: skip
    headers = {'host': host}
    assert served.client.get('/', headers=headers).status_code == 421
    response = served.client.post('v1/completions', json=_BODY, headers=headers)
    assert _error(response, 421)['code'] == 'unknown_host'


def test_no_or_two_names_are_refused():
  """The HTTP library may let them pass."""
  sent = []

  async def send(message):
    sent.append(message)

  for names in ([], [b'localhost', b'x']):
    scope = {'type': 'http', 'headers': [(b'host', name) for name in names]}
    asyncio.run(app.check_host(None, {'localhost'})(scope, None, send))
  assert [message.get('status') for message in sent[::2]] == [421, 421]


def test_names_of_a_server():
  local = {'localhost', '127.0.0.1', '[::1]'}
  for host in ('127.0.0.1', 'localhost'):
    assert server.allowed_names(host) == local
  assert server.allowed_names('127.0.0.2', ['Proxy']) == {
    *local, '127.0.0.2', 'proxy',
  }  # fmt: skip
  # On another address clients use any name, unless names are listed.
  assert server.allowed_names('0.0.0.0') is None
  assert server.allowed_names('fe80::1', ['a.b']) == {'[fe80::1]', 'a.b'}


def test_bodies_that_are_too_long(served):
  _error(served.post(_BODY | {'user': 'x' * running.BODY}), 413)
  parts = (b'{"prompt": "' + b'a' * 4096 for _ in range(9))
  response = served.client.post('v1/completions', content=parts, headers=_JSON)
  _error(response, 413)  # without a Content-Length


def test_a_full_queue(served):
  """Slots and queue are filled, and not more."""
  body = _BODY | {'n': 5, 'stream': True}
  with running.held(served.engine) as permits:
    with served.client.stream('POST', 'v1/completions', json=body) as response:
      running.wait_for(lambda: served.engine.num_active == 3)
      full = served.post(_BODY | {'n': 4})
      error = _error(full, 429)
      assert error['code'] == 'queue_full' and full.headers['retry-after']
      assert served.metric('queue_texts') == 2
      permits.release(100)
      response.read()
    assert len(running.events(response.text)) >= 5
  assert served.post(_BODY | {'n': 4}).status_code == 200
  assert served.metric('requests_total{outcome="full"') >= 1


@pytest.mark.parametrize('streams', [True, False])
def test_disconnecting_frees_the_slots(served, streams):
  before = served.metric('output_tokens_total')
  cancelled = served.metric(running.CANCELLED)
  body = _BODY | {'n': 5, 'max_tokens': 40, 'stream': streams}
  content = json.dumps(body).encode()
  with running.held(served.engine) as permits:
    permits.release(2)
    host, port = served.url.removeprefix('http://').strip('/').split(':')
    with socket.create_connection((host, int(port))) as client:
      client.sendall(
        b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
        b'Content-Type: application/json\r\n'
        b'Content-Length: %d\r\n\r\n%s' % (len(content), content)
      )
      running.wait_for(lambda: served.metric('output_tokens_total') > before)
    is_over = lambda: served.metric(running.CANCELLED) > cancelled
    running.wait_for(is_over)
    permits.release(1)  # the burst in flight
    served.wait_idle()
  # Three slots, three bursts, rounds of at most four tokens.
  assert served.metric('output_tokens_total') - before <= 3 * 3 * 4
  assert served.post(_BODY).status_code == 200
