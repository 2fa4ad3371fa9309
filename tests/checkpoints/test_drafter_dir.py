"""Trained drafters as folders: saved, read again, refused if damaged."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from testing import tiny

from specsamp.checkpoints import drafter_dir, model_dir, weights
from specsamp.drafting.trained import KINDS
from specsamp.errors import UserError

_CONFIG = 'config.json'


@pytest.fixture(scope='module')
def target():
  return tiny.model(11, 0, num_layers=6)


def _trained(target, kind):
  fields = {'draft_vocab': 7} if kind in ('eagle', 'eagle3', 'medusa') else {}
  return tiny.trained(target, kind, **fields)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('storage', ['float32', 'int8'])
def test_a_saved_drafter_is_read(target, tmp_path, kind, storage):
  acceptance = {'float32': None, 'int8': 0.625}[storage]
  saved = dataclasses.replace(_trained(target, kind), acceptance=acceptance)
  path = tmp_path / 'new' / 'd'
  drafter_dir.save(saved, path, storage)
  again = drafter_dir.load(path)
  assert again.module == saved.module
  assert again.target == saved.target == target.fingerprint
  assert again.acceptance == acceptance
  assert jax.tree.structure(again.params) == jax.tree.structure(saved.params)

  def check(keys, got, expected):
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if storage == 'float32' or expected.ndim == 1:
      np.testing.assert_array_equal(got, expected)
    else:  # half a step of the largest weight
      error = np.abs(got - expected)
      step = np.abs(expected).max() / 127
      assert 0 < error.max() <= 0.501 * step, keys

  jax.tree_util.tree_map_with_path(check, again.params, saved.params)
  assert [p.name for p in path.parent.iterdir()] == ['d']


def test_each_mask_has_a_scale(target, tmp_path):
  """A small mask loses no precision next to a large one."""
  saved = tiny.trained(target, 'eagle_parallel')
  masks = saved.params['mask_embedding']
  saved.params['mask_embedding'] = masks.at[0].multiply(1e-4)
  drafter_dir.save(saved, tmp_path / 'd', 'int8')
  got = drafter_dir.load(tmp_path / 'd').params['mask_embedding']
  np.testing.assert_allclose(got[0], masks[0] * 1e-4, atol=2e-6)


def _config(change):
  def damage(folder):
    config = json.loads((folder / _CONFIG).read_text())
    change(config)
    (folder / _CONFIG).write_text(json.dumps(config))

  return damage


def _drafter(**values):
  return _config(lambda config: config['drafter'].update(values))


def _write(name, content):
  return lambda folder: (folder / name).write_bytes(content)


def _without(name):
  return lambda folder: (folder / name).unlink()


def _cut(folder):
  path = folder / weights.FILE
  path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
  ('kind', 'damage', 'message'),
  [
    ('eagle', _cut, 'model.safetensors: truncated or corrupt: '),
    ('eagle', _without(weights.FILE), 'No such file'),
    ('eagle', _without(_CONFIG), 'config.json: No such file'),
    ('eagle', _write(_CONFIG, b'{'), 'config.json: not valid JSON'),
    ('eagle', _write(_CONFIG, b'[]'), 'config.json: expected a JSON object'),
    ('eagle', _write(_CONFIG, b'\xff'), 'config.json: not UTF-8 text'),
    ('eagle', _config(lambda c: c.pop('model')), 'config.json: no model'),
    ('eagle', _config(lambda c: c['drafter'].pop('target')), ': no target'),
    ('eagle', _config(lambda c: c['model'].update(width=8)), 'do not fit the'),
    ('eagle', _drafter(kind='lookahead'), "got 'lookahead', expected one of m"),
    ('eagle', _drafter(kind='hydra'), 'do not fit the config'),
    ('eagle_parallel', _drafter(ahead=1), 'ahead: got 1, expected at least 2'),
    ('eagle_parallel', _drafter(ahead=3), 'mask_embedding '),
    ('eagle3', _drafter(draft_vocab=12), 'got 12, expected at most the 11 tok'),
    ('eagle3', _drafter(draft_vocab='7'), "draft_vocab: got '7', expected"),
    ('eagle3', _drafter(draft_vocab=6), 'do not fit the config'),
    ('eagle3', _drafter(has_embedding=True), 'do not fit the config'),
    ('eagle', _drafter(acceptance='1'), "acceptance: got '1', expected 0 to 1"),
    ('eagle', _drafter(acceptance=1.1), 'acceptance: got 1.1, expected 0 to 1'),
    ('dflash', _drafter(taps=2), 'config.json: '),
    ('dflash', _drafter(taps=[1, 2]), 'do not fit the config'),
  ],
)
def test_damage_is_named_in_one_line(target, tmp_path, kind, damage, message):
  drafter_dir.save(_trained(target, kind), tmp_path / 'd')
  damage(tmp_path / 'd')
  with pytest.raises(UserError, match=message) as error:
    drafter_dir.load(tmp_path / 'd')
  assert str(tmp_path) in str(error.value)
  assert '\n' not in str(error.value)


def test_models_and_drafters_are_not_each_other(target, tokenizer, tmp_path):
  with pytest.raises(UserError, match='^drafter .*d: no such folder$'):
    drafter_dir.load(tmp_path / 'd')
  drafter_dir.save(tiny.trained(target, 'eagle'), tmp_path / 'd')
  with pytest.raises(UserError, match='no tokenizer.json and no'):
    model_dir.load(tmp_path / 'd')
  tokenizer.save(tmp_path / 'd')
  with pytest.raises(UserError, match='do not fit the config'):
    model_dir.load(tmp_path / 'd')

  model = dataclasses.replace(target, tokenizer=tokenizer)
  model_dir.save(model, tmp_path / 'm')
  with pytest.raises(UserError, match='config.json: no drafter'):
    drafter_dir.load(tmp_path / 'm')
