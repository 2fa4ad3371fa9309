"""Whether texts follow the target's distribution."""

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
  """Tests the texts of a drafter and a verifier against the target's own.

  A finding's `verdict` is LOSSY with a chance of 1% for a lossless method; its
  other fields tell why.

  Args:
    target: the target.
    drafter: what drafts.
    prompts: texts; 500 tokens of output in all are the fewest that tell much.
    verifier: see `specsamp.generate`.
    temperatures: a finding for each.
    samples: of each prompt, at temperatures above 0.
    max_new_tokens: in each text.
    seed: of all draws.
  """
  texts = [Question(f'{i}', prompt) for i, prompt in enumerate(prompts)]
  tasks = [Task('prompts', texts, ends=False)]
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
