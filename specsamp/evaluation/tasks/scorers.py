"""What an answer is worth beside its reference."""

import functools

from specsamp.errors import UserError
from specsamp.evaluation.tasks.task import Question

_KINDS = ('rouge1', 'rouge2', 'rougeL')


def exact_match(prompt: Question, answer: str) -> dict[str, float]:
  """Whether the answer begins with the reference, line by line."""
  lines = lambda text: [line.strip() for line in text.splitlines()]
  same = lines(_first_lines(prompt, answer)) == lines(prompt.reference.strip())
  return {'exact match': float(same)}


def rouge(prompt: Question, answer: str) -> dict[str, float]:
  """F1 of ROUGE-1, 2 and L of the answer's first lines."""
  text = _first_lines(prompt, answer)
  found = rouge_scorer().score(prompt.reference, text)
  return {
    f'ROUGE-{kind.removeprefix("rouge")}': found[kind].fmeasure
    for kind in _KINDS
  }


# By the names that a file of prompts has for them. It can name no function of a
# user's own: reading data would run code.
SCORERS = {'exact_match': exact_match, 'rouge': rouge}


@functools.cache
def rouge_scorer():
  """Google's ROUGE, with its stemmer.

  Raises:
    UserError: the package rouge-score is not installed.
  """
  try:
    from rouge_score import rouge_scorer as package
  except ImportError:
    raise UserError(
      "tasks: ROUGE needs the package rouge-score: pip install 'specsamp[eval]'"
    ) from None
  return package.RougeScorer(_KINDS, use_stemmer=True)


def _first_lines(prompt: Question, answer: str) -> str:
  """As many as the reference has: few models end where it ends."""
  count = len(prompt.reference.strip().split('\n'))
  return '\n'.join(answer.strip().split('\n')[:count])
