"""EAGLE-3 in the kinds of config.json that there are, against torch."""

import numpy as np
import pytest
from heads_on_disk import (
  CONFIGS,
  DRAFT_VOCAB,
  LLAMA,
  VOCAB,
  WIDTH,
  check_folder,
  eagle3_shapes,
  keys,
  layer_shapes,
  qwen3_shapes,
  random_tensors,
  refused,
  shape,
  with_tables,
  without,
  write,
)
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import trained_drafter

IDS = 'eagle_aux_hidden_state_layer_ids'
AUTHORS = CONFIGS['eagle3']
SPECULATORS = dict(
  speculators_model_type='eagle3',
  architectures=['Eagle3Speculator'],
  transformer_layer_config=LLAMA | dict(model_type='llama'),
  draft_vocab_size=DRAFT_VOCAB,
  norm_before_residual=False,
)
QWEN3 = LLAMA | dict(model_type='qwen3', num_hidden_layers=2)


def _authors(**changed):
  return AUTHORS | changed, with_tables(random_tensors(eagle3_shapes()))


def _nested(**nested):
  return _authors(eagle_config=nested)


def _speculators(more=None, **changed):
  shapes = eagle3_shapes('layers.0.') | (more or {})
  return SPECULATORS | changed, with_tables(random_tensors(shapes))


def _final_state_alone():
  values, _ = _nested(use_aux_hidden_state=False, **{IDS: []})
  shapes = eagle3_shapes()
  del shapes['fc.weight']
  return values, with_tables(random_tensors(shapes, seed=3))


def _wider():
  """Than the target, which is of width 16: it embeds tokens itself."""
  shapes = eagle3_shapes(d=20) | {'embed_tokens.weight': (VOCAB, 20)}
  values = AUTHORS | dict(hidden_size=20, target_hidden_size=WIDTH)
  return values, with_tables(random_tensors(shapes))


def _whole_vocabulary():
  values, tensors = _speculators(
    {'lm_head.weight': (VOCAB, WIDTH)}, draft_vocab_size=VOCAB
  )
  del tensors['d2t'], tensors['t2d']
  return values, tensors


def _borrowed(tables=False, embeds=False, **changed):
  """Returns a folder without an LM head, with null for what it lacks."""
  shapes = eagle3_shapes()
  del shapes['lm_head.weight']
  if embeds:
    shapes['embed_tokens.weight'] = VOCAB, WIDTH
  tensors = random_tensors(shapes, seed=2)
  if tables:
    tensors |= {
      'd2t': np.zeros(VOCAB, np.int32),
      't2d': np.ones(VOCAB, bool),
    }
  values = AUTHORS | {
    'draft_vocab_size': VOCAB if tables else None,
    'rope_parameters': {'rope_theta': 100.0},
    IDS: None,
    'eagle_config': {IDS: None, 'use_aux_hidden_state': None},
    'norm_before_residual': None,
    'fc_norm': None,
  }
  del values['rope_theta']
  return values | changed, tensors


def _table_of_32_bits():
  values, tensors = _authors()
  return values, tensors | {'d2t': tensors['d2t'].astype(np.int32)}


def _qwen3():
  """Two layers, with norms of queries and keys."""
  more = layer_shapes('layers.1.', WIDTH) | qwen3_shapes(2)
  return _speculators(more, transformer_layer_config=QWEN3)


def _peagle(by_authors=False):
  """Of three layers, which are LLaMA's, all but the first of width D."""
  first = 'midlayer.' if by_authors else 'layers.0.'
  shape = (1, 3 * WIDTH) if by_authors else (1, 1, 3 * WIDTH)
  shapes = eagle3_shapes(first) | {'mask_hidden': shape}
  for i in (1, 2):
    shapes |= layer_shapes(f'layers.{i}.', WIDTH)
    shapes[f'layers.{i}.input_layernorm.weight'] = (WIDTH,)
  tensors = with_tables(random_tensors(shapes, seed=1))
  layers = LLAMA | dict(model_type='llama', num_hidden_layers=3)
  if by_authors:
    about = dict(parallel_drafting=True, ptd_token_id=8, num_hidden_layers=3)
    return AUTHORS | about, tensors
  return SPECULATORS | dict(
    speculators_model_type='peagle',
    transformer_layer_config=layers,
    mask_token_id=4,
    norm_before_residual=True,
  ), tensors


FOLDERS = {
  'outputs of layers': lambda: _nested(**{IDS: [1, 4, 6]}),
  'inputs of layers': lambda: _nested(
    **{IDS: [2, 4, 6], 'next_layer_regular': True}
  ),
  'not nested': lambda: _authors(**{IDS: [2, 3, 7]}),
  'final state alone': _final_state_alone,
  'wider': _wider,
  'speculators': lambda: _speculators(norm_before_residual=True),
  'speculators, taps': lambda: _speculators(
    {'input_norm.weight': (3 * WIDTH,)},
    norm_before_fc=True,
    **{IDS: [3, 5, 7]},
  ),
  'EAGLE-3.1': lambda: _speculators(
    {f'fc_norm.{i}.weight': (WIDTH,) for i in range(3)},
    fc_norm=True,
    norm_output=True,
  ),
  'whole vocabulary': _whole_vocabulary,
  "the target's LM head": _borrowed,
  "the target's LM head, tables": lambda: _borrowed(tables=True, embeds=True),
  'table of 32 bits': _table_of_32_bits,
  'Qwen3': _qwen3,
  'P-EAGLE': _peagle,
  "P-EAGLE, authors'": lambda: _peagle(by_authors=True),
}


