"""Tests of whether texts follow the target's distribution."""

import pathlib
import tempfile
from collections.abc import Sequence

from specsamp import verification
from specsamp.drafting import checks
from specsamp.drafting.drafter import Drafter
from specsamp.evaluation import runner
from specsamp.evaluation.losslessness import permutation_tests, scores
from specsamp.evaluation.losslessness.permutation_tests import Finding
from specsamp.evaluation.methods import BASELINE, Method
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.tasks import Question, Task
from specsamp.language_model import LanguageModel
from specsamp.verification import Verifier


def check(
  target: LanguageModel,
  drafter: Drafter,
  prompts: Sequence[str],
  verifier: str | Verifier | None = None,
  *,
  temperatures: Sequence[float] = (0.0, 1.0),
  samples: int = 4,
  max_new_tokens: int = 32,
  seed: int = 0,
) -> list[Finding]:
  """Tests the texts of a drafter and a verifier against the target's texts.

  A finding's `verdict` is LOSSY with a chance of 1% if the method is lossless.

  Args:
    target: the target.
    drafter: the drafter.
    prompts: texts. The test needs at least 500 tokens of output in all to be
      sensitive.
    verifier: see `specsamp.generate`.
    temperatures: temperatures, with a finding for each.
    samples: samples of each prompt at temperatures above 0.
    max_new_tokens: upper bound on the tokens of each text.
    seed: seed of all draws.
  """
  questions = [Question(f'{i}', prompt) for i, prompt in enumerate(prompts)]
  tasks = [Task('prompts', questions, ends=False)]
  checks.check_parts(drafter)
  rule = verifier or verification.default_name(drafter.law, drafter.tree)
  methods = [
    Method(*method, temperature, 1.0)
    for temperature in temperatures
    for method in ((BASELINE, None, 'token'), ('drafter', drafter, rule))
  ]
  settings = Settings(
    max_prompt_tokens=target.config.max_length - max_new_tokens,
    max_new_tokens=max_new_tokens,
    seed=seed,
    samples=samples,
  )
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    lines = runner.compare(
      target, methods, tasks, settings, path / 'metrics.jsonl'
    )
    scored = scores.score(target, tasks, lines, settings, path / 'scores.jsonl')
  return permutation_tests.examine(lines, scored, target.config.dtype)
