"""Heads of result lines: the label, the seed and the id of an answer."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from specsamp import verification
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation.methods import Json, Method
from specsamp.evaluation.metrics import Head
from specsamp.evaluation.tasks import Question, Task
from specsamp.utils import user_modules


def make(
  method: Method,
  weights: list[Json],
  task: Task,
  prompt: Question,
  sample: int,
  seed: int,
  sizes: Sequence[Json],
) -> Head:
  """Returns the head of a line, whose id is a hash of all that affects it.

  Args:
    method: method that answers.
    weights: fingerprints of the target and of the drafter.
    task: task of the prompt.
    prompt: prompt to answer.
    sample: number of the sample of this prompt, from 0.
    seed: seed of all lines. The seed of this line also depends on the method's
      label and on the names of task, prompt and sample.
    sizes: all other settings that affect an answer, such as token budgets.
  """
  head = method.label.plain() | {
    'task': task.name,
    'prompt': prompt.name,
    'sample': sample,
  }
  # Losslessness tests compare the answers of two methods as independent draws.
  named = json.dumps([seed, head]).encode()
  bits = int.from_bytes(hashlib.sha256(named).digest()[:4], 'big')
  head['seed'] = bits >> 2  # seeds of later turns stay below 2**31
  settings = [
    head,
    weights,
    method.label.tree.parents,
    [prompt.text, *prompt.later],
    sizes,
    task.ends,
    _drafter_settings(method.drafter),
    *_source_digests(method),
  ]
  digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
  return Head(
    **vars(method.label),
    task=task.name,
    prompt=prompt.name,
    sample=sample,
    seed=head['seed'],
    id=digest[:16],
  )


def _source_digests(method: Method) -> list[str]:
  """Returns digests of user-defined parts, whose answers change with them."""
  if method.drafter is None:
    return []
  rule = method.verifier
  rule = verification.make(rule) if isinstance(rule, str) else rule
  digests = map(user_modules.source_digest, (method.drafter, rule))
  return list(filter(None, digests))


def _drafter_settings(drafter: Drafter | None) -> dict[str, Json]:
  """Returns the settings of a drafter other than weights, tree and law."""
  if not dataclasses.is_dataclass(drafter):
    return {}
  settings = {}
  for field in dataclasses.fields(drafter):
    value = getattr(drafter, field.name)
    if isinstance(value, int | str):
      settings[field.name] = value
    elif hasattr(value, 'tree'):  # a drafter that contains another one
      settings[field.name] = _drafter_settings(value)
  return settings