@pytest.mark.parity
@pytest.mark.parametrize('name', FOLDERS)
def test_every_step_is_torchs(target, tmp_path, name):
  values, tensors = FOLDERS[name]()
  write(tmp_path, values, tensors)
  method = 'peagle' if 'mask_hidden' in tensors else 'eagle3'
  check_folder(tmp_path, target, method, values, tensors)


@pytest.mark.parametrize(
  ('name', 'taps'),
  [
    ('outputs of layers', (2, 5, 7)),
    ('inputs of layers', (2, 4, 6)),
    ('final state alone', ()),
    ('speculators', (2, 3, 4)),
    ('speculators, taps', (3, 5, 7)),
  ],
)
def test_taps(target, tmp_path, name, taps):
  trained = drafter_dir.load(write(tmp_path, *FOLDERS[name]()))
  assert trained_drafter(trained, target, 2).taps == taps


def test_a_target_of_too_few_layers(tmp_path):
  folder = write(tmp_path, *FOLDERS['speculators, taps']())
  trained = drafter_dir.load(folder)
  refused(
    'of 6 layers, expected at least 7$',
    trained_drafter,
    trained,
    tiny.model(VOCAB, 0, num_layers=6),
    2,
  )


def test_the_widths_of_target_and_drafter(tmp_path):
  trained = drafter_dir.load(write(tmp_path, *FOLDERS['wider']()))
  other = tiny.model(VOCAB, 0, num_layers=7, width=20)
  refused('of width 16, this one has 20$', trained_drafter, trained, other, 2)


def _layers(**changed):
  layers = LLAMA | dict(model_type='llama') | changed
  return keys(transformer_layer_config=layers)


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    ('inputs of layers', keys(eagle_config=3), 'eagle_config: got 3, expected'),
    (
      'inputs of layers',
      keys(eagle_config={IDS: [0, 3, 5]}),
      r'got \[0, 3, 5\], of which nothing tells whether inputs or outputs',
    ),
    (
      'inputs of layers',
      keys(eagle_config={IDS: [4, 2, 5]}),
      r'got \[4, 2, 5\], expected layers, ascending$',
    ),
    (
      'inputs of layers',
      keys(eagle_config={IDS: [2, 3]}),
      r'fc.weight \[16, 48\] instead of \[16, 32\]$',
    ),
    (
      'inputs of layers',
      keys(**{IDS: [3, 4, 5]}),
      r'got \[3, 4, 5\] and \[2, 4, 6\], expected one$',
    ),
    (
      'inputs of layers',
      keys(eagle_config=dict(use_mtp_layernorm=True)),
      'use_mtp_layernorm: got True, only False is supported$',
    ),
    (
      'final state alone',
      keys(target_hidden_size=32),
      'use_aux_hidden_state: got false, and ',
    ),
    ('final state alone', shape('fc.weight', 16, 16), '1 not used: fc.weight$'),
    ('wider', without('embed_tokens.weight'), 'got no embed_tokens.weight, '),
    ('wider', without('lm_head.weight'), '1 missing: lm_head.weight$'),
    ('not nested', without('lm_head.weight'), '1 missing: lm_head.weight$'),
    (
      "the target's LM head, tables",
      keys(tie_word_embeddings=True),
      "the LM head may be this embedding or the target's$",
    ),
    ('speculators', keys(speculators_model_type='dspark'), "got 'dspark', exp"),
    (
      'speculators',
      without('layers.0.hidden_norm.weight'),
      '1 missing: layers',
    ),
    (
      'speculators',
      shape('fc.weight', 16, 32),
      r'fc.weight \[16, 32\] instead',
    ),
    (
      'speculators',
      keys(norm_output=1),
      'norm_output: got 1, expected true or',
    ),
    (
      'speculators',
      lambda tensors, values: values.pop('norm_before_residual'),
      'no norm_before_residual, expected',
    ),
    (
      'speculators',
      keys(norm_before_fc=True, fc_norm=True),
      'norm_before_fc, fc_norm: got both, expected one of them$',
    ),
    (
      'speculators',
      keys(**{IDS: [1, 4, 6]}),
      r'got \[1, 4, 6\], of which nothing tells whether inputs or outputs',
    ),
    ('speculators', keys(**{IDS: 3}), f'{IDS}: got 3, expected layers'),
    ('speculators', _layers(model_type=None), 'model_type: got None, expected'),
    ('speculators', _layers(rms_norm_eps=None), 'no rms_norm_eps$'),
    ('speculators', keys(transformer_layer_config=3), 'got 3, expected its'),
    ('speculators', without('d2t'), 'd2t: got None, expected '),
    ('P-EAGLE', without('mask_hidden'), 'mask_hidden: got None, expected '),
    ('P-EAGLE', shape('mask_hidden', 1, 16), r'mask_hidden: got \(1, 16\), '),
    ('P-EAGLE', keys(mask_token_id=11), 'mask_token_id: got 11, expected bel'),
    ("P-EAGLE, authors'", keys(ptd_token_id=-1), 'ptd_token_id: got -1, exp'),
    ("P-EAGLE, authors'", keys(pard_token=3), r'got \[3, 8\], expected one to'),
    ("P-EAGLE, authors'", keys(parallel_drafting=1), 'got 1, expected true or'),
  ],
)
def test_damage_is_named_in_one_line(tmp_path, name, damage, message):
  values, tensors = FOLDERS[name]()
  damage(tensors, values)
  refused(message, drafter_dir.load, write(tmp_path, values, tensors))
