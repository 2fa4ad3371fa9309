"""Mistakes of clients, and overload."""

import asyncio
import json
import random
import socket
import time

import pytest
import running

from specsamp.serving import hosts
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
  ('field', 'value'),
  [
    ('n', 0),
    ('n', 9),
    ('n', True),
    ('max_tokens', 1.5),
    ('max_tokens', 10**9),
    ('temperature', -1),
    ('temperature', 'hot'),
    pytest.param('temperature', 10**400, id='huge'),
    ('top_p', 0),
    ('top_k', -2),
    ('min_p', 1),
    ('seed', 2**31),
    ('stop', ''),
    ('stop', ['a'] * 17),
    ('stop', 'a' * 257),
    ('stop', [1]),
    ('logprobs', 5),
    ('stream', 1),
    ('stream_options', []),
    ('best_of', 3),
    *((name, 'x') for name in NEUTRAL),
    ('guided_regex', '.*'),
    ('max_completion_tokens', 3),  # of a chat
    ('messages', []),  # of a chat
    ('prompt', []),
    ('prompt', 7),
    ('prompt', [[]]),
    ('prompt', [1, 'a']),
    ('prompt', ['ab', None]),
    ('prompt', ''),
    ('prompt', 'a' * 48),
    ('prompt', [10**20]),
    ('prompt', [4, -1]),
    ('prompt', [4, running.VOCAB]),
    ('prompt', ['a'] * 9),
  ],
)
def test_a_field_is_named(served, field, value):
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
  assert _error(served.client.get('v1/models/x'), 404)
  assert _error(served.client.get('nowhere'), 404)
  assert _error(served.client.get('v1/completions'), 405)
  no_type = served.client.post('v1/completions', content=json.dumps(_BODY))
  assert _error(no_type, 415)


@pytest.mark.parametrize(
  'messages',
  [
    None,
    [],
    ['hi'],
    [{'role': 'user'}],
    [{'content': 'ab'}],
    [{'role': 'user', 'content': 3}],
    [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}],
    [{'role': 'user', 'content': 'ab', 'tool_calls': [{}]}],
    [{'role': 'user', 'content': ''}],
  ],
)
def test_messages(served, messages):
  response = served.post(_CHAT | {'messages': messages}, chat=True)
  assert _error(response, 400)['param'] == 'messages'


def test_alternatives_without_logprobs(served):
  error = _error(served.post(_CHAT | {'top_logprobs': 2}, chat=True), 400)
  assert error['param'] == 'top_logprobs'


def test_a_model_without_a_template_has_no_chat(served, tokenizer, monkeypatch):
  monkeypatch.setattr(running.Chatty, 'chat', lambda _, m: tokenizer.chat(m))
  error = _error(served.post(_CHAT, chat=True), 400)
  assert 'chat template' in error['message']


def test_neutral_fields_pass(served):
  plain = served.post(_BODY | {'seed': 1}).json()['choices']
  more = {name: values[0] for name, values in NEUTRAL.items()}
  more |= dict.fromkeys(HARMLESS, 'x') | {'best_of': 1, 'top_k': -1}
  more |= {'suffix': None, 'unheard_of': None, 'frequency_penalty': 0.0}
  response = served.post(_BODY | {'seed': 1, 'model': 'tiny'} | more)
  assert response.json()['choices'] == plain


@pytest.mark.parametrize(
  ('host', 'status'),
  [
    ('LocalHost:8000', 200),
    ('127.0.0.1:1', 200),
    ('[::1]:8000', 200),
    ('[::1]', 200),
    ('evil.example:8000', 421),
    ('localhost.evil.example', 421),
    ('evil.example:localhost', 421),
    ('localhost:80:80', 421),
    ('', 421),
  ],
)
def test_another_name_is_refused(served, host, status):
  """A page's own name may resolve to this machine (DNS rebinding)."""
  headers = {'host': host}
  page = served.client.get('/', headers=headers)
  assert page.status_code == status, page.text
  response = served.client.post('v1/completions', json=_BODY, headers=headers)
  if status == 421:
    assert _error(response, 421)['code'] == 'unknown_host'
  else:
    assert response.status_code == 200


@pytest.mark.parametrize('names', [[], ['localhost', 'x']])
def test_no_or_two_names_are_refused(names):
  """The HTTP library may let them pass."""
  answers = []

  def answer(name):
    async def app(*_):
      answers.append(name)

    return app

  check = hosts.HostCheck(
    answer('app'), {'localhost'}, lambda error: answer(error.status)
  )
  headers = [(b'host', name.encode()) for name in names]
  asyncio.run(check({'type': 'http', 'headers': headers}, None, None))
  assert answers == [421]


