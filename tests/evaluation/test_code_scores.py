"""Scores of completed functions: whether Python can parse them."""

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
    ('    x = """\nno\n"""\n  y\n', True, True),  # a string does not end it
    ('    x = (1,\n     2, "ab', True, False),  # the budget cut it
    ('    if x:\n', True, False),
    ('    if x\n    y', False, False),
    ('    x = a b\n    y\n', False, False),
    ('   x = 1\n', False, False),  # another indentation
    ('  x = 1\n  y = 2\n', False, False),  # outside of the function
    ('    x = "\\d"\n  y\n', True, True),  # no warning of an escape
    ('    x = "\0"\n  y\n', False, False),
    ('', False, False),
    ('    ret', False, False),
  ],
)
def test_valid_python(answer, valid, whole):
  prompt = Question('p', 'prompt', reference=_METHOD)
  scores = scorers.valid_python(prompt, answer)
  assert scores == {'valid Python': valid, 'whole function': whole}


@pytest.mark.parametrize('name', ['code', 'training_code'])
def test_functions_of_the_library_are_valid(tokenizer, name):
  (task,) = tasks.load(name, tokenizer, 24, 96)
  sources = corpora.python_library()
  for prompt in task.prompts:
    path, _, _ = prompt.name.partition(':')
    assert corpora.is_held_out(path) == (name == 'code')
    answer = sources[path].partition(prompt.reference)[2] + 'end'
    assert set(task.scored(prompt, answer).values()) == {1}, prompt.name
    assert task.scored(prompt, answer[:200])['valid Python'] == 1, prompt.name
