"""Prompts with an answer: the file goes on with it to the end of a line."""

import re

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
  for kind in ('closing brackets', 'calls'):
    for each in found[kind]:
      path, number = each.name.rsplit(':', 1)
      line = files[path].split('\n')[int(number) - 1]
      assert line and line == each.text.split('\n')[-1] + each.rest


def test_what_is_asked(found, tokenizer):
  assert all(len(prompts) == 6 for prompts in found.values())
  for each in found['closing brackets']:
    assert re.fullmatch(r'[)\]}]{2,}:?', each.rest)
    assert each.text[-1] not in '()[]{}'
  for each in found['calls']:
    assert each.text.endswith('(') and each.rest.endswith(')')
  for each in found['copied lines']:
    old, new = re.search(
      '# The same, (.+) renamed to (.+).\n', each.text
    ).groups()
    original, _ = each.text.split('\n\n# The same')
    assert re.sub(rf'\b{new}\b', old, each.rest) in original
  for prompts in found.values():
    assert len({each.name for each in prompts}) == 6
    for each in prompts:
      assert 80 <= len(tokenizer.encode(each.text)) <= 160


def test_too_short(tokenizer):
  with pytest.raises(
    UserError, match='no such line, the prompt within 1 token'
  ):
    code_answers.calls(tokenizer, 2, 1)
