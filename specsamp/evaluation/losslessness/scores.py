"""What each text is worth to its task, and how it looks to the target."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence

from absl import logging

from specsamp.evaluation.losslessness.likelihood import (
  TextLikelihood,
  text_likelihood,
)
from specsamp.evaluation.metrics import Line
from specsamp.evaluation.runner import Settings
from specsamp.evaluation.tasks import Question, Task
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.utils import distributed, files, progress, user_modules


@dataclasses.dataclass(frozen=True)
class Score:
  """Of a line's answers: a line of scores.jsonl.

  Attributes:
    likelihood: over all turns.
    scores: of the task, by name; None if it has none.
  """

  likelihood: TextLikelihood
  scores: dict[str, float | str] | None


# A line of the file; a task's scores have names of their own.
_LINE = {
  'id': str,
  'excess_nll': float,
  'variance': float,
  'outside': int,
  'gap': float,
  'scores': (None, dict),
}


def warn_of_unscored(tasks: Sequence[Task], allow_code_execution: bool) -> None:
  """Warns of tasks whose answers would have to be run, before all else."""
  for task in tasks:
    if task.runs_answers and not allow_code_execution:
      logging.warning(
        '%s: answers will have no score; --allow_code_execution runs them, '
        'confined',
        task.name,
      )


def score(
  target: LanguageModel,
  tasks: Sequence[Task],
  lines: Sequence[Line],
  settings: Settings,
  path: pathlib.Path,
  allow_code_execution: bool = False,
) -> dict[str, Score]:
  """Scores the lines of `runner.compare`; returns a score by a line's id.

  Args:
    target: the target.
    tasks: of which they are.
    lines: answers.
    settings: as they were decoded with.
    path: a JSON line for every score goes here as soon as it is known; what it
      holds is not scored again.
    allow_code_execution: whether tasks may run the answers; without it they
      have no score.
  """
  by_name = {task.name: task for task in tasks}
  prompts = {
    (task.name, prompt.name): prompt
    for task in tasks
    for prompt in task.prompts
  }
  prompt_of = lambda line: prompts[line.task, line.prompt]
  scores_text = lambda task: bool(
    task.score and (allow_code_execution or not task.runs_answers)
  )
  ids = {
    line.id: _identify(line, prompt_of(line), by_name[line.task].score)
    for line in lines
  }
  own = set(ids.values())
  read = files.read_lines(
    path, lambda line: _is_own(line, own), key=lambda line: line['id']
  )
  distributed.wait('what is scored is read')
  known = {line['id']: _score(line) for line in read.kept}
  is_done = lambda line: (
    ids[line.id] in known
    and (
      known[ids[line.id]].scores is not None
      or not scores_text(by_name[line.task])
    )
  )
  todo = [line for line in lines if not is_done(line)]
  kept = [ids[line.id] for line in lines if is_done(line)]
  read.rewrite([_plain(id_, known[id_]) for id_ in kept])
  same: dict[tuple, Score] = {}  # greedy texts are mostly the same
  with distributed.first_opens(path, 'a') as file:
    for line in progress.bar('scoring', todo, unit='seq'):
      task, prompt = by_name[line.task], prompt_of(line)
      key = (line.task, line.prompt, line.sampling, str(line.output_tokens))
      if key not in same:
        likelihood, scored = _likelihood(target, prompt, line, settings), None
        # Of several processes one runs programs.
        if scores_text(task) and distributed.is_first():
          scored = task.scored(prompt, line.texts[0])
        same[key] = Score(likelihood, scored)
      known[ids[line.id]] = same[key]
      file.write(json.dumps(_plain(ids[line.id], same[key])) + '\n')
      file.flush()
  return {id_: known[own] for id_, own in ids.items()}


def _identify(line: Line, prompt: Question, score) -> str:
  """Of what is scored: a text, what it is compared with, and by what."""
  scorer = score and [
    score.__module__,
    getattr(score, '__qualname__', type(score).__name__),
    user_modules.source_digest(score),
  ]
  what = json.dumps([line.id, line.output_tokens, prompt.reference, scorer])
  return hashlib.sha256(what.encode()).hexdigest()[:16]


def _is_own(line, own: set[str]) -> bool:
  return (
    files.has_shape(line, _LINE)
    and line['id'] in own
    and files.has_shape([*(line['scores'] or {}).values()], [(float, str)])
  )


def _score(line) -> Score:
  fields = {name: line[name] for name in TextLikelihood._fields}
  return Score(TextLikelihood(**fields), line['scores'])


def _plain(id_: str, score: Score):
  return {'id': id_, **score.likelihood._asdict(), 'scores': score.scores}


def _likelihood(
  target: LanguageModel, prompt: Question, line: Line, settings: Settings
) -> TextLikelihood:
  """Of all turns of a line."""
  sampling = SamplingParams(
    line.temperature, top_p=line.top_p, top_k=line.top_k
  )
  found = []
  for turn, output in enumerate(line.output_tokens):
    tokens, _ = settings.conversation(target, prompt, line.texts[:turn])
    found.append(text_likelihood(target, tokens, output, sampling))
  return TextLikelihood(
    excess_nll=sum(turn.excess_nll for turn in found),
    variance=sum(turn.variance for turn in found),
    outside=sum(turn.outside for turn in found),
    gap=max(turn.gap for turn in found),
  )
