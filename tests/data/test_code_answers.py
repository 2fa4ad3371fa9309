"""Prompts with an answer: the file goes on with it to the end of a line."""

import itertools

import pytest

from specsamp.data import code_answers, corpora
from specsamp.errors import UserError


@pytest.fixture(scope='module')
def found(tokenizer):
  return {
    kind: find(tokenizer, 6, 160) for kind, find in code_answers.KINDS.items()
  }


def test_the_answer_ends_a_line_of_the_file(found):
  files = corpora.held_out_library()
  for each in itertools.chain(*found.values()):
    path, number = each.name.rsplit(':', 1)
    lines = files[path].split('\n')
    *before, line = lines[: int(number)]
    shown = each.text.split('\n')[-1]
    assert each.rest and line == shown + each.rest or line.strip() == each.rest
    above = each.text.removesuffix(shown)
    assert above and '\n'.join([*before, '']).endswith(above)


def test_what_is_asked(found, tokenizer):
  for prompts in found.values():
    assert len({each.name for each in prompts}) == 6
    for each in prompts:
      assert 80 <= len(tokenizer.encode(each.text)) <= 160
  for each in found['ends of calls']:
    assert each.rest == ')' and '(' in each.text.split('\n')[-1]
  for each in found['heads of blocks']:
    assert each.rest in (':', '):')
  for each in found['copied lines']:
    *before, shown = [line.strip() for line in each.text.split('\n')]
    assert not shown and each.rest in before


def test_too_short(tokenizer):
  with pytest.raises(
    UserError, match='no such line, the prompt within 1 token'
  ):
    code_answers.ends_of_calls(tokenizer, 2, 1)
