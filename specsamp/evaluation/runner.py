"""Runs methods side by side on the same prompts."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tqdm

from specsamp.data.prompts import Prompt
from specsamp.decoding.generate import generate, slots
from specsamp.drafting.drafter import Drafter
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams


class Method(NamedTuple):
  """One way to decode.

  Attributes:
    name: `autoregressive` is the baseline of the speedups.
    drafter: None for the baseline.
    verifier: a name of `specsamp.verification.make`.
    temperature: of both laws.
    top_p: of both laws.
  """

  name: str
  drafter: Drafter | None
  verifier: str
  temperature: float
  top_p: float

  @property
  def draft_len(self) -> int:
    return self.drafter.tree.depth if self.drafter is not None else 0


def compare(
  target: LanguageModel,
  methods: Sequence[Method],
  prompts: Sequence[Prompt],
  *,
  max_new_tokens: int,
  seed: int,
  path: pathlib.Path,
  task: str,
) -> list[dict[str, Any]]:
  """Decodes every prompt by every method, prompt by prompt, at batch size 1.

  The methods take turns on each prompt, so that a machine whose speed drifts
  is as fast for one as for another. No stop token is honoured: every sequence
  has the same length. A first pass over one prompt of every size of program
  compiles what there is to compile and is not counted.

  Args:
    target: the target.
    methods: what to compare.
    prompts: texts.
    max_new_tokens: in every sequence.
    seed: prompt i draws from `seed + i`, whatever the method.
    path: a JSON line for every sequence goes here as soon as it is done.
    task: name of the prompts.

  Returns:
    The lines.
  """

  def run(method: Method, prompt: Prompt, i: int):
    return generate(
      target,
      prompt.text,
      drafter=method.drafter,
      verifier=method.verifier,
      sampling=SamplingParams(
        temperature=method.temperature, top_p=method.top_p
      ),
      max_new_tokens=max_new_tokens,
      seed=seed + i,
      stop_tokens=(),
    )

  # One prompt for every set of programs.
  warm = {}
  for prompt in prompts:
    length = len(target.tokenizer.encode(prompt.text))
    warm.setdefault(slots(target, length, length + max_new_tokens), prompt)
  lines = []
  with (
    path.open('w') as file,
    tqdm.tqdm(
      total=len(methods) * (len(prompts) + len(warm)),
      unit='seq',
      desc='compiling',
      dynamic_ncols=True,
    ) as bar,
  ):
    for prompt in warm.values():
      for method in methods:
        run(method, prompt, 0)
        bar.update()
    bar.set_description('decoding')
    for i, prompt in enumerate(prompts):
      for method in methods:
        found = run(method, prompt, i)
        line = {
          'method': method.name,
          'task': task,
          'prompt': prompt.name,
          'seed': seed + i,
          'temperature': method.temperature,
          'top_p': method.top_p,
          'verifier': method.verifier,
          'draft_len': method.draft_len,
          'tokens': len(found.tokens[0]),
          'rounds': int(found.rounds[0]),
          'drafted_at': found.drafted_at[0].tolist(),
          'accepted_at': found.accepted_at[0].tolist(),
          'prefill_seconds': found.prefill_seconds,
          'decode_seconds': found.decode_seconds,
          'text': found.texts[0],
        }
        file.write(json.dumps(line) + '\n')
        file.flush()
        lines.append(line)
        bar.update()
  return lines
