"""Launchers on Hugging Face models: decoded, converted, compared."""

import json
import re

import jax
import numpy as np
import pytest
from testing import foreign, launching

import specsamp
from specsamp.checkpoints import convert
from specsamp.errors import UserError
from specsamp.experiments import loading

pytestmark = [pytest.mark.extended, pytest.mark.parity]


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A target and a draft that lacks its last three tokens."""
  root = tmp_path_factory.mktemp('foreign')
  for name, pieces, family in (('target', 53, 'qwen3'), ('draft', 50, 'llama')):
    (root / name).mkdir()
    made = foreign.model(family, vocab_size=pieces)
    foreign.save(made, root / name, pieces)
  return root


def test_decode_with_two_folders(models, tmp_path):
  ended = launching.run_here(
    'decode',
    '--config=configs/quickstart.py',
    f'--config.target={models}/target',
    f'--config.draft={models}/draft',
    '--config.temperatures=(0.0,)',
    '--config.max_new_tokens=20',
    '--prompt=w1 w2 w52 w3',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended.err
  line = json.loads((tmp_path / 'run/metrics.jsonl').read_text())
  alone = specsamp.generate(
    specsamp.load(models / 'target'),
    'w1 w2 w52 w3',
    sampling=specsamp.SamplingParams(temperature=0.0),
    max_new_tokens=20,
  )
  assert line['text'] == alone.texts[0]
  assert line['tokens'] == 20


def test_drafters_without_a_model_need_no_draft(models):
  """The embedded draft has another tokenizer."""
  found = loading.load(f'{models}/target', '', None)
  assert found.drafter('ngram', 2, 'deterministic').tree.depth == 2
  for name in ('', 'ngram_or_draft'):
    with pytest.raises(UserError, match='^draft: got none, expected'):
      found.drafter(name, 2, 'iid')


def test_conversion_there_and_back(models, tmp_path):
  """From transformers to orbax and back."""
  ended = launching.run_here(
    'import_weights', f'--source={models}/target', f'--to={tmp_path}/orbax'
  )
  assert ended.code == 0, ended.err
  assert re.search(r'parameters, 0\.00 GiB in float32: read in', ended.out)
  convert.convert(tmp_path / 'orbax', tmp_path / 'out', 'huggingface')
  first, *others = (
    specsamp.load(folder)
    for folder in (models / 'target', tmp_path / 'orbax', tmp_path / 'out')
  )
  for other in others:
    assert other.config == first.config
    assert other.tokenizer.pieces() == first.tokenizer.pieces()
    jax.tree.map(np.testing.assert_array_equal, other.params, first.params)


def test_compare(folders, tmp_path):
  ended = launching.run_here(
    'compare',
    '--config.num_prompts=1',
    '--config.max_new_tokens=8',
    f'--config.target={folders}/long',
    f'--config.draft={folders}/draft',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended.err
  assert 'emitted the same greedy text after 1 of 1 prompts.' in ended.out
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert [
    (run['temperature'], run['package'], run['method'].split(',')[0])
    for run in summary['runs']
  ] == [
    *((0.0, 'specsamp', name) for name in ('plain', 'speculative')),
    *((1.0, 'specsamp', name) for name in ('plain', 'speculative')),
    *((0.0, 'transformers', n) for n in ('plain', 'assisted', 'assisted')),
    *((1.0, 'transformers', n) for n in ('plain', 'assisted', 'assisted')),
  ]
  assert all(run['tokens'] == 8 for run in summary['runs'])
  assert 'torch' in summary['versions']
  assert '| greedy' in (tmp_path / 'run/report.md').read_text()
  again = specsamp.load(tmp_path / 'run/target')
  assert again.fingerprint == specsamp.load(folders / 'long').fingerprint
