"""Prompts whose answer is the rest of a line in their file."""

import itertools

import pytest

from specsamp.data import code_answers, corpora


@pytest.fixture(scope='module')
def questions(tokenizer):
  return {
    kind: find(tokenizer, 6, 160) for kind, find in code_answers.KINDS.items()
  }


def test_the_answer_ends_a_line_of_the_file(questions):
  files = corpora.held_out_library()
  for question in itertools.chain(*questions.values()):
    path, number = question.name.rsplit(':', 1)
    lines = files[path].split('\n')
    *before, line = lines[: int(number)]
    shown, rest = question.text.split('\n')[-1], question.reference
    assert rest and line == shown + rest or line.strip() == rest
    above = question.text.removesuffix(shown)
    assert above and '\n'.join([*before, '']).endswith(above)


def test_kinds(questions, tokenizer):
  for answered in questions.values():
    assert len({question.name for question in answered}) == 6
    for question in answered:
      assert 80 <= len(tokenizer.encode(question.text)) <= 160
  for question in questions['ends of calls']:
    assert question.reference == ')' and '(' in question.text.split('\n')[-1]
  for question in questions['heads of blocks']:
    assert question.reference in (':', '):')
  for question in questions['copied lines']:
    *before, shown = [line.strip() for line in question.text.split('\n')]
    assert not shown and question.reference in before
