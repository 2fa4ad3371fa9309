"""What a client does wrong, or too much of, and what it is told."""

import asyncio
import json
import random
import socket
import time

import pytest
import running

from specsamp.serving import hosts
from specsamp.serving.fields import HARMLESS, NEUTRAL

_BODY = {'prompt': 'abcd', 'max_tokens': 4}
_CHAT = {'messages': [{'role': 'user', 'content': 'ab'}], 'max_tokens': 4}


def _error(answer, status: int) -> dict:
  assert answer.status_code == status, answer.text
  assert answer.json().keys() == {'error'}
  error = answer.json()['error']
  assert error.keys() == {'message', 'type', 'param', 'code'}
  assert error['message'] and '\n' not in error['message']
  return error


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('n', 0),
    ('n', 9),
    ('n', True),
    ('max_tokens', 0),
    ('max_tokens', 1.5),
    ('max_tokens', 10**9),
    ('temperature', -1),
    ('temperature', 'hot'),
    pytest.param('temperature', 10**400, id='huge'),
    ('top_p', 0),
    ('top_p', 1.01),
    ('top_k', -2),
    ('min_p', 1),
    ('seed', -1),
    ('seed', 2**31),
    ('stop', ''),
    ('stop', ['a'] * 17),
    ('stop', 'a' * 257),
    ('stop', [1]),
    ('logprobs', 5),
    ('stream', 1),
    ('stream_options', []),
    ('best_of', 3),
    ('echo', True),
    ('suffix', 'x'),
    ('frequency_penalty', 0.5),
    ('presence_penalty', -1),
    ('logit_bias', {'1': 2}),
    ('tools', [{}]),
    ('response_format', {'type': 'json_object'}),
    ('guided_regex', '.*'),
    ('max_completion_tokens', 3),  # of a chat
    ('messages', []),  # likewise
    ('prompt', ''),
    ('prompt', []),
    ('prompt', 7),
    ('prompt', {}),
    ('prompt', [[]]),
    ('prompt', [1, 'a']),
    ('prompt', ['ab', None]),
    ('prompt', 'a' * 48),
    ('prompt', [10**20]),
    ('prompt', [4, -1]),
    ('stop', 'ab' * 200),
    ('prompt', ['a'] * 9),
  ],
)
def test_a_field_is_named(served, field, value):
  content = json.dumps(_BODY | {field: value})
  answer = served.client.post(
    'v1/completions',
    content=content,
    headers={'content-type': 'application/json'},
  )
  assert _error(answer, 400)['param'] == field


@pytest.mark.parametrize('beyond', [0, 1, 10])
def test_tokens_that_the_target_does_not_have_are_refused(served, beyond):
  last = served.engine.model.config.num_tokens - 1
  body = _BODY | {'prompt': [4, last + beyond]}
  answer = served.post(body)
  if not beyond:
    assert answer.status_code == 200
    return
  error = _error(answer, 400)
  assert f'got the token {last + beyond}, expected 0 to {last}' in str(error)


def test_others(served):
  error = _error(served.post(_BODY | {'model': 'gpt'}), 404)
  assert error['code'] == 'model_not_found' and error['param'] == 'model'
  options = {'stream_options': {'include_all': True}}
  assert 'include_all' in _error(served.post(_BODY | options), 400)['message']
  beyond = served.post(_BODY | {'max_tokens': 45})
  assert _error(beyond, 400)['code'] == 'context_length_exceeded'
  assert served.post(_BODY | {'max_tokens': 44}).status_code == 200
  assert 'XYZ' not in _error(served.post(_BODY | {'prompt': 'XYZ'}), 400)
  assert _error(served.client.get('v1/models/x'), 404)
  assert _error(served.client.get('nowhere'), 404)
  assert _error(served.client.get('v1/completions'), 405)
  text = served.client.post('v1/completions', content=json.dumps(_BODY))
  assert _error(text, 415)


@pytest.mark.parametrize(
  'messages',
  [
    None,
    [],
    'hi',
    ['hi'],
    [{'role': 'user'}],
    [{'content': 'ab'}],
    [{'role': 'user', 'content': 3}],
    [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}],
    [{'role': 'user', 'content': 'ab', 'tool_calls': [{}]}],
    [{'role': 'user', 'content': ''}],
  ],
)
def test_conversations(served, messages):
  _error(served.post(_CHAT | {'messages': messages}, chat=True), 400)


def test_alternatives_without_logprobs(served):
  error = _error(served.post(_CHAT | {'top_logprobs': 2}, chat=True), 400)
  assert error['param'] == 'top_logprobs'


def test_a_model_without_a_template_has_no_chat(served, tokenizer, monkeypatch):
  monkeypatch.setattr(running.Chatty, 'chat', lambda _, m: tokenizer.chat(m))
  error = _error(served.post(_CHAT, chat=True), 400)
  assert error['message'] == 'chat: the tokenizer has no chat template'


def test_what_changes_nothing_passes(served):
  plain = served.post(_BODY | {'seed': 1}).json()['choices']
  more = {name: values[0] for name, values in NEUTRAL.items()}
  more |= dict.fromkeys(HARMLESS, 'x') | {'best_of': 1, 'top_k': -1}
  more |= {'suffix': None, 'unheard_of': None}
  answer = served.post(_BODY | {'seed': 1, 'model': 'tiny'} | more)
  assert answer.json()['choices'] == plain


