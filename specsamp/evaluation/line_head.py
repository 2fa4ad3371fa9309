"""What is known of a line of results before it is decoded."""

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


def of(
  method: Method,
  weights: list[Json],
  task: Task,
  prompt: Question,
  sample: int,
  seed: int,
  sizes: Sequence[Json],
) -> Head:
  """What is known of a line before it is decoded, and an id of all that.

  Args:
    method: that answers.
    weights: fingerprints of the target and of the drafter.
    task: of which the prompt is.
    prompt: to be answered.
    sample: which of the prompt's answers, from 0.
    seed: of all lines; a line's own is made of it, of the method's label and
      of the names of task, prompt and sample.
    sizes: all else that an answer depends on, such as budgets in tokens.
  """
  head = method.label.plain() | {
    'task': task.name,
    'prompt': prompt.name,
    'sample': sample,
  }
  # Texts of two methods are compared as independent draws.
  named = json.dumps([seed, head]).encode()
  bits = int.from_bytes(hashlib.sha256(named).digest()[:4], 'big')
  head['seed'] = bits >> 2  # and a turn more is below 2**31 too
  turns = [prompt.text, *prompt.later]
  parents = method.label.tree.parents
  all_of_it = [head, weights, parents, turns, sizes, task.ends]
  all_of_it.append(_drafter_settings(method.drafter))
  all_of_it += _sources(method)
  digest = hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()
  return Head(
    **vars(method.label),
    task=task.name,
    prompt=prompt.name,
    sample=sample,
    seed=head['seed'],
    id=digest[:16],
  )


def _sources(method: Method) -> list[str]:
  """Of parts of a user's own, whose lines are others' when they change."""
  rule = method.verifier
  if isinstance(rule, str):
    rule = verification.make(rule)
  parts = (method.drafter, rule) if method.drafter is not None else ()
  return [
    digest for part in parts if (digest := user_modules.source_digest(part))
  ]


def _drafter_settings(drafter: Drafter | None) -> dict[str, Json]:
  """A drafter's settings beside its weights, its shape and its law."""
  if not dataclasses.is_dataclass(drafter):
    return {}
  found = {}
  for field in dataclasses.fields(drafter):
    value = getattr(drafter, field.name)
    if isinstance(value, int | str):
      found[field.name] = value
    elif hasattr(value, 'tree'):  # a drafter of which it is made
      found[field.name] = _drafter_settings(value)
  return found
