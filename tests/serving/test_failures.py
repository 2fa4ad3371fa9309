"""An engine that fails takes the server with it, and tells its clients."""

import asyncio
import dataclasses
import json
from unittest import mock

import httpx
import jax
import pytest
import running

from specsamp.serving import app, asked, texts
from specsamp.serving.asked import Limits
from specsamp.serving.refusals import Refusal

_BODY = {'prompt': 'abcd', 'max_tokens': 9, 'n': 2}


@pytest.mark.parametrize('streams', [True, False])
def test_a_failed_turn(models, streams):
  """Of a bug: nothing hangs, and the process ends with it."""
  with running.serving(*models) as served:
    with running.held(served.engine) as permits:
      burst = served.engine._batch.burst

      def fail(*args):
        burst(*args)
        raise RuntimeError('a bug')

      served.engine._batch.burst = fail
      permits.release(1)
      answer = served.post(_BODY | {'stream': streams})
      served.engine._batch.burst = burst
    if streams:
      error = running.events(answer.text)[-1]['error']
    else:
      assert answer.status_code == 500
      error = answer.json()['error']
    assert error['message'] == 'the server has failed'
    assert error['type'] == 'server_error'
    running.wait_for(lambda: served.http.should_exit)
    assert str(served.worker.failure) == 'a bug'


def test_an_error_of_ours_is_an_answer(models, monkeypatch):
  with running.serving(*models) as served:
    with monkeypatch.context() as patched:
      patched.setattr(served.worker, 'submit', lambda asked: 1 / 0)
      answer = served.post(_BODY)
    assert answer.status_code == 500
    assert answer.json()['error']['message'] == 'internal error'
    # By another connection: the library has closed that one.
    again = httpx.post(f'{served.url}v1/completions', json=_BODY, timeout=60)
    assert again.status_code == 200


def test_a_text_that_cannot_be_made(models, monkeypatch, caplog):
  """Of a tokenizer's bug: its client is told, and all others go on."""
  real = texts.Text.add

  def add(self, tokens, *rest):
    if self._stops == ('kkkkk',):
      raise RuntimeError('a bug')
    real(self, tokens, *rest)

  monkeypatch.setattr(texts.Text, 'add', add)
  with running.serving(*models) as served:
    answer = served.post(_BODY | {'stop': 'kkkkk'})
    assert answer.status_code == 500
    assert answer.json()['error']['message'] == 'internal error'
    *_, last = served.stream(_BODY | {'stop': 'kkkkk'})
    assert last['error']['type'] == 'server_error'
    served.wait_idle()
    assert served.post(_BODY).status_code == 200
  assert 'a text could not be made' in caplog.text


def test_what_nobody_reads_is_bounded(models):
  """Texts that have ended count until they are taken."""
  target, drafter = models
  body = json.dumps(_BODY | {'n': 5}).encode()

  async def ask(served):
    worker = served.worker
    limits = Limits(
      'tiny', target.tokenizer, target.config.num_tokens, 48, 48, 8, logprobs=4
    )
    wanted = asked.read(body, False, limits)
    ticket = worker.submit(wanted)
    while worker.num_open:
      await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match='got 5 texts, 5 are under way'):
      worker.submit(wanted)
    parts = [part async for part in ticket.parts()]
    assert sum(part.finish_reason is not None for part in parts) == 5
    other = worker.submit(wanted)
    worker.cancel(other)  # what is given up is no more kept for anybody
    while worker.num_open:
      await asyncio.sleep(0.01)
    worker.cancel(worker.submit(wanted))

  with running.serving(target, drafter) as served:
    loop = served.http.servers[0].get_loop()
    asyncio.run_coroutine_threadsafe(ask(served), loop).result(60)


def test_a_client_that_reads_nothing_is_left(models, monkeypatch):
  monkeypatch.setattr(app, '_SEND_SECONDS', 0.05)

  async def send(part):
    if part['type'] == 'http.response.body':
      await asyncio.Event().wait()

  async def parts():
    yield 'part'

  ticket = mock.Mock(parts=parts)
  answer = mock.Mock(opening=list, chunk=lambda part: {'part': part})
  with pytest.raises(app._Gone):
    asyncio.run(app._stream(ticket, answer, send))


def test_logits_that_are_nan(models):
  target, drafter = models
  params = jax.tree.map(lambda x: x * float('nan'), target.params)
  broken = dataclasses.replace(target, params=params)
  with running.serving(broken, drafter) as served:
    answer = served.post(_BODY)
    assert answer.status_code == 500
    assert answer.json()['error']['message'] == 'the model gave NaN'
    *_, last = served.stream(_BODY)
    assert last['error']['type'] == 'server_error'
    served.wait_idle()
