"""Launchers with drafters that look up or guess tokens."""

import importlib.util
import json

import pytest
from testing import tiny

from specsamp.errors import UserError
from specsamp.experiments import decode, loading

_CONFIG = 'configs/ngram_code_edit.py'


@pytest.mark.extended
def test_code_edits(launch, folders, tmp_path):
  ended = launch(
    'decode',
    f'--config={_CONFIG}:smoke',
    f'--workdir={tmp_path}/run',
    f'--config.target={folders}/long',
    f'--config.draft={folders}/long',
    '--config.max_prompt_tokens=127',
  )
  assert ended.code == 0, ended.err
  assert ': go on; accepted draft tokens' in ended.out
  assert '| greedy     | ngram ' in (tmp_path / 'run/report.md').read_text()
  runs = json.loads((tmp_path / 'run/summary.json').read_text())['runs']
  assert [(run['method'], run['branching']) for run in runs] == [
    ('autoregressive', ''),
    ('ngram', 'γ=4'),
    ('ngram', '2x1'),
  ]
  for run in runs:
    assert run['tokens'] == 2 * 16 and run['task'] == 'code edits'
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  for line in lines:
    assert line['method'] == 'autoregressive' or sum(
      line['num_drafted_per_pos']
    )
  texts = {(line['prompt'].split()[1], line['texts'][0]) for line in lines}
  assert [kind for kind, _ in sorted(texts)] == ['go', 'rename']


def test_the_full_config_finds_its_prompts():
  """Held-out files of this Python have enough edits."""
  spec = importlib.util.spec_from_file_location('config', _CONFIG)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  values = module.get_config().to_dict()
  job = decode.prepare(values)
  assert len(job.prompts) == values['num_prompts']
  assert [drafter.tree.depth for drafter in job.drafters] == [
    *values['draft_lens'],
    len(values['branching']),
  ]
  with pytest.raises(ValueError, match='smoke'):
    module.get_config('nope')


@pytest.mark.extended
def test_lookahead_completes_a_prompt(launch, folders, tmp_path):
  ended = launch(
    'decode',
    '--config=configs/quickstart.py:smoke',
    '--prompt=x = x = x = x = x =',
    '--config.drafter=lookahead',
    '--speedup',
    '--config.lookup.window=3',
    f'--config.target={folders}/target',
    f'--config.draft={folders}/draft',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 0, ended.err
  assert '--- prompt; accepted draft tokens' in ended.out
  line = json.loads((tmp_path / 'run/metrics.jsonl').read_text())
  assert line['tokens'] == 16 and line['lossless']
  assert line['verifier'] == 'naive' and line['speedup'] > 0


def test_a_datastore_is_a_file_or_a_folder(tmp_path):
  documents = lambda path: loading._documents(str(path), tiny.Letters(26))
  (tmp_path / 'a.txt').write_text('abc')
  assert documents(tmp_path / 'a.txt') == [[0, 1, 2]]
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b' / 'c.md').write_text('ca')
  latin = tmp_path / 'latin.txt'
  latin.write_bytes(b'\xe9')
  assert documents(tmp_path) == [[0, 1, 2], [2, 0]]  # what is no text is not
  with pytest.raises(UserError, match='latin.txt: not UTF-8 text$'):
    documents(latin)
  with pytest.raises(UserError, match='nowhere: No such file or directory$'):
    documents(tmp_path / 'nowhere')


def test_parameters_of_lookups(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('abc')
  target = tiny.model(26, seed=0)
  models = loading.Models(target, lambda: tiny.first_layer(target), {})
  lookup = loading.Lookup(n_max=5, n_min=2, datastore=str(path), window=3)
  drafter = lambda name, law, lookup=lookup: models.drafter(
    name, 3, law, lookup=lookup
  )
  alone = drafter('ngram', 'deterministic')
  for found in (alone, drafter('ngram_or_draft', 'iid').ngram):
    assert (found.n_max, found.n_min) == (5, 2)
    source = found.datastore
    assert [t for t in source.tokens[0] if t >= 0] == [0, 1, 2]
  for length, depth in ((0, 3), (2, 2), (9, 3)):
    both = drafter('ngram_or_draft', 'iid', loading.Lookup(draft_length=length))
    assert (both.ngram.tree.depth, both.model.tree.depth) == (3, depth)
  assert not drafter('ngram', 'deterministic', None).datastore
  assert drafter('lookahead', 'deterministic').window == 3
