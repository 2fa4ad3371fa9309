"""Published drafters that are refused: keys, values and tensors, by name."""

import numpy as np
import pytest
from heads_on_disk import FOLDERS, IDS, INSIDE, LLAMA, VOCAB, refused, write

from specsamp.checkpoints import drafter_dir
from specsamp.checkpoints.huggingface import heads

# The key of the nested config in folders of speculators.
_LAYERS = 'transformer_layer_config'
_AUX = 'aux_hidden_state_layer_ids'
# Keys in published folders that do not change the computation.
_NEUTRAL = dict(
  transformers_version='4.51.0',
  auto_map={'AutoModel': 'modeling.Model'},
  eos_token_id=[2, 3],
  some_key_that_is_null=None,
  pruned_heads={},
)
_NEUTRAL_LAYERS = _NEUTRAL | dict(
  attention_bias=False,
  max_window_layers=28,
  use_sliding_window=False,
  layer_types=['full_attention'] * 2,
)
_FULL_ATTENTION = [
  dict(layer_types=['full_attention'], sliding_window=8),
  dict(use_sliding_window=False, sliding_window=8),
  dict(use_sliding_window=None, sliding_window=None, layer_types=None),
]
_WINDOWS = [
  dict(layer_types=['sliding_attention', 'full_attention']),
  dict(use_sliding_window=True, sliding_window=8, max_window_layers=28),
  dict(sliding_window=8),
]
_SLIDE = ['sliding_attention'] * 2
# Keys of layers -> their windows, as in transformers.
_GATES = [
  (dict(sliding_window=8), (0, 0)),
  (dict(use_sliding_window=True, sliding_window=8), (0, 0)),
  (dict(use_sliding_window=True, sliding_window=None), (0, 0)),
  (
    dict(use_sliding_window=True, sliding_window=8, max_window_layers=1),
    (0, 8),
  ),
  (dict(use_sliding_window=True, max_window_layers=0), (4096, 4096)),
  (dict(use_sliding_window=False, layer_types=['full_attention'] * 2), (0, 0)),
  (
    dict(use_sliding_window=True, sliding_window=8, layer_types=_SLIDE),
    (8, 8),
  ),
]


def _changed(name, in_layers, **changes):
  values, _ = FOLDERS[name]()
  if in_layers and _LAYERS in values:
    return values | {_LAYERS: values[_LAYERS] | changes}
  return values | changes


@pytest.mark.parametrize('name', FOLDERS)
def test_keys(name):
  """Neutral keys are accepted, and an unknown one is refused, everywhere."""
  assert heads.reader(_changed(name, False, **_NEUTRAL))
  for in_layers in (False, True):
    values = _changed(name, in_layers, residual_multiplier=0.5)
    message = "got 'residual_multiplier': 0.5, an unknown key"
    refused(message, heads.reader, values)
  if name == 'medusa' or 'windows' in name:
    return
  for values in (_NEUTRAL_LAYERS, *_FULL_ATTENTION):
    assert heads.reader(_changed(name, True, **values))
  if 'dflash' in name or 'dspark' in name:
    return
  for values in _WINDOWS:
    message = 'sliding_window: got .* expected a drafter without sliding'
    refused(message, heads.reader, _changed(name, True, **values))


@pytest.mark.parametrize(('layers', 'windows'), _GATES)
def test_windows_are_those_of_transformers(tmp_path, layers, windows):
  for name in ('dflash', 'speculators, dspark'):
    values, tensors = _changed(name, True, **layers), FOLDERS[name]()[1]
    module = drafter_dir.load(write(tmp_path, values, tensors)).module
    got = [module.config.window(i) for i in range(2)]
    assert got == list(windows)


def test_values_that_are_supported():
  for name, changes in (
    ('dflash, windows', dict(is_causal=False)),
    ('dflash, windows', dict(causal=False, sliding_window_non_causal=True)),
    ('dflash', dict(sample_from_anchor=True)),
    ('dspark', dict(markov_rank=0, sample_from_anchor=False)),
    (
      'dspark',
      dict(
        architectures=['DSparkDraftModel'],
        markov_rank=None,
        dflash_config=dict(projector_type='dspark', confidence_head_alpha=1.0),
        dspark_config=dict(markov_rank=3),
      ),
    ),
    ('dflash', dict(sliding_window_non_causal=False, is_causal=False)),
    ('dflash', dict(num_target_layers=7, mask_token_id=10)),
    ('speculators, dflash', dict(sliding_window_non_causal=False, auf=True)),
    ('eagle', dict(architectures=['EagleLlamaForCausalLM'], qkv_bias=False)),
    ('eagle3', dict(architectures=['LlamaForCausalLM'], logit_scale=1.0)),
  ):
    assert heads.reader(_changed(name, False, **changes))


# Damage: (tensors, values) -> None.


