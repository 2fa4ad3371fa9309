"""A hundred clients at once, a third of whom hang up."""

import asyncio
import random

import httpx
import pytest
import running

import specsamp
from specsamp import SamplingParams

_CLIENTS = 100


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
  leaves = [rng.random() * 0.3 if i % 3 == 0 else None for i in range(_CLIENTS)]
  with running.serving(target, drafter, rounds, queue=2 * _CLIENTS) as served:
    texts = asyncio.run(_all(served.url, bodies, leaves))
    served.wait_idle()
    assert not served.worker.num_open and not served.engine.num_waiting
    assert served.worker.failure is None
    completed = served.metric('requests_total{outcome="completed"')
    cancelled = served.metric('requests_total{outcome="cancelled"')
    # Some hung up before they had asked, or after the answer had come.
    assert 66 <= completed <= 90 and cancelled >= 5
    assert served.metric('requests_total') == completed + cancelled
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


async def _all(url, bodies, leaves) -> list[str | None]:
  """The texts, None of a client that hung up."""
  limits = httpx.Limits(max_connections=_CLIENTS)
  async with httpx.AsyncClient(
    base_url=url, timeout=running.PATIENCE, limits=limits
  ) as client:

    async def one(body, leave):
      try:
        async with asyncio.timeout(leave):
          answer = await client.post('v1/completions', json=body)
      except TimeoutError:
        return None
      assert answer.status_code == 200, answer.text
      if not body['stream']:
        return answer.json()['choices'][0]['text']
      chunks = running.events(answer.text)
      return ''.join(chunk['choices'][0]['text'] for chunk in chunks)

    return await asyncio.gather(*map(one, bodies, leaves))
