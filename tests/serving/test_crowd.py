"""A hundred clients at once, a third of which disconnect."""

import asyncio
import random

import httpx
import pytest
import running

import specsamp
from specsamp import SamplingParams

_CLIENTS = 100
_BURSTS = 20  # during which they disconnect


@pytest.mark.parametrize('rounds', [1, 4])
def test_nothing_is_lost_or_stuck(models, rounds):
  target, drafter = models
  rng = random.Random(rounds)
  bodies = [
    {
      'prompt': ''.join(rng.choices('abcdefghijk', k=rng.randint(1, 9))),
      'max_tokens': rng.randint(1, 30),
      'temperature': rng.choice([0.0, 1.0]),
      'seed': i,
      'stream': rng.random() < 0.5,
    }
    for i in range(_CLIENTS)
  ]
  # The burst before which each disconnects: many before the first.
  leaves = [
    max(rng.randrange(-10, _BURSTS), 0) if i % 3 == 0 else None
    for i in range(_CLIENTS)
  ]
  with running.serving(target, drafter, rounds, queue=2 * _CLIENTS) as served:
    texts = asyncio.run(_all(served, bodies, leaves))
    served.wait_idle()
    assert not served.worker.num_open and not served.engine.num_waiting
    assert served.worker.failure is None
    completed = served.metric('requests_total{outcome="completed"')
    cancelled = served.num_cancelled()
    # Some disconnected after their response.
    assert leaves.count(0) < cancelled <= 34
    assert completed + cancelled == served.metric('requests_total') == _CLIENTS
  stayed = [i for i, leave in enumerate(leaves) if leave is None]
  assert len(stayed) == 66
  for i in stayed:
    body = bodies[i]
    wanted = specsamp.generate(
      target,
      [[ord(letter) - ord('a') for letter in body['prompt']]],
      drafter=drafter,
      sampling=SamplingParams(temperature=body['temperature']),
      max_new_tokens=body['max_tokens'],
      seed=i,
    )
    assert texts[i] == wanted.texts[0], i


async def _all(served, bodies, leaves) -> list[str | None]:
  """Returns the texts, None for a client that disconnected."""
  limits = httpx.Limits(max_connections=_CLIENTS)
  async with httpx.AsyncClient(
    base_url=served.url, timeout=running.PATIENCE, limits=limits
  ) as client:

    async def one(body):
      response = await client.post('v1/completions', json=body)
      assert response.status_code == 200, response.text
      if not body['stream']:
        return response.json()['choices'][0]['text']
      chunks = running.events(response.text)
      return ''.join(chunk['choices'][0]['text'] for chunk in chunks)

    tasks = [asyncio.create_task(one(body)) for body in bodies]
    await _disconnect(served, tasks, leaves)
    results = await asyncio.gather(*tasks, return_exceptions=True)
  errors = [result for result in results if isinstance(result, Exception)]
  assert not errors, errors
  return [result if isinstance(result, str) else None for result in results]


async def _disconnect(served, tasks, leaves) -> None:
  """Sends all requests before the first burst, and cancels some after each."""
  until = lambda condition: asyncio.to_thread(running.wait_for, condition)
  num_tokens = lambda: served.metric('output_tokens_total')
  with running.held(served.engine) as permits:
    await until(lambda: served.worker.num_open == _CLIENTS)
    for burst in range(_BURSTS):
      for task, leave in zip(tasks, leaves, strict=True):
        if leave == burst:
          task.cancel()
      if burst == 0:
        await until(lambda: served.num_cancelled() == leaves.count(0))
      before = num_tokens()
      permits.release()
      await until(lambda before=before: num_tokens() > before)
