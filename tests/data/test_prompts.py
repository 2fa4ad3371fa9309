"""Prompts end where a function's body begins."""

import io
import re

import pytest

from specsamp.data import prompts
from specsamp.errors import UserError

_SOURCE = '''\
import os
\x0c
def documented(x):
  """Says what it does.

  At length."""
  # A comment.
  y = x
  y += 1
  y += 2
  y += 3
  y += 4
  y += 5
  return y

def short(x):
  return x

def wrapped(f):
  @staticmethod
  @property
  def inner():
    a = 1
    b = 2
    c = 3
    d = 4
    e = 5
    return a + b + c + d + e
  return inner

class A:
  async def method(self):
    self.a = 1
    self.b = 2
    self.c = 3
    self.d = 4
    self.e = 5
    self.f = 6
'''


def test_each_prompt_ends_right_before_a_body(tokenizer):
  # Files that cannot be parsed are skipped.
  files = {'a.py': 'print "2"', 'b.py': 'x = "\0"', 'm.py': _SOURCE}
  found = prompts.functions(files, tokenizer, 4, 1000)
  ends = {p.name: p.text.splitlines()[-1] for p in found}
  assert ends == {
    'm.py:documented': '  # A comment.',
    'm.py:wrapped': 'def wrapped(f):',
    'm.py:inner': '  def inner():',
    'm.py:method': '  async def method(self):',
  }
  for prompt in found:
    assert _SOURCE.startswith(prompt.text)  # all fits: from the beginning
    assert prompt.text.endswith('\n') and prompt.text.endswith(prompt.reference)
  heads = {p.name: p.reference for p in found}
  assert heads['m.py:inner'] == '  def inner():\n'
  assert heads['m.py:documented'].startswith('def documented(x):\n')


def test_prompts_are_as_long_as_the_budget_allows(tokenizer, sources):
  found = prompts.functions(sources, tokenizer, 20, 60)
  assert len(found) == 20
  for name, text, _ in found:
    assert len(tokenizer.encode(text)) <= 60
    source = sources[name.partition(':')[0]]
    # The text may occur twice in its file. At one place it begins a line, and
    # one line more would not fit.
    places = [m.start() for m in re.finditer(re.escape(text), source)]
    starts = [i for i in places if i == 0 or source[i - 1] == '\n']
    longer = [
      source[source.rfind('\n', 0, max(i - 1, 0)) + 1 : i] + text
      for i in starts
    ]
    assert max(len(tokenizer.encode(text)) for text in longer) > 60


def test_files_are_interleaved_in_a_fixed_order(tokenizer, monkeypatch):
  files = {f'{n}.py': _SOURCE for n in 'abcdef'}
  found = prompts.functions(files, tokenizer, 12, 1000)
  first, second = (
    [p.name.partition(':')[0] for p in half] for half in (found[:6], found[6:])
  )
  assert first == second and sorted(first) == sorted(files)
  assert first != sorted(files)  # not the alphabet's first alone
  backwards = dict(reversed(files.items()))
  assert prompts.functions(backwards, tokenizer, 12, 1000) == found
  # Only the needed files are parsed.
  parsed, heads = [], prompts._heads
  monkeypatch.setattr(
    prompts, '_heads', lambda source: parsed.append(source) or heads(source)
  )
  assert prompts.functions(files, tokenizer, 2, 1000) == found[:2]
  assert len(parsed) == 2


def test_too_few(tokenizer):
  message = 'prompts: 5 requested, .* 4 functions that begin within 999 tok'
  with pytest.raises(UserError, match=message):
    prompts.functions({'m.py': _SOURCE}, tokenizer, 5, 999)


def test_read(tmp_path, monkeypatch):
  path = tmp_path / 'p.txt'
  path.write_text('  one \n\n \ntwo é\n', encoding='utf-8')
  found = prompts.read(str(path))
  assert [p.text for p in found] == ['  one ', 'two é']
  assert len({p.name for p in found}) == 2
  monkeypatch.setattr('sys.stdin', io.StringIO('def f():\n  x\n'))
  assert [p.text for p in prompts.read('-')] == ['def f():\n  x\n']
