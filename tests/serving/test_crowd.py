"""A hundred clients at once, a third of whom hang up."""

import asyncio
import random

import httpx
import pytest
import running

import specsamp
from specsamp import SamplingParams

_CLIENTS = 100
_BURSTS = 20  # in which they hang up


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
  # After how many bursts each hangs up: many before the first.
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
    # Some hung up after the answer had come.
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
  """The texts, None of a client that hung up."""
  limits = httpx.Limits(max_connections=_CLIENTS)
  async with httpx.AsyncClient(
    base_url=served.url, timeout=running.PATIENCE, limits=limits
  ) as client:

    async def one(body):
      answer = await client.post('v1/completions', json=body)
      assert answer.status_code == 200, answer.text
      if not body['stream']:
        return answer.json()['choices'][0]['text']
      chunks = running.events(answer.text)
      return ''.join(chunk['choices'][0]['text'] for chunk in chunks)

    tasks = [asyncio.create_task(one(body)) for body in bodies]
    await _hang_up(served, tasks, leaves)
    found = await asyncio.gather(*tasks, return_exceptions=True)
  errors = [text for text in found if isinstance(text, Exception)]
  assert not errors, errors
  return [text if isinstance(text, str) else None for text in found]


async def _hang_up(served, tasks, leaves) -> None:
  """Has all ask before the first burst, and some leave behind each."""
  until = lambda is_so: asyncio.to_thread(running.wait_for, is_so)
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
