"""Launchers run as a user runs them, without paying for an import each time."""

import dataclasses
import pathlib
import re
import sys

import jax
import numpy as np
import pytest
from testing import foreign, tiny
from testing.launching import Ended, run_here, start

from specsamp.checkpoints import model_dir
from specsamp.data import tokenizers
from specsamp.language_model import LanguageModel


@pytest.fixture
def launch(server, tmp_path):
  """launch('decode', '--flag=...', ...) -> Ended."""

  def launch(
    name: str, *flags: str, timeout: float = 240, variables=None
  ) -> Ended:
    started = start(server, tmp_path, name, *flags, variables=variables)
    return started.join(timeout)

  return launch


@pytest.fixture
def refused():
  """Returns refused(name, *flags), which runs a launcher with a mistake.

  It checks that the launcher ends with one line and code 2, and returns the
  line. The launcher runs in this process.
  """

  def refused(name: str, *flags: str) -> str:
    ended = run_here(name, *flags)
    assert ended.code == 2, ended
    assert ended.out == ''
    assert re.fullmatch(rf'{name}\.py: [^\n]+\n', ended.err), ended.err
    return ended.err

  return refused


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Makes the classes and functions of docs/extending.md the module `parts`."""
  text = pathlib.Path('docs/extending.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  kept = [b for b in blocks if re.search('^(class|def) ', b, re.MULTILINE)]
  assert len(kept) == 3
  (tmp_path / 'parts').mkdir()
  (tmp_path / 'parts/parts.py').write_text('\n\n'.join(kept))
  monkeypatch.syspath_prepend(tmp_path / 'parts')
  yield
  sys.modules.pop('parts', None)


@pytest.fixture(scope='session')
def folders(tmp_path_factory, sources, tokenizer):
  """Saved models: a pair, a longer target, and some that do not fit."""
  root = tmp_path_factory.mktemp('models')
  other = tokenizers.train(sources.values(), 400)
  # Same size, other pieces: only the tokenizers differ.
  turned = tokenizers.train([t[::-1] for t in sources.values()], 512)
  for name, tokens in (
    ('target', tokenizer),
    ('draft', tokenizer),
    ('small', other),
    ('turned', turned),
    ('words', tokenizer),
  ):
    made = tiny.model(tokens.vocab_size, seed=0, mlp_width=20)
    made = LanguageModel(made.transformer, made.params, tokens)
    model_dir.save(made, root / name)
  foreign.save_tokenizer(root / 'words', 512)  # shares no piece
  long = tiny.model(512, seed=0, max_length=1024)  # more positions than tokens
  long = LanguageModel(long.transformer, long.params, tokenizer)
  model_dir.save(long, root / 'long')
  whole = (root / 'target' / model_dir.WEIGHTS).read_bytes()
  model_dir.save(made, root / 'cut')
  (root / 'cut' / model_dir.WEIGHTS).write_bytes(whole[: len(whole) // 2])
  target = model_dir.load(root / 'target')
  params = jax.tree.map(lambda x: x * np.nan, target.params)
  model_dir.save(dataclasses.replace(target, params=params), root / 'nan')
  (root / 'raises.py').write_text("raise RuntimeError('of two\\nlines')")
  (root / 'dict.py').write_text('def get_config():\n  return {}\n')
  (root / 'key.py').write_text(
    'import ml_collections\n'
    'get_config = lambda: ml_collections.ConfigDict(dict(nope=1))\n'
  )
  return root
