"""Drafters in published formats, against their mathematics in torch."""

import jax
import numpy as np
import pytest
from heads_in_torch import Torch
from heads_on_disk import (
  FOLDERS,
  SLIDING,
  VOCAB,
  check,
  draft_after,
  refused,
  write,
)
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import trained_drafter

# One of each computation; the other kinds differ in a norm, a tap or a table.
_MAIN = (
  'medusa',
  'eagle',
  'mtp, MiMo',
  'mtp, DeepSeek',
  'eagle3',
  'P-EAGLE',
  'dflash',
  'dflash, windows',
  'speculators, dflash, windows',
  'dspark',
  'speculators, dspark',
)

_TREES = ('eagle', 'mtp, MiMo', 'mtp, DeepSeek', 'eagle3', 'dspark')


def _load(folder, name):
  return drafter_dir.load(write(folder, *FOLDERS[name]()))


def _method(values, tensors):
  if 'medusa_num_heads' in values:
    return 'medusa'
  if 'markov_rank' in values:
    return 'dspark'
  if 'hidden_norm.weight' in tensors:
    return 'dflash'
  if 'mask_hidden' in tensors:
    return 'peagle'
  if 'num_nextn_predict_layers' in values:
    return 'mimo' if values['model_type'] == 'mimo' else 'deepseek'
  return 'eagle3' if 'norm.weight' in tensors else 'eagle'


@pytest.mark.parity
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name in _MAIN else pytest.mark.extended)
    for name in FOLDERS
    if name != 'eagle3, inputs'  # taps alone, see below
  ],
)
def test_every_step_is_torchs(target, tmp_path, name):
  values, tensors = FOLDERS[name]()
  is_medusa = name == 'medusa'
  file = 'medusa_lm_head.safetensors' if is_medusa else 'model.safetensors'
  write(tmp_path, values, tensors, file)
  if is_medusa:
    tensors = {
      key.removeprefix('medusa_head.'): x for key, x in tensors.items()
    }
  in_torch = getattr(Torch(target, tensors, values), _method(values, tensors))
  shape = 'tree' if name in _TREES else 'chain'
  if values.get('block_size') == 4 and name != 'dspark':
    shape = 'three'
  check(drafter_dir.load(tmp_path), target, in_torch, shape)


def test_a_window_of_the_whole_text_is_full_attention_unless_causal(
  target, tmp_path
):
  values, tensors = FOLDERS['dflash']()

  def q(**changed):
    folder = write(tmp_path, values | changed, tensors)
    return np.asarray(draft_after(drafter_dir.load(folder), target)[2].q)

  wide, full = SLIDING | dict(sliding_window=32), q()
  seeing = q(**wide, sliding_window_non_causal=True)
  np.testing.assert_allclose(seeing, full, atol=1e-6)
  assert np.abs(q(**wide) - full).max() > 0.01


def test_a_vocabulary_that_is_padded_in_the_target(tmp_path):
  """A head without an LM head then uses the target's."""
  for name in ("eagle3, target's head", 'speculators, dflash', 'dflash'):
    values, tensors = FOLDERS[name]()
    tensors.pop('lm_head.weight', None)
    plain = drafter_dir.load(write(tmp_path, values, tensors))
    values['draft_vocab_size'] = VOCAB - 2
    tensors['d2t'] = np.zeros(VOCAB - 2, int)
    padded = drafter_dir.load(write(tmp_path, values, tensors))
    vocab = plain.module.draft_vocab
    assert padded.module.clone(draft_vocab=vocab) == plain.module
    for trained in (plain, padded):
      trained.params.pop('draft_rows', None)
    jax.tree.map(np.testing.assert_array_equal, padded.params, plain.params)


@pytest.mark.parametrize(
  ('name', 'taps'),
  [
    ('eagle3, outputs', (2, 5, 7)),
    ('eagle3, inputs', (2, 4, 6)),
    ('eagle3, last state', ()),
    ('speculators', (2, 3, 4)),
    ('speculators, taps', (3, 5, 7)),
    ('dflash', (2, 4, 6)),
    ('speculators, dflash', (2, 4, 7)),
    ('dspark', (0, 4, 6)),
    ('mtp, MiMo', (7,)),
    ('mtp, DeepSeek', ()),
  ],
)
def test_taps(target, tmp_path, name, taps):
  trained = _load(tmp_path, name)
  assert trained_drafter(trained, target, 2).taps == taps
  if taps[-1:] == (7,):
    shallow = tiny.model(VOCAB, 0, num_layers=6)
    refused('expected at least 7$', trained_drafter, trained, shallow, 2)


def test_tables_of_other_dtypes_and_of_all_tokens(tmp_path):
  """Integers of 32 bits, and DFlash's table of all tokens in order."""
  for name, tables in (
    ('eagle3', {}),
    ('dflash', {'d2t': np.zeros(VOCAB, int), 't2d': np.ones(VOCAB, bool)}),
  ):
    values, tensors = FOLDERS[name]()
    plain = drafter_dir.load(write(tmp_path, values, tensors))
    tensors |= tables
    tensors['d2t'] = tensors['d2t'].astype(np.int32)
    other = drafter_dir.load(write(tmp_path, values, tensors))
    assert other.module == plain.module
    jax.tree.map(np.testing.assert_array_equal, other.params, plain.params)


def test_another_target_is_refused(target, tmp_path):
  trained = _load(tmp_path, 'eagle3')
  assert trained.target == ''
  for other, message in (
    (tiny.model(VOCAB, 0, width=8, num_layers=7), 'width 16, this one has 8$'),
    (tiny.model(VOCAB + 1, 0, num_layers=7), 'vocab_size 11, this one has 12$'),
  ):
    refused(message, trained_drafter, trained, other, 3)
  refused('cannot be saved', drafter_dir.save, trained, tmp_path / 'again')


def test_limits_of_a_drafter(target, tmp_path):
  wider = _load(tmp_path, 'eagle3, wider')
  other = tiny.model(VOCAB, 0, num_layers=7, width=20)
  refused('of width 16, this one has 20$', trained_drafter, wider, other, 2)
  block = _load(tmp_path, 'dflash')
  refused('at most 5 tokens deep', trained_drafter, block, target, 6)
  at_root = _load(tmp_path, 'dspark')
  assert trained_drafter(at_root, target, 4).tree.depth == 4
  refused('^dspark: drafts at most 4', trained_drafter, at_root, target, 5)
  # A target whose export dropped the rows of the mask.
  short = tiny.model(VOCAB - 1, 0, num_layers=7)
  refused('vocab_size 11, this one has 10', trained_drafter, block, short, 3)


def test_padded_rows_are_not_drafted(tmp_path):
  """A target's vocabulary may be padded to the shards of a mesh."""
  padded = tiny.model(VOCAB + 5, 3, num_layers=7, padding=5)
  _, _, draft = draft_after(_load(tmp_path, 'medusa'), padded)
  assert draft.q.shape == (4, 4, VOCAB + 5)
  assert (np.asarray(draft.q)[:, :, VOCAB:] == 0).all()
  np.testing.assert_allclose(draft.q.sum(-1), 1, atol=1e-5)
