"""Failures of the engine, the tokenizer or a client, and their effects."""

import asyncio
import dataclasses
import json
import signal
import threading

import jax
import pytest
import running

from specsamp.serving import requests
from specsamp.serving.detokenize import CompletionText
from specsamp.serving.errors import ApiError

_BODY = {'prompt': 'abcd', 'max_tokens': 9, 'n': 2}


def test_a_failed_step(models):
  """Clients get an error, and the process ends."""
  with running.serving(*models) as served:
    batch = served.engine._batch
    batch.burst, burst = lambda *_: 1 / 0, batch.burst
    response = served.post(_BODY)
    batch.burst = burst
    assert response.status_code == 500
    error = response.json()['error']
    assert error['message'] == 'the server has failed'
    assert error['type'] == 'server_error'
    running.wait_for(lambda: served.http.should_exit)
    assert isinstance(served.worker.failure, ZeroDivisionError)


def test_a_tokenizer_error_ends_one_request(served, monkeypatch, caplog):
  add = CompletionText.add

  def fail(self, tokens, *rest):
    if self._stops == ['kkkkk']:
      raise RuntimeError('a bug')
    add(self, tokens, *rest)

  monkeypatch.setattr(CompletionText, 'add', fail)
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
    worker.cancel(worker.submit(request))  # does not count any more
    worker.cancel(worker.submit(request))

  loop = served.http.servers[0].get_loop()
  asyncio.run_coroutine_threadsafe(submit(), loop).result(60)


def test_a_second_signal_gives_up(models):
  responses = []
  body = _BODY | {'max_tokens': 40, 'n': 8, 'ignore_eos': True}
  with running.serving(*models) as served, running.held(served.engine) as held:
    post = lambda: responses.append(served.post(body))
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    running.wait_for(lambda: served.engine.num_active)
    for _ in range(2):
      served.http.handle_exit(signal.SIGTERM, None)
    thread.join(running.PATIENCE)
    held.release(100)
    running.wait_for(lambda: served.http.should_exit)
  (response,) = responses
  assert response.status_code == 503
  assert response.json()['error']['code'] == 'unavailable'


def test_logits_that_are_nan(models):
  target, drafter = models
  params = jax.tree.map(lambda x: x * float('nan'), target.params)
  broken = dataclasses.replace(target, params=params)
  with running.serving(broken, drafter) as served:
    response = served.post(_BODY)
  assert response.status_code == 500
  assert response.json()['error']['message'] == 'the model gave NaN'
