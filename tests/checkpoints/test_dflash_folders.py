"""DFlash's folders, the authors' and those of speculators, against torch."""

import jax
import numpy as np
import pytest
from heads_on_disk import (
  LLAMA,
  VOCAB,
  WIDTH,
  check_folder,
  keys,
  layer_shapes,
  qwen3_shapes,
  random_tensors,
  refused,
  shape,
  without,
  write,
)
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import trained_drafter

QWEN3 = LLAMA | dict(model_type='qwen3', num_hidden_layers=2)
SHAPES = (
  layer_shapes('layers.0.', WIDTH)
  | layer_shapes('layers.1.', WIDTH)
  | qwen3_shapes(2)
  | {
    'fc.weight': (WIDTH, 3 * WIDTH),
    'hidden_norm.weight': (WIDTH,),
    'norm.weight': (WIDTH,),
  }
)
COPIES = {
  'embed_tokens.weight': (VOCAB, WIDTH),
  'lm_head.weight': (VOCAB, WIDTH),
}
INSIDE = dict(target_layer_ids=[1, 3, 5], mask_token_id=10)
CONFIGS = {
  'authors': QWEN3
  | dict(
    architectures=['DFlashDraftModel'], block_size=6, dflash_config=INSIDE
  ),
  'size inside': QWEN3
  | dict(
    architectures=['DFlashDraftModel'],
    dflash_config=INSIDE | dict(block_size=5, causal=False),
  ),
  'speculators': dict(
    speculators_model_type='dflash',
    transformer_layer_config=QWEN3,
    draft_vocab_size=VOCAB,
    block_size=6,
    mask_token_id=0,
    aux_hidden_state_layer_ids=[2, 4, 7],
  ),
}


@pytest.mark.parity
@pytest.mark.parametrize('name', CONFIGS)
def test_every_token_is_torchs(target, tmp_path, name):
  # What is a copy of the target's is noise here, and read nowhere.
  tensors = random_tensors(
    SHAPES | (COPIES if name == 'speculators' else {}), seed=1
  )
  write(tmp_path, CONFIGS[name], tensors)
  check_folder(tmp_path, target, 'dflash', CONFIGS[name], tensors)


def test_a_table_of_all_tokens_in_order(target, tmp_path):
  """Some files have one, of the target's own vocabulary."""
  tables = {'d2t': np.zeros(VOCAB, np.int64), 't2d': np.ones(VOCAB, bool)}
  tensors = random_tensors(SHAPES, seed=1)
  plain = drafter_dir.load(write(tmp_path, CONFIGS['authors'], tensors))
  write(tmp_path, CONFIGS['authors'], tensors | tables)
  got = drafter_dir.load(tmp_path)
  assert got.module == plain.module
  jax.tree.map(np.testing.assert_array_equal, got.params, plain.params)
  tables['d2t'] = np.arange(VOCAB)[::-1] - np.arange(VOCAB)
  write(tmp_path, CONFIGS['authors'], tensors | tables)
  refused('d2t: got a table of other tokens', drafter_dir.load, tmp_path)


@pytest.mark.parametrize(
  ('name', 'taps'), [('authors', (2, 4, 6)), ('speculators', (2, 4, 7))]
)
def test_taps(target, tmp_path, name, taps):
  folder = write(tmp_path, CONFIGS[name], random_tensors(SHAPES))
  trained = drafter_dir.load(folder)
  assert trained_drafter(trained, target, 3).taps == taps
  few = tiny.model(VOCAB, 0, num_layers=taps[-1] - 1)
  refused('expected at least .$', trained_drafter, trained, few, 3)
  refused('at most 5 tokens deep', trained_drafter, trained, target, 6)
  # A target whose export dropped the rows of the mask.
  short = tiny.model(VOCAB - 1, 0, num_layers=7)
  refused('vocab_size 11, this one has 10', trained_drafter, trained, short, 3)


def _inside(**changed):
  return keys(dflash_config=INSIDE | changed)


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    (
      'authors',
      _inside(selector_rank=256),
      "got 'selector_rank': 256, a",
    ),
    ('authors', _inside(causal_head=True), 'causal_head: got True, only False'),
    ('authors', _inside(block_size=5), 'block_size: got 6 and 5, expected one'),
    ('authors', _inside(target_layer_ids=[3, 1, 5]), 'expected layers, asc'),
    ('authors', _inside(target_layer_ids=[1, 3]), r'\[16, 48\] instead of'),
    (
      'authors',
      _inside(mask_token_id=VOCAB),
      'mask_token_id: got 11, expected',
    ),
    ('authors', keys(mask_token_id=3), 'mask_token_id: got 3 and 10, expec'),
    ('authors', keys(dflash_config=1), 'dflash_config: got 1, expected its'),
    ('authors', keys(model_type='llama'), "model_type: got 'llama', expected"),
    ('authors', keys(target_hidden_size=8), 'target_hidden_size: got 8, exp'),
    (
      'authors',
      without('hidden_norm.weight'),
      '1 missing: hidden_norm.weight$',
    ),
    ('authors', shape('markov_w1', 11, 4), '1 not used: markov_w1$'),
    (
      'speculators',
      keys(draft_vocab_size=7),
      'draft_vocab_size: got 7, only the 11 tokens of the target are supp',
    ),
    (
      'speculators',
      keys(aux_hidden_state_layer_ids=[1, 4, 6]),
      'of which nothing tells whether inputs or outputs of these layers',
    ),
    ('speculators', keys(sample_from_anchor=True), 'got True, only False is'),
    ('speculators', keys(mask_token_id=None), 'mask_token_id: got None, exp'),
    (
      'speculators',
      shape('lm_head.weight', 12, 16),
      r'lm_head.weight: got \(12, 16\), expected \(11, 16\)$',
    ),
  ],
)
def test_damage_is_named_in_one_line(tmp_path, name, damage, message):
  values, tensors = dict(CONFIGS[name]), random_tensors(SHAPES)
  damage(tensors, values)
  refused(message, drafter_dir.load, write(tmp_path, values, tensors))
