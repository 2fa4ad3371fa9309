"""The README's Python is run as it stands."""

import pathlib
import re


def test_python_blocks(capsys):
  text = pathlib.Path('README.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  assert len(blocks) == 3
  names = {}
  for block in blocks[:2]:
    exec(block, names)  # the second goes on where the first ended
  assert capsys.readouterr().out
  assert names['out'].taken_at.shape == (1, 4)
  # The draft's four heads don't divide into the eight devices of the tests.
  exec(
    blocks[2].replace('jax.device_count()', '4, devices=jax.devices()[:4]'),
    names,
  )
  assert names['out'].drafted_at.shape == (1, 4)