def test_names_of_a_server():
  local = {'localhost', '127.0.0.1', '[::1]'}
  assert hosts.allowed('127.0.0.1') == hosts.allowed('localhost') == local
  assert hosts.allowed('127.0.0.2', ['Proxy']) == {
    *local, '127.0.0.2', 'proxy',
  }  # fmt: skip
  # On another address clients use any name, unless names are listed.
  assert hosts.allowed('0.0.0.0') is None
  assert hosts.allowed('fe80::1', ['a.b']) == {'[fe80::1]', 'a.b'}


def test_bodies_that_are_too_long(served):
  _error(served.post(_BODY | {'user': 'x' * running.BODY}), 413)
  parts = (b'{"prompt": "' + b'a' * 4096 for _ in range(9))
  response = served.client.post('v1/completions', content=parts, headers=_JSON)
  _error(response, 413)  # without a Content-Length


def test_a_full_queue(served):
  """Slots and queue are filled, and not more."""
  with running.held(served.engine) as permits:
    with served.client.stream(
      'POST', 'v1/completions', json=_BODY | {'n': 5, 'stream': True}
    ) as response:
      running.wait_for(lambda: served.worker.num_open == 5)
      full = served.post(_BODY | {'n': 4})
      error = _error(full, 429)
      assert error['code'] == 'queue_full' and full.headers['retry-after']
      running.wait_for(lambda: served.engine.num_active == 3)
      assert served.metric('queue_texts') == 2
      permits.release(100)
      response.read()
    assert len(running.events(response.text)) >= 5
  assert served.post(_BODY | {'n': 4}).status_code == 200
  assert served.metric('requests_total{outcome="full"') >= 1


@pytest.mark.parametrize('streams', [True, False])
def test_disconnecting_frees_the_slots(served, streams):
  before = served.metric('output_tokens_total')
  num_cancelled = served.num_cancelled()
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
    running.wait_for(lambda: served.num_cancelled() == num_cancelled + 1)
    permits.release(1)  # the burst in flight
    served.wait_idle()
  # Three slots, three bursts, rounds of at most four tokens.
  assert served.metric('output_tokens_total') - before <= 3 * 3 * 4
  assert served.post(_BODY).status_code == 200


def test_fuzz(served):
  """Any body is answered, and never by a server error."""
  rng = random.Random(0)
  odd = [
    None, True, False, 0, -1, 1, 3, 2**31, 10**30, 1e300, 0.5, '', 'a', 'é',
    '\ud800', '\0', 'k' * 99, [], [[]], [None], ['a', 1], [1, 2], {}, {'a': 1},
    {'type': 'text'}, [{'role': 'user', 'content': 'ab'}], [{'role': 'x'}],
  ]  # fmt: skip
  names = [
    'prompt', 'messages', 'n', 'max_tokens', 'temperature', 'top_p', 'top_k',
    'min_p', 'stop', 'seed', 'logprobs', 'top_logprobs', 'stream', 'model',
    'stream_options', 'ignore_eos', 'best_of', 'user', 'tools', 'x\ud800',
  ]  # fmt: skip
  statuses = []
  for i in range(200):
    chat = rng.random() < 0.4
    body = dict(_CHAT if chat else _BODY)
    for _ in range(rng.choice([0, 1, 1, 2])):
      body[rng.choice(names)] = rng.choice(odd)
    content = bytearray(json.dumps(body).encode())
    for _ in range(rng.choice([0, 0, 0, 1, 5])):
      content[rng.randrange(len(content))] = rng.randrange(256)
    if i % 50 == 0:
      content = b'[' * 9000 if i % 100 else b''
    path = 'v1/chat/completions' if chat else 'v1/completions'
    response = served.client.post(path, content=bytes(content), headers=_JSON)
    statuses.append(response.status_code)
    assert response.status_code in (200, 400, 404), (content, response.text)
    if response.status_code != 200:
      _error(response, response.status_code)
  assert statuses.count(200) > 20 and statuses.count(400) > 100
  assert served.client.get('health').status_code == 200


def test_bytes_that_are_not_http(served):
  host, port = served.url.removeprefix('http://').strip('/').split(':')
  for sent in (b'\0' * 99, b'GET\r\n\r\n', b'POST /v1/completions HTTP/9\r\n'):
    with socket.create_connection((host, int(port)), timeout=5) as client:
      client.sendall(sent)
      time.sleep(0.01)
  assert served.post(_BODY).status_code == 200