@pytest.mark.parametrize(
  ('host', 'status'),
  [
    ('localhost', 200),
    ('LocalHost:8000', 200),
    ('127.0.0.1:1', 200),
    ('[::1]:8000', 200),
    ('[::1]', 200),
    ('evil.example', 421),
    ('evil.example:8000', 421),
    ('localhost.evil.example', 421),
    ('127.0.0.1.evil.example', 421),
    ('evil.example:localhost', 421),
    ('localhost:80:80', 421),
    ('', 421),
  ],
)
def test_another_name_is_refused(served, host, status):
  """A page whose own name resolves to this machine (DNS rebinding)."""
  for path in ('/', 'health', 'metrics', 'v1/models'):
    answer = served.client.get(path, headers={'host': host})
    assert answer.status_code == status, (path, answer.text)
  headers = {'host': host}
  answer = served.client.post('v1/completions', json=_BODY, headers=headers)
  if status == 421:
    assert _error(answer, 421)['code'] == 'unknown_host'
  else:
    assert answer.status_code == 200


@pytest.mark.parametrize(
  'names', [[], ['localhost', 'localhost'], ['localhost', 'x']]
)
def test_none_or_two_names_are_refused(names):
  """Which the library before it may let through."""
  refused = []

  async def refuse(*_):
    refused.append('refused')

  async def answer(*_):
    refused.append('answered')

  check = hosts.HostCheck(answer, {'localhost'}, lambda refusal: refuse)
  headers = [(b'host', name.encode()) for name in names]
  scope = {'type': 'http', 'headers': headers}
  asyncio.run(check(scope, None, None))
  assert refused == ['refused']


def test_which_names_there_are():
  local = {'localhost', '127.0.0.1', '[::1]'}
  assert hosts.allowed('127.0.0.1') == hosts.allowed('localhost') == local
  assert hosts.allowed('::1') == local
  assert hosts.allowed('127.0.0.2', ['Proxy']) == {
    *local, '127.0.0.2', 'proxy',
  }  # fmt: skip
  # Whoever reaches it from elsewhere calls it as they will, unless told.
  assert hosts.allowed('0.0.0.0') is None
  assert hosts.allowed('10.0.0.1', ['a.b']) == {'10.0.0.1', 'a.b'}


def test_bodies_that_are_too_long(served):
  long = _BODY | {'user': 'x' * running.BODY}
  _error(served.post(long), 413)
  parts = (b'{"prompt": "' + b'a' * 4096 for _ in range(9))
  headers = {'content-type': 'application/json'}
  answer = served.client.post('v1/completions', content=parts, headers=headers)
  _error(answer, 413)  # though it does not tell its length


def test_a_full_queue(served):
  """As many as slots and queue, and not one more."""
  with running.held(served.engine) as permits:
    with served.client.stream(
      'POST', 'v1/completions', json=_BODY | {'n': 5, 'stream': True}
    ) as answer:
      running.wait_for(lambda: served.worker.num_open == 5)
      full = served.post(_BODY | {'n': 4})
      error = _error(full, 429)
      assert error['code'] == 'queue_full' and full.headers['retry-after']
      running.wait_for(lambda: served.engine.num_active == 3)
      assert served.metric('queue_texts') == 2
      permits.release(100)
      answer.read()
    assert len(running.events(answer.text)) >= 5
  assert served.post(_BODY | {'n': 4}).status_code == 200
  assert served.metric('requests_total{outcome="full"') >= 1


def _hang_up(served, body, before):
  """Sends a request, and goes when something is so."""
  content = json.dumps(body).encode()
  address = served.url.removeprefix('http://').strip('/').split(':')
  with socket.create_connection((address[0], int(address[1]))) as client:
    client.sendall(
      b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
      b'Content-Type: application/json\r\n'
      b'Content-Length: %d\r\n\r\n%s' % (len(content), content)
    )
    running.wait_for(before)


@pytest.mark.parametrize('streams', [True, False])
def test_hanging_up_frees_the_slots(served, streams):
  before = served.metric('output_tokens_total')
  num_gone = served.num_cancelled()
  body = _BODY | {'n': 5, 'max_tokens': 40, 'stream': streams}
  with running.held(served.engine) as permits:
    permits.release(2)
    _hang_up(
      served, body, lambda: served.metric('output_tokens_total') > before
    )
    running.wait_for(lambda: served.num_cancelled() == num_gone + 1)
    permits.release(1)  # the burst that was under way
    served.wait_idle()
  # Three slots, rounds of at most four tokens.
  assert served.metric('output_tokens_total') - before <= 3 * 3 * 4
  assert served.post(_BODY).status_code == 200


def test_fuzz(served):
  """Whatever comes, an answer, and never that the server is at fault."""
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
    kind = {'content-type': 'application/json'}
    answer = served.client.post(path, content=bytes(content), headers=kind)
    statuses.append(answer.status_code)
    assert answer.status_code in (200, 400, 404), (content, answer.text)
    if answer.status_code != 200:
      _error(answer, answer.status_code)
  assert statuses.count(200) > 20 and statuses.count(400) > 100
  assert served.client.get('health').status_code == 200


def test_lines_that_are_no_request(served):
  host, port = served.url.removeprefix('http://').strip('/').split(':')
  for sent in (b'\0' * 99, b'GET\r\n\r\n', b'POST /v1/completions HTTP/9\r\n'):
    with socket.create_connection((host, int(port)), timeout=5) as client:
      client.sendall(sent)
      time.sleep(0.01)
  assert served.post(_BODY).status_code == 200
