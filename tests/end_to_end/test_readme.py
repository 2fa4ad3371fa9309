"""The README's Python is run as it stands."""

import pathlib
import re


def test_python_blocks(capsys):
  text = pathlib.Path('README.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  assert len(blocks) == 5
  names = {}
  for block in blocks[:2]:
    exec(block, names)  # each goes on where the one before it ended
  assert capsys.readouterr().out
  assert names['out'].taken_at.shape == (1, 4)
  exec(blocks[2], names)
  assert names['out'].drafted_at.shape == (1, 4)
  exec(blocks[3], names)
  assert names['out'].drafted_at.shape == (1, 8)
  exec(blocks[4], names)
  assert names['target'].mesh.size == 4
  assert names['out'].drafted_at.shape == (1, 4)