def _without(name):
  return lambda tensors, values: tensors.pop(name)


def _keys(**changed):
  return lambda tensors, values: values.update(changed)


def _inside(**changed):
  return _keys(dflash_config=INSIDE | changed)


def _in_layers(**changed):
  return _keys(**{_LAYERS: LLAMA | dict(model_type='llama') | changed})


def _shape(name, *shape):
  return lambda tensors, values: tensors.update(
    {name: np.zeros(shape, np.float32)}
  )


def _table(change):
  return lambda tensors, _: tensors.update(d2t=change(tensors.get('d2t')))


def _taps(ids):
  return _keys(eagle_config={IDS: ids})


def _tied(tensors, values):
  tensors['embed_tokens.weight'] = np.zeros((11, 16), np.float32)
  values['tie_word_embeddings'] = True


_AMBIGUOUS = 'which may mean inputs or outputs'
_HEAD = 'medusa_head.'
_REVERSED = lambda t: np.arange(VOCAB)[::-1] - np.arange(VOCAB)


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    (
      'medusa',
      _keys(a={'b': ['c' * 99] * 9}),
      r"'a': {'b': \['c+, an unkn",
    ),
    ('medusa', _keys(medusa_num_heads=0), 'medusa_num_heads: got 0, expected'),
    ('medusa', _keys(medusa_num_layers='1'), "medusa_num_layers: got '1', exp"),
    ('medusa', _without(f'{_HEAD}0.2.weight'), '0.2.weight: got None, expec'),
    ('medusa', _shape(f'{_HEAD}3.2.weight', 9, 16), r'\[9, 16\] instead of'),
    ('eagle', _keys(qkv_bias=True), 'qkv_bias: got True, only False'),
    ('eagle', _keys(bias=False), '1 not used: fc.bias$'),
    ('eagle', _keys(num_hidden_layers=2), 'got 2, expected the 1 of a drafter'),
    ('eagle', _keys(architectures=['GPT2LMHeadModel']), "got 'GPT2LMHeadModel"),
    ('eagle', _keys(hidden_size=None), 'no hidden_size$'),
    ('eagle', _without('fc.bias'), '1 missing: fc.bias$'),
    ('eagle3', _keys(draft_vocab_size='7'), "draft_vocab_size: got '7', "),
    ('eagle3', _keys(draft_vocab_size=None), 'd2t: got .*, expected 11 integ'),
    ('eagle3', _keys(eagle_config={'a': 1}), "got 'a': 1, an unknown key"),
    ('eagle3', _without('lm_head.weight'), '1 missing: lm_head.weight$'),
    ('eagle3', _without('d2t'), 'd2t: got None, expected 7 integers$'),
    ('eagle3', _shape('d2t', 7), "d2t: got ..F32', "),
    ('eagle3', _table(lambda t: t + 1), 'from 1 to 11, expected 7 different'),
    ('eagle3', _table(lambda t: t - 1), 'from -1 to 9, expected'),
    ('eagle3', _table(lambda t: 5 - np.arange(7)), 'from 5 to 5, expected 7'),
    ('eagle3, inputs', _keys(eagle_config=3), 'eagle_config: got 3, expected'),
    ('eagle3, inputs', _taps([0, 3, 5]), _AMBIGUOUS),
    ('eagle3, inputs', _taps([4, 2, 5]), 'expected layers, ascending$'),
    ('eagle3, inputs', _taps([2, 3]), r'\[16, 48\] instead of \[16, 32\]$'),
    ('eagle3, inputs', _keys(**{IDS: [3, 4, 5]}), r'and \[2, 4, 6\], expected'),
    ('eagle3, last state', _keys(target_hidden_size=32), 'expected no '),
    (
      'eagle3, wider',
      _without('embed_tokens.weight'),
      '1 missing: embed_token',
    ),
    ("eagle3, target's head", _tied, "this embedding or the target's$"),
    ('P-EAGLE', _keys(pard_token=3), r'got \[3, 8\], expected one token'),
    ('P-EAGLE', _keys(parallel_drafting=1), 'got 1, expected true or false'),
    ('P-EAGLE', _without('mask_hidden'), 'mask_hidden: got None, expected '),
    ('speculators', _keys(speculators_model_type='mtp'), "got 'mtp', expected"),
    ('speculators', _keys(quantization_config={'bits': 4}), "{'bits': 4}, an"),
    (
      'speculators',
      _keys(norm_before_residual=None),
      'no norm_before_residual',
    ),
    ('speculators', _keys(norm_before_fc=True, fc_norm=True), 'got both, expe'),
    ('speculators', _keys(**{IDS: [1, 4, 6]}), _AMBIGUOUS),
    ('speculators', _in_layers(model_type=None), 'model_type: got None, expec'),
    ('speculators', _keys(**{_LAYERS: 3}), 'got 3, expected an object'),
    (
      'speculators, P-EAGLE',
      _keys(mask_token_id=11),
      'mask_token_id: got 11, ',
    ),
    ('dflash', _keys(is_causal=True), 'is_causal: got True, only False'),
    ('dflash', _keys(causal_head=True), 'causal_head: got True, only False'),
    ('dflash', _keys(mask_token_id=3), 'mask_token_id: got 3 and 10, expected'),
    ('dflash', _keys(model_type='llama'), "model_type: got 'llama', expected"),
    ('dflash', _keys(target_hidden_size=8), 'target_hidden_size: got 8, expec'),
    ('dflash', _inside(selector_rank=256), "got 'selector_rank': 256, an unkn"),
    ('dflash', _inside(block_size=5), 'block_size: got 6 and 5, expected one'),
    ('dflash', _inside(target_layer_ids=[1, 3]), r'\[16, 48\] instead of'),
    ('dflash', _table(_REVERSED), 'd2t: got a table of other tokens'),
    ('speculators, dflash', _keys(draft_vocab_size=7), 'd2t: got None, expec'),
    ('speculators, dflash', _keys(draft_vocab_size=12), 'd2t: got None, expe'),
    ('speculators, dflash', _keys(mask_token_id=None), 'mask_token_id: got N'),
    ('speculators, dflash', _keys(**{_AUX: [1, 4, 6]}), _AMBIGUOUS),
    ('speculators, dflash', _keys(projector_type='domino'), "only 'dflash' is"),
    (
      'speculators, dflash, free windows',
      _without('lm_head.weight'),
      '1 missing: lm_head.weight$',
    ),
    (
      'dflash',
      _keys(layer_types=_SLIDE),
      'a sliding_window and use_sli',
    ),
    (
      'dflash, windows',
      _keys(layer_types=['sliding_attention']),
      'layer_types: got .* 2 layers',
    ),
    (
      'dflash, windows',
      _keys(layer_types=['full', 'm']),
      "layer_types: got 'fu",
    ),
    ('dflash, windows', _keys(sliding_window=3), 'at least the block_size 4$'),
    ('dflash, windows', _keys(sliding_window='4'), "sliding_window: got '4', "),
    ('dflash, windows', _keys(causal=True), 'causal: got True, only False'),
    (
      'dflash, windows',
      _keys(is_causal=False, sliding_window_non_causal=False),
      r'got \[False, False\], which differ',
    ),
    (
      'dspark',
      _keys(markov_head_type='gated'),
      "markov_head_type: got 'gated'",
    ),
    ('dspark', _keys(markov_rank=2), r'markov_w1.weight \[11, 3\] instead of'),
    ('dspark', _keys(projector_type='dspine'), "only 'dspark' is supported"),
    ('dspark', _keys(target_layer_ids=[-2, 3, 5]), _AMBIGUOUS),
    ('dspark', _keys(selector_rank=3), "got 'selector_rank': 3, an unknown"),
    (
      'mtp, DeepSeek',
      _keys(architectures=['DeepseekV3ForCausalLM']),
      "architecture: got 'DeepseekV3ForCausalLM', expected one of ",
    ),
    (
      'mtp, DeepSeek',
      _keys(architectures=['Glm4ForCausalLM'], model_type='glm4'),
      "got a model of type 'glm4', expected one with layers like those of LL",
    ),
    ('mtp, MiMo', _keys(num_nextn_predict_layers=2), 'got 2, only 1 is suppor'),
    ('mtp, MiMo', _keys(use_sliding_window=True, sliding_window=8), 'windows$'),
    (
      'mtp, DeepSeek',
      lambda tensors, _: tensors['lm_head.weight'].fill(0),
      'layers.7.shared_head.head.weight differs from lm_head.weight, expected',
    ),
    (
      'mtp, MiMo',
      _without('model.mtp_layers.0.input_proj.weight'),
      '1 missing: input_proj.weight$',
    ),
    ('dspark', _without('markov_head.markov_w2.weight'), '1 missing: markov_h'),
    ('dspark', _keys(dspark_config=dict(markov_rank=4)), 'got 3 and 4, expect'),
    (
      'speculators, dspark',
      _keys(sample_from_anchor=None),
      'no sample_from_anchor, expected true or false$',
    ),
  ],
)
def test_damage_is_named_in_one_line(tmp_path, name, damage, message):
  values, tensors = FOLDERS[name]()
  damage(tensors, values)
  refused(message, drafter_dir.load, write(tmp_path, values, tensors))


@pytest.mark.parametrize('name', ['pytorch_model.bin', 'medusa_lm_head.pt'])
def test_pickles_are_refused(tmp_path, name):
  write(tmp_path, FOLDERS['medusa']()[0], {}, name=name)
  refused(f'{name}: reading a pickle may run', drafter_dir.load, tmp_path)
