"""What an answer is worth beside its reference."""

import ast
import codeop
import functools
import warnings

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


def valid_python(prompt: Question, answer: str) -> dict[str, float]:
  """Whether Python can read the function that the answer completes.

  It ends before a line that is indented no more than its `def`: a whole
  function, if it parses. An answer without one was cut off: it is valid if all
  but its last line could go on to something that parses.

  Args:
    prompt: its reference is the function up to the body, from `def` on.
    answer: the body, and maybe what follows it.
  """
  head = prompt.reference
  # A method stands in a block of its own.
  block = 'if True:\n' if head[:1].isspace() else ''
  bodies, begun = _bodies(head, answer)
  is_whole = any(_parses(f'{block}{head}{body}') for body in bodies)
  begins_well = bool(begun) and _parses(f'{block}{head}{begun}', True)
  return {
    'valid Python': float(is_whole or begins_well),
    'whole function': float(is_whole),
  }


def _bodies(head: str, answer: str) -> tuple[list[str], str]:
  """The answer up to each line that may end the function; all its whole lines.

  Nothing and '' of an answer that does not begin within the function.
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


def _parses(text: str, may_go_on: bool = False) -> bool:
  """Whether Python can read a text, or one that could follow on from it."""
  flags = ast.PyCF_ONLY_AST
  if may_go_on:
    flags |= codeop.PyCF_ALLOW_INCOMPLETE_INPUT
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # such as of escapes
      compile(text, '', 'exec', flags)
  except SyntaxError as error:
    return may_go_on and 'incomplete input' in str(error)
  except (ValueError, RecursionError, MemoryError):
    return False
  return True


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
