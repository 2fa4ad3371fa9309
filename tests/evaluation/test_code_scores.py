"""Whether a completed function is valid Python, code, and to do with it."""

from unittest import mock

import pytest

from specsamp.data import corpora
from specsamp.evaluation import tasks
from specsamp.evaluation.tasks import scorers
from specsamp.evaluation.tasks.task import Question

_METHOD = '  def f(self):\n    """Doc."""\n'


@pytest.mark.parametrize(
  'answer, valid, whole',
  [
    ('    return 1\n\n  def g(self):\n    x = ((\n', True, True),
    ('    return (1\n\n  def g(self):\n    x\n', False, False),
    ('    x = """\nno\n"""\n  y\n', True, True),  # a text does not end it
    ('    x = (1,\n     2, "ab', True, False),  # cut off
    ('    if x:\n', True, False),
    ('    if x\n    y', False, False),
    ('    x = a b\n    y\n', False, False),
    ('   x = 1\n', False, False),  # no indentation of its own
    ('  x = 1\n  y = 2\n', False, False),  # nothing of the function
    ('    x = "\\d"\n  y\n', True, True),  # no warning of an escape
    ('    x = "\0"\n  y\n', False, False),
    ('', False, False),
    ('    ret', False, False),
  ],
)
def test_whether_a_function_is_python(answer, valid, whole):
  prompt = Question('p', 'cut off', reference=_METHOD)
  scores = scorers.valid_python(prompt, answer)
  assert scores == {
    'valid Python': valid,
    'whole function': whole,
    'valid code': valid,
    'uses a parameter': 0,
  }


@pytest.mark.parametrize(
  'answer, code',
  [
    ('    # A word.\n    x = 1  # A word.\n\n    y\n', 2 / 3),
    ('    """More.\n\n    of it"""\n    "" ""\n    return ""\n', 1 / 4),
    ('    x = """\n\n# text"""\n  # A word.\n', 1),
    ('    f(x,  # A word.\n      # Another.\n      y)\n', 1),
    ('    # A word.\n    # Another.\n', 0),
    ('    """Cut off\n    x = 1\n', 0),
    ('    x = 1\n    """Cut off\n    x = 1\n', 1 / 3),
    ('    # A word.\n    x = [1,\n', 1 / 2),
    ('    # A word.\n    x = """Cut off\n', 1 / 2),
    ('    x = 1\n  y = 2\n  # A word.\n', 1),  # of the function alone
  ],
)
@pytest.mark.parametrize('head', [_METHOD, 'def f(\n  x\n):\n'])
def test_what_of_a_function_is_code(head, answer, code):
  prompt = Question('p', 'cut off', reference=head)
  if not head[0].isspace():
    answer = answer.replace('\n  y', '\ny').replace('\n  #', '\n#')
  for least in (0.5, code, code + 1e-6):
    with mock.patch.object(scorers, '_LEAST_CODE', least):
      scores = scorers.valid_python(prompt, answer)
    assert (scores['valid Python'], scores['valid code']) == (1, code >= least)
  assert scorers._LEAST_CODE == 0.5


@pytest.mark.parametrize(
  'parameters, body, uses',
  [
    ('self, x', 'return x', 1),
    ('self, x', 'return self.y', 1),
    ('x: y = z', 'return y + z', 0),
    ('x, /, y, *, z', 'return z', 1),
    ('*x, **y', 'return y', 1),
    ('x', 'return True', 0),
    ('x', 'return y.x', 0),
    ('x', 'return f(x=1)', 0),
    ('x', 'x = 1', 0),
    ('x', 'if x == 1:', 1),
    ('x', '# x', 0),
    ('x', 'return """x"""', 0),
    ('x', 'y = [\n      x,', 1),  # cut off
    ('', 'return True', 1),  # there is none to use
  ],
)
@pytest.mark.parametrize('docstring', ['', '    """x \\d"""\n'])
@pytest.mark.parametrize('start', ['def', '  async def'])
def test_what_uses_a_parameter(start, docstring, parameters, body, uses):
  head = f'{start} f(\n{parameters}\n) -> x:\n{docstring}'
  prompt = Question('p', 'cut off', reference=head)
  comment = '     # x\n'
  words = comment * (body.count('\n') + 2)  # more of them than code
  for start, expected in (('', uses), (comment, uses), (words, 0)):
    scores = scorers.valid_python(prompt, f'{start}    {body}\n    more')
    assert scores['valid Python'] == 1
    assert scores['uses a parameter'] == expected


@pytest.mark.parametrize('name', ['code', 'training_code'])
def test_functions_as_they_were_written_are_python(tokenizer, name):
  """Every one that the task asks for, whole and cut off."""
  (task,) = tasks.load(name, tokenizer, 24, 96)
  sources, code, uses = corpora.python_library(), [], []
  for prompt in task.prompts:
    path, _, _ = prompt.name.partition(':')
    assert corpora.is_held_out(path) == (name == 'code')
    source = sources[path]
    answer = source.partition(prompt.reference)[2] + 'end'
    scores = task.scored(prompt, answer)
    code.append(scores.pop('valid code'))
    uses.append(scores.pop('uses a parameter'))
    assert set(scores.values()) == {1}, prompt.name
    assert task.scored(prompt, answer[:200])['valid Python'] == 1, prompt.name
  assert sum(code) >= 20  # few have more comments than code
  assert sum(code) >= sum(uses) >= 20
