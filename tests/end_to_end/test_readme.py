"""The README's Python is run as it stands."""

import pathlib
import re


def test_python_blocks(capsys):
  text = pathlib.Path('README.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  assert len(blocks) == 2
  names = {}
  for block in blocks:
    exec(block, names)  # the second goes on where the first ended
  assert capsys.readouterr().out
  assert names['out'].taken_at.shape == (1, 4)
