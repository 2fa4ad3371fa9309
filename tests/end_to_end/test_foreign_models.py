"""Launchers on Hugging Face models: decoded, converted, compared."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from testing import foreign, launching

import specsamp
from specsamp.checkpoints import convert, model_dir
from specsamp.checkpoints.huggingface import model as huggingface
from specsamp.errors import UserError
from specsamp.experiments import loading
from specsamp.models import Transformer

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


def test_decode_with_two_folders(launch, models, tmp_path):
  ended = launch(
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


def test_a_draft_never_drafts_tokens_it_lacks(models):
  found = loading.load(f'{models}/target', f'{models}/draft', None)
  draft = found.draft
  assert (draft.config.vocab_size, draft.config.num_tokens) == (53, 50)
  tokens = np.array([[1, 52, 3]])
  out = draft.transformer.apply({'params': draft.params}, tokens)
  assert (np.asarray(out.logits)[..., 50:] == -1e30).all()
  assert (np.asarray(out.logits)[..., :50] > -1e3).all()


def test_drafters_without_a_model_need_no_draft(models):
  """The embedded draft has another tokenizer."""
  found = loading.load(f'{models}/target', '', None)
  assert found.drafter('ngram', 2, 'deterministic').tree.depth == 2
  for name in ('', 'ngram_or_draft'):
    with pytest.raises(UserError, match='^draft: got none, expected'):
      found.drafter(name, 2, 'iid')


def test_a_draft_of_another_tokenizer_is_refused(models, refused, tmp_path):
  line = refused(
    'decode',
    '--config=configs/quickstart.py',
    f'--config.target={models}/target',
    '--prompt=w1',
    f'--workdir={tmp_path}/run',
  )
  assert re.search('must share a tokenizer; .* tokens differ, the first', line)


def test_conversion_there_and_back(launch, models, tmp_path):
  """From transformers to orbax and back."""
  ended = launch(
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


def test_16_bits_stay_16_bits(tmp_path, monkeypatch):
  foreign.save(foreign.model('llama').bfloat16(), tmp_path / 'source')
  convert.convert(tmp_path / 'source', tmp_path / 'orbax')
  monkeypatch.chdir(tmp_path)
  assert specsamp.load('orbax').config.dtype == 'bfloat16'
  assert (
    specsamp.load(tmp_path / 'orbax', dtype='float32').params['embedding'].dtype
    == np.float32
  )
  convert.convert(tmp_path / 'source', tmp_path / 'wide', dtype='float32')
  assert specsamp.load(tmp_path / 'wide').config.dtype == 'float32'


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (('--source=nowhere',), 'model nowhere: no such folder'),
    (('--format=pickle',), '--format'),
    (('--source=configs',), 'config.json: No such file'),
  ],
)
def test_mistakes_of_conversion(refused, models, flags, message, tmp_path):
  flags = (f'--source={models}/target', f'--to={tmp_path}/out', *flags)
  assert message in refused('import_weights', *flags)
  assert not (tmp_path / 'out').exists()


def test_a_damaged_orbax_checkpoint(models, tmp_path):
  convert.convert(models / 'target', tmp_path / 'orbax')
  config = tmp_path / 'orbax/config.json'
  values = json.loads(config.read_text())
  for damage, message in (
    (lambda: values['model'].update(mlp_width=3), '4 of another shape'),
    (lambda: values['model'].update(mlp_width=40), None),
    ((tmp_path / 'orbax/orbax/_METADATA').unlink, 'not an orbax checkpoint'),
  ):
    damage()
    config.write_text(json.dumps(values))
    if message is None:
      specsamp.load(tmp_path / 'orbax')
      continue
    with pytest.raises(UserError, match=message) as error:
      specsamp.load(tmp_path / 'orbax')
    assert '\n' not in str(error.value)


def test_compare(launch, folders, tmp_path):
  ended = launch(
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


def test_ratios():
  compare = launching.load('compare')
  line = lambda who, how, ms: compare.Line(who, how, 0.0, 0, ms / 1e3, [1])
  rows = compare.summarize(
    [
      line('specsamp', 'plain', 2),
      line('specsamp', 'speculative', 1),
      line('transformers', 'plain', 6),
      line('transformers', 'assisted', 5),
      line('transformers', 'assisted, defaults', 4),
    ]
  )
  ratios = [row['ratio'] for row in rows]
  assert ratios == [None, None, *map(pytest.approx, (3, 5, 4))]
  speedups = [row['speedup'] for row in rows]
  assert speedups == pytest.approx([1, 2, 1, 6 / 5, 6 / 4])


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    pytest.param(
      *(dict(draft_len=0), 'draft length'), marks=pytest.mark.parity
    ),
    (dict(temperatures=()), 'temperatures: got .., expected at least one'),
    (dict(temperatures=(-1.0,)), 'temperature: got -1.0'),
    (dict(num_prompts=0), 'num_prompts: got 0'),
    (dict(verifier='token'), 'config: key: .*verifier'),
    pytest.param(
      *(dict(draft='padded'), 'draft: got 500 tokens, expected the 512'),
      marks=pytest.mark.parity,
    ),
  ],
)
def test_mistakes_of_comparison(folders, changes, message, tmp_path):
  if 'draft' in changes:  # one that lacks tokens
    made = specsamp.load(folders / 'draft')
    config = dataclasses.replace(made.config, padding=12)
    made = dataclasses.replace(made, transformer=Transformer(config))
    model_dir.save(made, tmp_path / 'padded')
    changes = dict(draft=f'{tmp_path}/padded')
  values = dict(
    target=f'{folders}/long',
    draft=f'{folders}/draft',
    draft_len=2,
    temperatures=(0.0,),
    prompts='code',
    data='',
    num_prompts=1,
    max_prompt_tokens=96,
    max_new_tokens=2,
    seed=0,
  )
  with pytest.raises(UserError, match=message):
    launching.load('compare').prepare(values | changes)


def test_an_exported_tokenizer(folders, tmp_path):
  """transformers reads the tokenizer that is written with the weights."""
  import transformers

  model = specsamp.load(folders / 'target')
  huggingface.save(model, tmp_path / 'out')
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  text = 'def f(x):\n    return  x\n'
  assert theirs(text)['input_ids'] == model.tokenizer.encode(text)
