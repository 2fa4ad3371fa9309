"""What each text is worth to its task, and how it looks to the target."""

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import tqdm

from specsamp import files
from specsamp.evaluation.losslessness.likelihood import text_likelihood
from specsamp.evaluation.tasks import Task, last, tokens_of
from specsamp.language_model import LanguageModel
from specsamp.sampling.transforms import SamplingParams
from specsamp.sharding import distributed

# Of scores.jsonl; a task's scores have names of their own.
_LINE = {
  'id': str,
  'excess_nll': float,
  'variance': float,
  'outside': int,
  'gap': float,
  'scores': (None, dict),
}


def score(
  target: LanguageModel,
  tasks: Sequence[Task],
  lines: Sequence[dict[str, Any]],
  path: pathlib.Path,
  *,
  max_prompt_tokens: int,
  chat: bool,
  allow_code_execution: bool,
) -> dict[str, dict[str, Any]]:
  """Scores the lines of `runner.compare`.

  Args:
    target: the target.
    tasks: of which they are.
    lines: with `output_tokens` and `texts`.
    path: a JSON line for every score goes here as soon as it is known; what it
      holds is not scored again.
    max_prompt_tokens: as they were decoded with.
    chat: likewise.
    allow_code_execution: whether tasks may run the answers; without it they
      have no score.

  Returns:
    By a line's id: its `scores`, by name, None if its task has none, and
    `excess_nll`, `variance`, `outside` and `gap` as of
    `likelihood.TextLikelihood`, over all turns.
  """
  by_name = {task.name: task for task in tasks}
  prompts = {
    (task.name, prompt.name): prompt
    for task in tasks
    for prompt in task.prompts
  }

  def scores_text(task: Task) -> bool:
    return bool(task.score and (allow_code_execution or not task.runs_answers))

  def identify(line) -> str:
    """Of what is scored: a text, and what it is compared with."""
    reference = prompts[line['task'], line['prompt']].reference
    what = json.dumps([line['id'], line['output_tokens'], reference])
    return hashlib.sha256(what.encode()).hexdigest()[:16]

  ids = {line['id']: identify(line) for line in lines}
  own = set(ids.values())
  read = files.read_lines(
    path,
    lambda line: (
      files.has_shape(line, _LINE)
      and line['id'] in own
      and files.has_shape([*(line['scores'] or {}).values()], [(float, str)])
    ),
    key=lambda line: line['id'],
  )
  distributed.wait('what is scored is read')
  done = {line['id']: line for line in read.kept}
  todo = [
    line
    for line in lines
    if ids[line['id']] not in done
    or done[ids[line['id']]]['scores'] is None
    and scores_text(by_name[line['task']])
  ]
  again = {line['id'] for line in todo}
  kept = [done[ids[line['id']]] for line in lines if line['id'] not in again]
  read.rewrite(kept)
  known: dict[tuple, dict[str, Any]] = {}  # greedy texts are mostly the same
  with distributed.first_opens(path, 'a') as file:
    for line in tqdm.tqdm(
      todo,
      'scoring',
      unit='seq',
      dynamic_ncols=True,
      disable=not distributed.is_first(),
    ):
      task = by_name[line['task']]
      prompt = prompts[task.name, line['prompt']]
      sampling = SamplingParams(line['temperature'], top_p=line['top_p'])
      key = (task.name, prompt.name, line['temperature'], line['top_p'],
             json.dumps(line['output_tokens']))  # fmt: skip
      if key not in known:
        known[key] = _likelihood(
          target, prompt, line, sampling, max_prompt_tokens, chat
        )
        scored = None
        # Of several processes one runs programs.
        if scores_text(task) and distributed.is_first():
          scored = task.score(prompt, line['texts'][0])
        known[key]['scores'] = scored
      found = {'id': ids[line['id']]} | known[key]
      file.write(json.dumps(found) + '\n')
      file.flush()
      kept.append(found)
  by_id = {found['id']: found for found in kept}
  return {line: by_id[own] for line, own in ids.items()}


def _likelihood(target, prompt, line, sampling, most, chat) -> dict[str, Any]:
  """Of all turns of a line."""
  found = []
  for turn, output in enumerate(line['output_tokens']):
    whole = tokens_of(target.tokenizer, prompt, line['texts'][:turn], chat)
    tokens = last(whole, most, target.tokenizer)
    found.append(text_likelihood(target, tokens, output, sampling))
  return {
    'excess_nll': sum(turn.excess_nll for turn in found),
    'variance': sum(turn.variance for turn in found),
    'outside': sum(turn.outside for turn in found),
    'gap': max(turn.gap for turn in found),
  }
