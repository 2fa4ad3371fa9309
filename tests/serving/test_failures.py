"""An engine that fails takes the server with it, and tells its clients."""

import dataclasses

import httpx
import jax
import pytest
import running

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
