"""Scores of an answer against its reference."""

import ast
import codeop
import functools
import warnings

from specsamp.errors import UserError
from specsamp.evaluation.tasks.task import Question

_KINDS = ('rouge1', 'rouge2', 'rougeL')


def exact_match(prompt: Question, answer: str) -> dict[str, float]:
  """Returns 1 if the answer begins with the lines of the reference, else 0."""
  lines = lambda text: [line.strip() for line in text.splitlines()]
  same = lines(_first_lines(prompt, answer)) == lines(prompt.reference.strip())
  return {'exact match': float(same)}


def rouge(prompt: Question, answer: str) -> dict[str, float]:
  """Returns F1 of ROUGE-1, 2 and L of the answer's first lines."""
  text = _first_lines(prompt, answer)
  scores = rouge_scorer().score(prompt.reference, text)
  return {
    f'ROUGE-{kind.removeprefix("rouge")}': scores[kind].fmeasure
    for kind in _KINDS
  }


def _first_lines(prompt: Question, answer: str) -> str:
  """Returns the first lines of an answer, up to the reference's number."""
  count = len(prompt.reference.strip().split('\n'))
  return '\n'.join(answer.strip().split('\n')[:count])


def valid_python(prompt: Question, answer: str) -> dict[str, float]:
  """Returns 1 if the answer completes a function that Python can parse, else 0.

  The reference is the function from `def` to the body, which the answer is.
  The function ends before a line that is indented no more than its `def`: it is
  a whole function if it parses up to there. Without such a line the
  budget cut the answer: it is valid if its whole lines can be completed.
  """
  head = prompt.reference
  # A method is in an indented block.
  before = f'if True:\n{head}' if head[:1].isspace() else head
  bodies, lines = _bodies(head, answer)
  is_whole = any(_parses(before + body) for body in bodies)
  is_valid = is_whole or bool(lines) and _parses(before + lines, is_cut=True)
  return {'valid Python': float(is_valid), 'whole function': float(is_whole)}


def _bodies(head: str, answer: str) -> tuple[list[str], str]:
  """Returns the answer up to each possible end, and all its whole lines.

  Returns [] and '' if the answer does not begin within the function.
  """
  indent = lambda line: len(line) - len(line.lstrip())
  bodies, body = [], ''
  for line in answer.split('\n'):
    if line.strip() and indent(line) <= indent(head):
      bodies.append(body)
    body += f'{line}\n'
  whole, _, _ = answer.rpartition('\n')
  if not whole.strip() or '' in map(str.strip, bodies):
    return [], ''
  return bodies, f'{whole}\n'


def _parses(text: str, is_cut: bool = False) -> bool:
  """Returns True if Python can parse a text; a cut text may be completed."""
  flags = codeop.PyCF_ALLOW_INCOMPLETE_INPUT if is_cut else 0
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # such as invalid escapes
      compile(text, '', 'exec', flags | ast.PyCF_ONLY_AST)
  except SyntaxError as error:
    return is_cut and 'incomplete input' in str(error)
  except (ValueError, RecursionError, MemoryError):
    return False
  return True


# The scorers that a file of prompts can name. User-defined functions are not
# allowed: reading data would run code.
SCORERS = {'exact_match': exact_match, 'rouge': rouge}


@functools.cache
def rouge_scorer():
  """Returns Google's ROUGE scorer with its stemmer.

  Raises:
    UserError: the package rouge-score is not installed.
  """
  try:
    from rouge_score import rouge_scorer as package
  except ImportError:
    raise UserError(
      "task: ROUGE needs the package rouge-score: pip install 'specsamp[eval]'"
    ) from None
  return package.RougeScorer(_KINDS, use_stemmer=True)
