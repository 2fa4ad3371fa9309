"""Scores of answers in their tasks, and their likelihood under the target."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence

from specsamp.evaluation.likelihood import text_likelihood
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.reporting.run_log import RunLog
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.tasks import Question, Task
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, progress, user_modules


@dataclasses.dataclass(frozen=True)
class Score:
  """Score of a line's answers, and their likelihood: a line of scores.jsonl.

  Attributes:
    id: hash of the text, its reference and its scorer.
    excess_nll, variance, outside, gap: see `TextLikelihood`; the maximum of the
      gaps of all turns, and sums of the others.
    scores: scores of the task by their names; None if it has none.
  """

  id: str
  excess_nll: float
  variance: float
  outside: int
  gap: float
  scores: dict[str, float | str] | None


def score(
  target: LanguageModel,
  tasks: Sequence[Task],
  lines: Sequence[Line],
  settings: Settings,
  path: pathlib.Path,
  allow_code_execution: bool = False,
) -> dict[str, Score]:
  """Scores the lines of `runner.compare`; returns the scores by the line ids.

  Args:
    target: the target.
    tasks: tasks of the lines.
    lines: answers.
    settings: settings that the lines were decoded with.
    path: `RunLog` of the scores. Answers that it has are not scored again.
    allow_code_execution: True if tasks may run answers as programs. Without it
      such answers have no score.
  """
  by_name = {task.name: task for task in tasks}
  prompts = {
    (task.name, prompt.name): prompt
    for task in tasks
    for prompt in task.prompts
  }
  ids = {
    line.id: _id(
      line, prompts[line.task, line.prompt], by_name[line.task].score
    )
    for line in lines
  }
  has_score = {
    task.name: bool(
      task.score and (allow_code_execution or not task.runs_answers)
    )
    for task in tasks
  }
  wanted = {ids[line.id]: has_score[line.task] for line in lines}
  log = RunLog(
    path, Score, lambda score: score.id, lambda score: score.id in wanted
  )
  log.keep(
    id_
    for id_, score in log.records.items()
    if score.scores is not None or not wanted[id_]
  )
  missing = [line for line in lines if ids[line.id] not in log.records]
  known: dict[tuple, Score] = {}  # many greedy texts are equal
  for line in progress.bar('scoring', missing, unit='seq'):
    task, prompt = by_name[line.task], prompts[line.task, line.prompt]
    key = (line.task, line.prompt, line.sampling, str(line.output_tokens))
    if key not in known:
      scores = None
      # The first process of a run executes programs.
      if has_score[line.task] and distributed.is_first():
        scores = task.scored(prompt, line.texts[0])
      likelihood = _likelihood(target, prompt, line, settings)
      known[key] = Score('', **likelihood, scores=scores)
    log.append(dataclasses.replace(known[key], id=ids[line.id]))
  return {id_: log.records[key] for id_, key in ids.items()}


def _id(line: Line, prompt: Question, score: Callable | None) -> str:
  """Returns a hash of a text, its reference and its scorer."""
  scorer = score and [
    score.__module__,
    getattr(score, '__qualname__', type(score).__name__),
    user_modules.source_digest(score),
  ]
  scored = json.dumps([line.id, line.output_tokens, prompt.reference, scorer])
  return hashlib.sha256(scored.encode()).hexdigest()[:16]


def _likelihood(
  target: LanguageModel, prompt: Question, line: Line, settings: Settings
) -> dict[str, float]:
  """Returns the likelihood of all turns of a line."""
  sampling = SamplingParams(
    line.temperature, top_p=line.top_p, top_k=line.top_k
  )
  turns = []
  for turn, output in enumerate(line.output_tokens):
    tokens, _ = settings.conversation(target, prompt, line.texts[:turn])
    turns.append(text_likelihood(target, tokens, output, sampling))
  return dict(
    excess_nll=sum(turn.excess_nll for turn in turns),
    variance=sum(turn.variance for turn in turns),
    outside=sum(turn.outside for turn in turns),
    gap=max(turn.gap for turn in turns),
  )
