"""The README's Python is run as it stands, and its test command stays light."""

import pathlib
import re

import shallow

from specsamp import zoo


def test_the_test_command_needs_no_torch():
  """It does not install what only tests of the `parity` extra import."""
  files = list(pathlib.Path('tests').rglob('test_*.py'))
  assert len(files) > 50
  heavy = re.compile(
    r'^ *(import|from) ((safetensors\.)?torch|transformers)\b', re.MULTILINE
  )
  for file in files:
    text = file.read_text(encoding='utf-8')
    if heavy.search(text):
      assert 'pytestmark = foreign.needs_parity' in text, file


def test_python_blocks(capsys, monkeypatch):
  monkeypatch.setattr(zoo, 'load', {'pycode': shallow.pair()}.__getitem__)
  text = pathlib.Path('README.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  assert len(blocks) == 5
  names = {}
  for block in blocks[:2]:
    exec(block, names)  # each goes on where the one before it ended
  assert capsys.readouterr().out
  assert names['out'].num_accepted_per_rank.shape == (1, 4)
  exec(blocks[2], names)
  assert names['out'].num_drafted_per_pos.shape == (1, 4)
  exec(blocks[3], names)
  assert names['out'].num_drafted_per_pos.shape == (1, 8)
  exec(blocks[4], names)
  assert names['target'].mesh.size == 4
  assert names['out'].num_drafted_per_pos.shape == (1, 4)
