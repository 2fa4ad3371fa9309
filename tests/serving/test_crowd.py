"""Many clients at once, a third of which disconnect."""

import asyncio
import random

import httpx
import running

import specsamp
from specsamp import SamplingParams

_CLIENTS = 40


def test_nothing_is_lost_or_stuck(models):
  target, drafter = models
  rng = random.Random(4)
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
  with running.serving(target, drafter, 4, queue=2 * _CLIENTS) as served:
    texts = asyncio.run(_all(served, bodies))
    served.wait_idle()
    assert not served.engine.num_waiting and served.worker.failure is None
    completed = served.metric('requests_total{outcome="completed"')
    assert completed + served.metric(running.CANCELLED) == _CLIENTS
    assert (
      served.metric(running.CANCELLED)
      == sum(text is None for text in texts)
      > 5
    )
  for body, text in zip(bodies, texts, strict=True):
    wanted = specsamp.generate(
      target,
      body['prompt'],
      drafter=drafter,
      sampling=SamplingParams(temperature=body['temperature']),
      max_new_tokens=body['max_tokens'],
      seed=body['seed'],
    )
    assert text in (None, wanted.texts[0])


async def _all(served, bodies) -> list[str | None]:
  """Returns the texts, None for clients that disconnect."""
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

    with running.held(served.engine) as permits:
      tasks = [asyncio.create_task(one(body)) for body in bodies]
      until = lambda condition: asyncio.to_thread(running.wait_for, condition)
      await until(lambda: served.worker.num_open == _CLIENTS)
      for task in tasks[::6]:  # in the queue, most of them
        task.cancel()
      permits.release(2)
      await until(lambda: served.metric('rounds_total') > 0)
      for task in tasks[3::6]:
        task.cancel()
      await asyncio.sleep(0.1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
  errors = [result for result in results if isinstance(result, Exception)]
  assert not errors, errors
  return [result if isinstance(result, str) else None for result in results]
