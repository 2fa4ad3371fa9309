"""Failures of the engine, the tokenizer or a client, and their effects."""

import asyncio
import dataclasses
import json
from unittest import mock

import httpx
import jax
import pytest
import running
from starlette.requests import ClientDisconnect

from specsamp.serving import app, requests
from specsamp.serving.detokenize import CompletionText
from specsamp.serving.errors import ApiError

_BODY = {'prompt': 'abcd', 'max_tokens': 9, 'n': 2}


@pytest.mark.parametrize('streams', [True, False])
def test_a_failed_step(models, streams):
  """Clients get an error, and the process ends."""
  with running.serving(*models) as served:
    with running.held(served.engine) as permits:
      burst = served.engine._batch.burst

      def fail(*args):
        burst(*args)
        raise RuntimeError('a bug')

      served.engine._batch.burst = fail
      permits.release(1)
      response = served.post(_BODY | {'stream': streams})
      served.engine._batch.burst = burst
    if streams:
      error = running.events(response.text)[-1]['error']
    else:
      assert response.status_code == 500
      error = response.json()['error']
    assert error['message'] == 'the server has failed'
    assert error['type'] == 'server_error'
    running.wait_for(lambda: served.http.should_exit)
    assert str(served.worker.failure) == 'a bug'


def test_an_internal_error_is_answered(models, monkeypatch):
  with running.serving(*models) as served:
    with monkeypatch.context() as patched:
      patched.setattr(served.worker, 'submit', lambda request: 1 / 0)
      response = served.post(_BODY)
    assert response.status_code == 500
    assert response.json()['error']['message'] == 'internal error'
    # On another connection: uvicorn has closed the first one.
    again = httpx.post(f'{served.url}v1/completions', json=_BODY, timeout=60)
    assert again.status_code == 200


def test_a_tokenizer_error_ends_one_request(models, monkeypatch, caplog):
  add = CompletionText.add

  def fail(self, tokens, *rest):
    if self._stops == ['kkkkk']:
      raise RuntimeError('a bug')
    add(self, tokens, *rest)

  monkeypatch.setattr(CompletionText, 'add', fail)
  with running.serving(*models) as served:
    response = served.post(_BODY | {'stop': 'kkkkk'})
    assert response.status_code == 500
    assert response.json()['error']['message'] == 'internal error'
    *_, last = served.stream(_BODY | {'stop': 'kkkkk'})
    assert last['error']['type'] == 'server_error'
    served.wait_idle()
    assert served.post(_BODY).status_code == 200
  assert 'tokens could not be decoded' in caplog.text


def test_unread_completions_are_bounded(served):
  """Choices that have ended count until they are read."""
  body = json.dumps(_BODY | {'n': 5}).encode()
  worker = served.worker

  async def submit():
    request = requests.parse(body, False, served.limits)
    active = worker.submit(request)
    while worker.num_open:
      await asyncio.sleep(0.01)
    with pytest.raises(ApiError, match='got 5 choices, 5 are in flight'):
      worker.submit(request)
    deltas = [delta async for delta in active.deltas()]
    assert sum(delta.finish_reason is not None for delta in deltas) == 5
    other = worker.submit(request)
    worker.cancel(other)  # a cancelled request does not count
    while worker.num_open:
      await asyncio.sleep(0.01)
    worker.cancel(worker.submit(request))

  loop = served.http.servers[0].get_loop()
  asyncio.run_coroutine_threadsafe(submit(), loop).result(60)


def test_a_client_that_reads_nothing_is_left(monkeypatch):
  monkeypatch.setattr(app, '_SEND_SECONDS', 0.05)

  async def send(message):
    if message['type'] == 'http.response.body':
      await asyncio.Event().wait()

  async def deltas():
    yield 'delta'

  active = mock.Mock(deltas=deltas)
  builder = mock.Mock(opening=list, chunk=lambda delta: {'delta': delta})
  with pytest.raises(ClientDisconnect):
    asyncio.run(app._stream(active, builder, send))


def test_logits_that_are_nan(models):
  target, drafter = models
  params = jax.tree.map(lambda x: x * float('nan'), target.params)
  broken = dataclasses.replace(target, params=params)
  with running.serving(broken, drafter) as served:
    response = served.post(_BODY)
    assert response.status_code == 500
    assert response.json()['error']['message'] == 'the model gave NaN'
    *_, last = served.stream(_BODY)
    assert last['error']['type'] == 'server_error'
    served.wait_idle()
