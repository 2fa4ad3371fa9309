"""Prompts that their completion repeats."""

import numpy as np
import pytest

from specsamp.data import code_edits, corpora
from specsamp.errors import UserError

_SOURCE = '''\
def area(width, height=1):
  """The width, in metres."""
  width_mm = 1000 * width  # not that width
  if width > 9: print('width', width, width_mm)
  return scale(width_mm, width=lambda width: width + 1).width * height
'''
_RENAMED = '''\
def area(w, height=1):
  """The width, in metres."""
  width_mm = 1000 * w  # not that width
  if w > 9: print('width', w, width_mm)
  return scale(width_mm, w=lambda w: w + 1).w * height
'''
_AREA = 'm.py: rename width of area'
_LINE = 'table.append((0, 1, 2))\n'


def test_a_function_and_the_beginning_of_its_edit(tokenizer):
  begin = ''.join(_RENAMED.splitlines(keepends=True)[:2])
  begin = begin.replace('(w,', '(new_width,')
  text = f'{_SOURCE}\n\n# The same, width renamed to new_width.\n{begin}'
  size = len(tokenizer.encode(text))
  renames = lambda source, most: code_edits.renames(
    {'m.py': source}, tokenizer, most
  )
  for most in (size, 2 * size - 1):
    assert renames(f'import os\n\n{_SOURCE}', most) == [(_AREA, text, '')]
  for most in (size - 1, 2 * size):  # too long, too short
    assert not renames(_SOURCE, most)


def _random(seed: int, lines: int = 40) -> str:
  words = np.random.default_rng(seed).integers(10**9, size=(lines, 2))
  return ''.join(f'v{a} = {b}\n' for a, b in words)


def test_the_most_repetitive_window(tokenizer):
  files = {
    'random.py': _random(0),
    'half.py': _random(1) + 20 * _LINE + _random(2),
    'all.py': 80 * _LINE,
    'short.py': _LINE,
  }
  windows = code_edits.repetitive(files, tokenizer, 100)
  names = [name.partition(':')[0] for name, *_ in windows]
  assert names == ['all.py', 'half.py', 'random.py']
  for name, (_, text, _) in zip(names, windows, strict=True):
    assert 50 < len(tokenizer.encode(text)) <= 100
    assert text in files[name]
    if name != 'random.py':
      assert set(text.splitlines(keepends=True)) == {_LINE}


def test_both_kinds_are_interleaved(tokenizer, monkeypatch):
  """From six held-out files; the order does not depend on theirs."""
  files = {
    f'lib/m{i}.py': f'N = {i}\n\n{_SOURCE}\n{i * _LINE}{_random(i)}'
    for i in range(60)
    if corpora.is_held_out(f'lib/m{i}.py')
  }
  monkeypatch.setattr(corpora, 'held_out_library', lambda: files)
  edits = code_edits.code_edits(tokenizer, 12, 300)
  assert len(set(edits)) == 12
  for i, (name, text, _) in enumerate(edits):
    path, _, kind = name.partition(': ')
    assert kind == ('rename width of area' if i % 2 else 'go on')
    assert i % 2 or text in files[path]
  assert code_edits.code_edits(tokenizer, 3, 300) == edits[:3]
  backwards = dict(reversed(files.items()))
  monkeypatch.setattr(corpora, 'held_out_library', lambda: backwards)
  assert code_edits.code_edits(tokenizer, 12, 300) == edits
  message = '^prompts: 13 code edits requested, .* 6 and 6 within 300 tokens$'
  with pytest.raises(UserError, match=message):
    code_edits.code_edits(tokenizer, 13, 300)
