"""Keys of a drafter's config.json: neutral ones, and those refused by name."""

import pytest
from heads_on_disk import CONFIGS, LLAMA, VOCAB, refused
from test_dflash_folders import CONFIGS as DFLASH
from test_eagle3_configs import FOLDERS

from specsamp.checkpoints.huggingface import heads

_PEAGLE, _ = FOLDERS['P-EAGLE']()
_SPECULATORS, _ = FOLDERS['speculators']()
_FORMATS = {
  **CONFIGS,
  'eagle, named': LLAMA | dict(architectures=['LlamaForCausalLMEagle']),
  'eagle3, nested': FOLDERS['inputs of layers']()[0],
  'P-EAGLE': FOLDERS["P-EAGLE, authors'"]()[0],
  'dflash': DFLASH['authors'],
  'speculators, eagle3': _SPECULATORS,
  'speculators, peagle': _PEAGLE,
  'speculators, dflash': DFLASH['speculators'],
}
_WITH_LAYERS = [name for name in _FORMATS if name != 'medusa']
# Where keys of layers are, if they are not at the top.
_LAYERS = 'transformer_layer_config'
# Found in published folders, beside those that are read.
_NEUTRAL = dict(
  transformers_version='4.51.0',
  torch_dtype='bfloat16',
  dtype='bfloat16',
  auto_map={'AutoModel': 'modeling.Model'},
  bos_token_id=1,
  eos_token_id=[2, 3],
  pad_token_id=None,
  use_cache=True,
  some_key_that_is_null=None,
  pruned_heads={},
)
_NEUTRAL_LAYERS = _NEUTRAL | dict(
  initializer_range=0.02,
  attention_dropout=0.0,
  attention_bias=False,
  mlp_bias=False,
  pretraining_tp=1,
  max_window_layers=28,
  use_sliding_window=False,
  sliding_window=None,
  layer_types=['full_attention'] * 2,
  rope_scaling=None,
)


def _changed(name, in_layers, **changes):
  values = _FORMATS[name]
  if in_layers and _LAYERS in values:
    return values | {_LAYERS: values[_LAYERS] | changes}
  return values | changes


@pytest.mark.parametrize('name', _FORMATS)
def test_keys_that_change_nothing(name):
  assert heads.reader(_changed(name, False, **_NEUTRAL))
  if name in _WITH_LAYERS:
    assert heads.reader(_changed(name, True, **_NEUTRAL_LAYERS))


@pytest.mark.parametrize(
  'windows',
  [
    dict(layer_types=['full_attention'], sliding_window=8),
    dict(use_sliding_window=False, sliding_window=8),
    dict(use_sliding_window=None, sliding_window=None, layer_types=None),
  ],
)
@pytest.mark.parametrize('name', _WITH_LAYERS)
def test_full_attention_however_it_is_written(name, windows):
  assert heads.reader(_changed(name, True, **windows))


@pytest.mark.parametrize(
  ('windows', 'message'),
  [
    (
      dict(layer_types=['sliding_attention', 'full_attention']),
      r"layer_types: got \['sliding_attention', 'full_attention'\], only",
    ),
    (
      dict(use_sliding_window=True, sliding_window=8, max_window_layers=28),
      'use_sliding_window: got True, expected a drafter without sliding',
    ),
    (dict(sliding_window=8), 'sliding_window: got 8, expected a drafter'),
  ],
)
@pytest.mark.parametrize('name', _WITH_LAYERS)
def test_windows_are_refused(name, windows, message):
  refused(message, heads.reader, _changed(name, True, **windows))


@pytest.mark.parametrize('in_layers', [False, True])
@pytest.mark.parametrize('name', _FORMATS)
def test_a_key_that_is_not_understood(name, in_layers):
  values = _changed(name, in_layers, residual_multiplier=0.5)
  refused("got 'residual_multiplier': 0.5, a key that", heads.reader, values)


@pytest.mark.parametrize(
  ('name', 'changes', 'message'),
  [
    ('dflash', dict(sliding_window_non_causal=True), 'sliding_window_non_ca'),
    (
      'speculators, dflash',
      dict(sliding_window_non_causal=True),
      'sliding_window_non_causal: got True, only False is supported$',
    ),
    ('dflash', dict(is_causal=True), 'is_causal: got True, only False'),
    ('speculators, dflash', dict(shift_label=True), 'shift_label: got True'),
    (
      'speculators, dflash',
      dict(projector_type='domino'),
      "projector_type: got 'domino', only 'dflash' is supported$",
    ),
    (
      'speculators, eagle3',
      dict(quantization_config=dict(bits=4)),
      "got 'quantization_config': {'bits': 4}, a key",
    ),
    ('eagle', dict(qkv_bias=True), 'qkv_bias: got True, only False'),
    ('eagle, named', dict(eagle_config=dict(a=1)), "got 'eagle_config': {'a'"),
    ('eagle, named', dict(draft_vocab_size=7), 'draft_vocab_size: got 7, only'),
    ('eagle3', dict(logit_scale=2.0), 'logit_scale: got 2.0, only 1.0'),
    ('medusa', dict(a={'b': ['c' * 99] * 99}), r"got 'a': {'b': .*\.\., a key"),
  ],
)
def test_values_that_are_not_supported(name, changes, message):
  refused(message, heads.reader, _changed(name, False, **changes))


def test_values_that_are():
  for name, changes in (
    ('dflash', dict(sliding_window_non_causal=False, is_causal=False)),
    ('dflash', dict(num_target_layers=7, mask_token_id=10)),
    ('speculators, dflash', dict(sliding_window_non_causal=False, auf=True)),
    ('eagle, named', dict(draft_vocab_size=VOCAB, qkv_bias=False)),
  ):
    assert heads.reader(_changed(name, False, **changes))
