"""Requests of all kinds for an engine, and each of them alone."""

import random

import specsamp
from specsamp import SamplingParams

LENGTH = 48  # of an engine; buckets of 32 and 48


def requests(count: int, seed: int, max_prompt: int = 40) -> list[dict]:
  """Returns arguments of `submit` for requests of all kinds."""
  rng = random.Random(seed)
  made = []
  for _ in range(count):
    length = rng.choice([1, 1, 2, 5, 9, max_prompt // 2, max_prompt])
    greedy = rng.random() < 0.3
    made.append(
      dict(
        prompt=[rng.randrange(11) for _ in range(length)],
        max_new_tokens=rng.randint(1, min(25, LENGTH - length)),
        seed=rng.randrange(2**31),
        stop_tokens=rng.sample(range(11), rng.choice([0, 0, 1, 2])),
        sampling=SamplingParams(
          temperature=0.0 if greedy else rng.choice([0.5, 1.0, 1.5]),
          top_k=rng.choice([0, 0, 4]),
          top_p=rng.choice([1.0, 0.8]),
          min_p=rng.choice([0.0, 0.1]),
        ),
      )
    )
  return made


def alone(target, drafter, verifier, request) -> list[int]:
  """Returns the tokens of `generate`, for the request as a batch of one."""
  args = dict(request, drafter=drafter, verifier=verifier)
  return specsamp.generate(target, [args.pop('prompt')], **args).tokens[0]
