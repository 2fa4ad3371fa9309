"""The official client against the server."""

import pathlib
import re

import pytest

pytest.importorskip('openai')


def test_the_example_of_the_documents(served, capsys):
  source = pathlib.Path('docs/serving.md').read_text(encoding='utf-8')
  block = r'```py\n(import openai.*?)```'
  (example,) = re.findall(block, source, flags=re.DOTALL)
  example = example.replace('http://127.0.0.1:8000/', served.url)
  # This model knows letters only.
  example = example.replace("'pycode'", "'tiny'")
  example = example.replace("'def mean(values):\\n'", "'abcd'")
  exec(compile(example, 'docs/serving.md', 'exec'), {})
  assert capsys.readouterr().out.count(' length\n') == 2
