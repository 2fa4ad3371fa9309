"""What an answer is worth beside its reference."""

import ast
import codeop
import contextlib
import functools
import io
import tokenize
import warnings
from collections.abc import Iterator

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
  about a function are easily valid. So is a function that returns a constant:
  what uses a parameter is valid code that reads one of the function's, if it
  has any.

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
  is_code = bool(valid) and _code(before, valid) >= _LEAST_CODE
  return {
    'valid Python': float(bool(valid)),
    'whole function': float(bool(whole)),
    'valid code': float(is_code),
    'uses a parameter': float(is_code and _uses_parameter(before, valid)),
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
  for token in _tokens(text):
    if token.type not in _NO_STATEMENT:
      statement.append(token)
    if token.type == tokenize.NEWLINE:
      ended()
  ended()
  lines = enumerate(text.split('\n'), start=1)
  rows = {row for row, line in lines if line.strip()}
  rows -= set(range(before.count('\n') + 1))
  return len(rows & of_code) / len(rows)


def _uses_parameter(before: str, body: str) -> bool:
  """Whether a body reads a parameter of its function, if that has any.

  By tokens, as one that is cut off has no tree; what an f-string reads is a
  token from Python 3.12 on.
  """
  tokens = list(_tokens(before + body))
  first = before.count('\n') + 1
  is_own = lambda token: token.start[0] >= first
  starts = (each for each in tokens if each.type not in _NO_STATEMENT)
  start = next(filter(is_own, starts), None)
  if start is None:
    return False
  names = _parameters(before, start)
  reads = (
    token.string in names
    and is_own(token)
    # Neither an attribute, nor what is assigned or passed by that name.
    and last.string != '.'
    and after.string != '='
    for last, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
  )
  return not names or any(reads)


def _parameters(before: str, start: tokenize.TokenInfo) -> set[str]:
  """The names of a function's parameters; its body begins at `start`."""
  indent = start.line[: start.start[1]]
  for node in ast.walk(_tree(f'{before}{indent}pass\n')):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      nodes = ast.walk(node.args)
      return {each.arg for each in nodes if isinstance(each, ast.arg)}
  return set()


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
  """Those of a text, up to where it is cut off."""
  with contextlib.suppress(tokenize.TokenError, SyntaxError):
    yield from tokenize.generate_tokens(io.StringIO(text).readline)


_NO_CODE = tokenize.STRING, tokenize.NEWLINE
_NO_STATEMENT = (
  tokenize.COMMENT,
  tokenize.NL,
  tokenize.INDENT,
  tokenize.DEDENT,
  tokenize.ENDMARKER,
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
  try:
    _tree(text, codeop.PyCF_ALLOW_INCOMPLETE_INPUT if may_go_on else 0)
  except SyntaxError as error:
    return may_go_on and 'incomplete input' in str(error)
  except (ValueError, RecursionError, MemoryError):
    return False
  return True


def _tree(text: str, flags: int = 0) -> ast.AST:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # such as of escapes
    return compile(text, '', 'exec', flags | ast.PyCF_ONLY_AST)


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
