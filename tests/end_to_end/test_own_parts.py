"""User-defined parts of docs/extending.md, by their names in configs."""

import importlib.util
import json
import pathlib
import re
import sys

import pytest

from specsamp.experiments import compare, decode, terminal
from specsamp.utils import user_modules

_ROOT = pathlib.Path.cwd()


def _values(path, folders, **values):
  spec = importlib.util.spec_from_file_location('config', _ROOT / path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  own = dict(
    target=f'{folders}/target',
    draft=f'{folders}/draft',
    max_prompt_tokens=40,
    max_new_tokens=8,
    num_prompts=2,
  )
  return module.get_config('smoke').to_dict() | own | values


@pytest.fixture
def here(tmp_path, monkeypatch):
  """Returns the current folder, with parts.py of the document and prompts."""
  text = (_ROOT / 'docs/extending.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
  kept = [b for b in blocks if re.search('^(class|def) ', b, re.MULTILINE)]
  assert len(kept) == 3
  (tmp_path / 'parts.py').write_text('\n\n'.join(kept))
  line = {'prompt': '1 + 1 =', 'reference': '2', 'id': 'one'}
  (tmp_path / 'own.jsonl').write_text(json.dumps(line))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  yield tmp_path
  sys.modules.pop('parts', None)


def test_decode(folders, here, capsys):
  values = _values(
    'configs/quickstart.py',
    folders,
    drafter='parts:own_words',
    verifier='parts:FirstToken',
    prompts='parts:sums',
    draft_lens=(2,),
    temperatures=(1.0,),
  )
  decode.prepare(values).run(here)
  assert '# 0 + 0 =' in capsys.readouterr().out
  runs = json.loads((here / 'summary.json').read_text())['runs']
  assert [(r['method'], r['verifier'], r['draft_len']) for r in runs] == [
    ('autoregressive', '', 0),
    ('parts:own_words', 'parts:FirstToken', 2),
  ]
  # The rule accepts the first token at most.
  assert runs[1]['task'] == 'sums' and runs[1]['tokens'] == 2 * 8
  assert runs[1]['acceptance_by_position'][1] == 0


def test_evaluate(folders, here, capsys, monkeypatch):
  method = dict(
    name='own words',
    branching=(1, 1),
    temperature=1.0,
    drafter='parts:own_words',
    verifier='parts:FirstToken',
    law='iid',
  )
  values = _values(
    'configs/papers/mcsd/figure4.py',
    folders,
    methods=(method,),
    tasks=('parts:sums', 'own.jsonl'),
    plot='by_method',
  )
  job = compare.prepare(values)
  assert capsys.readouterr().out == (
    'own: 1 of the 2 requested prompts, all that fit\n'
  )
  job.run(here)
  scores = {
    name
    for row in (here / 'scores.jsonl').read_text().splitlines()
    for name in json.loads(row)['scores']
  }
  assert scores == {'right', 'exact match'}

  # If a part has changed, only its lines are decoded again.
  of_lines = lambda: {
    (line['method'], line['prompt']): (line['id'], line['decode_seconds'])
    for line in map(
      json.loads, (here / 'metrics.jsonl').read_text().splitlines()
    )
  }
  before = of_lines()
  monkeypatch.setattr(user_modules, '_digest_of', lambda module: 'changed')
  compare.prepare(values).run(here)
  after = of_lines()
  assert before.keys() == after.keys()
  assert {key[0] for key in after if after[key] == before[key]} == {
    'autoregressive'
  }
  assert {key[0] for key in after if after[key] != before[key]} == {'own words'}


def test_what_is_shown_is_sampled_before_a_comparison(
  folders, tmp_path, monkeypatch
):
  """At the last temperature; a user's own prompt is completed at the first."""
  shown = []
  monkeypatch.setattr(
    terminal,
    'show',
    lambda *_, sampling, **__: shown.append(sampling.temperature) or {},
  )
  monkeypatch.setattr(decode.Decoding, '_compare', lambda *_: None)
  values = _values('configs/quickstart.py', folders, temperatures=(0.0, 0.7))
  for prompt in (None, 'def mean(values):\n'):
    decode.prepare(values, prompt).run(tmp_path)
  assert shown == [0.7, 0.0]
