"""What an answer is worth beside its reference."""

import ast
import codeop
import functools
import io
import tokenize
import warnings

from specsamp.errors import UserError
from specsamp.evaluation.tasks.task import Question

_LEAST_CODE = 0.5  # of the lines of a body
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
  but its last line could go on to something that parses. Valid code is what has
  no more lines of comments, and of strings that stand alone, than others: words
  about a function are easily valid.

  Args:
    prompt: its reference is the function up to the body, from `def` on.
    answer: the body, and maybe what follows it.
  """
  head = prompt.reference
  # A method stands in a block of its own.
  before = f'if True:\n{head}' if head[:1].isspace() else head
  bodies, begun = _bodies(head, answer)
  whole = next((body for body in bodies if _parses(before + body)), '')
  valid = whole
  if not whole and begun and _parses(before + begun, may_go_on=True):
    valid = begun
  return {
    'valid Python': float(bool(valid)),
    'whole function': float(bool(whole)),
    'valid code': float(bool(valid) and _code(before, valid) >= _LEAST_CODE),
  }


def _code(before: str, body: str) -> float:
  """Of a body's lines that are not blank, the share of those with code.

  Comments have none, nor have statements of a string alone.
  """
  of_code, statement = set(), []

  def ended():
    if any(each.type not in _NO_CODE for each in statement):
      of_code.update(range(statement[0].start[0], statement[-1].end[0] + 1))
    statement.clear()

  text = before + body
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type not in _NO_STATEMENT:
        statement.append(token)
      if token.type == tokenize.NEWLINE:
        ended()
  except (tokenize.TokenError, SyntaxError):  # cut off within a statement
    pass
  ended()
  lines = enumerate(text.split('\n'), start=1)
  rows = {row for row, line in lines if line.strip()}
  rows -= set(range(before.count('\n') + 1))
  return len(rows & of_code) / len(rows)


_NO_CODE = tokenize.STRING, tokenize.NEWLINE, tokenize.ENDMARKER
_NO_STATEMENT = (
  tokenize.COMMENT,
  tokenize.NL,
  tokenize.INDENT,
  tokenize.DEDENT,
)


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
      "task: ROUGE needs the package rouge-score: pip install 'specsamp[eval]'"
    ) from None
  return package.RougeScorer(_KINDS, use_stemmer=True)


def _first_lines(prompt: Question, answer: str) -> str:
  """As many as the reference has: few models end where it ends."""
  count = len(prompt.reference.strip().split('\n'))
  return '\n'.join(answer.strip().split('\n')[:count])
