"""EAGLE-3's layers exported for speculators, read by torch and specsamp."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from heads_in_torch import Torch
from heads_on_disk import VOCAB, check, refused
from testing import tiny

from specsamp.checkpoints import convert, drafter_dir, tensor_files
from specsamp.checkpoints.huggingface import families, speculators
from specsamp.drafting.eagle3 import Eagle3Layer
from specsamp.drafting.features import DraftModule

# Rows of the LM head, which the export sorts by token; 7 is no row.
ROWS = (3, 7, 0, 6, 7, 1, 5, 7, 7, 2, 4)
LAYERS = {
  'plain': {},
  'EAGLE-3.1': dict(
    tap_norm='each', adds_to_normed=True, feeds_normed=True, taps=(2, 5)
  ),
  'Qwen3': dict(
    tap_norm='together',
    own=dict(num_layers=2, qk_norm=True, rope_theta=50.0),
  ),
  'whole vocabulary': dict(rows=tuple(range(VOCAB))[::-1], draft_vocab=VOCAB),
  'embedding': dict(has_embedding=True),
}


@pytest.fixture(scope='module')
def target_folder(target, tmp_path_factory):
  """A folder of which only the config is read."""
  folder = tmp_path_factory.mktemp('target')
  values = families.write(target.config)
  (folder / 'config.json').write_text(json.dumps(values))
  return folder


def _layer(target, rows=ROWS, draft_vocab=7, own=None, **fields):
  """Returns random EAGLE-3 layers with the target's fingerprint."""
  own = dict(num_layers=1) | (own or {})
  config = dataclasses.replace(target.config, **own)
  module = Eagle3Layer(config, draft_vocab, **fields)
  params = tiny.noise(module, seed=5)
  params['draft_rows'] = jnp.asarray(rows, jnp.int32)
  return DraftModule(module, params, target.fingerprint)


def _written(folder):
  values = json.loads((folder / 'config.json').read_text())
  content = (folder / 'model.safetensors').read_bytes()
  return values, safetensors.numpy.load(content)


@pytest.mark.parity
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name == 'plain' else pytest.mark.extended)
    for name in LAYERS
  ],
)
def test_torch_computes_the_same(target, target_folder, tmp_path, name):
  trained = _layer(target, **LAYERS[name])
  speculators.save(trained, tmp_path, target_folder)
  values, tensors = _written(tmp_path)
  assert ('d2t' in tensors) == (name != 'whole vocabulary')
  if 'd2t' in tensors:
    tokens = tensors['d2t'] + np.arange(len(tensors['d2t']))
    assert tokens.tolist() == np.flatnonzero(tensors['t2d']).tolist()
  check(trained, target, Torch(target, tensors, values).eagle3)
  again = drafter_dir.load(tmp_path)
  # The config names taps, also the default ones.
  taps = trained.module.taps or (2, 3, 4)
  assert again.module == trained.module.clone(taps=taps)


def test_the_config(target, target_folder, tmp_path):
  speculators.save(_layer(target), tmp_path, target_folder, 'bfloat16')
  values = json.loads((tmp_path / 'config.json').read_text())
  layers = values.pop('transformer_layer_config')
  assert (layers['model_type'], layers['vocab_size']) == ('llama', VOCAB)
  about = values.pop('speculators_config')
  assert about['algorithm'] == 'eagle3'
  assert about['proposal_methods'][0]['speculative_tokens'] == 5
  assert about['verifier'] == {
    'name_or_path': str(target_folder),
    'architectures': ['LlamaForCausalLM'],
  }
  assert values == {
    'speculators_model_type': 'eagle3',
    'architectures': ['Eagle3Speculator'],
    'draft_vocab_size': 7,
    'norm_before_residual': False,
    'norm_before_fc': False,
    'fc_norm': False,
    'norm_output': False,
    'target_hidden_size': None,
    'eagle_aux_hidden_state_layer_ids': [2, 3, 4],
    'tie_word_embeddings': False,
    'dtype': 'bfloat16',
  }
  tensors = tensor_files.in_folder(tmp_path)
  types = [tensors[name].dtype for name in ('fc.weight', 'd2t', 't2d')]
  assert types == ['BF16', 'I64', 'BOOL']


def test_convert_writes_it_again(target, target_folder, tmp_path, capsys):
  trained = dataclasses.replace(_layer(target), acceptance=0.625)
  source, out = tmp_path / 'source', tmp_path / 'out'
  speculators.save(trained, source, target_folder)
  for _ in range(2):
    convert.convert(source, out, 'speculators', target=str(target_folder))
  assert 'M parameters' in capsys.readouterr().out
  again = drafter_dir.load(out)
  assert again.acceptance == 0.625
  jax.tree.map(
    np.testing.assert_array_equal,
    again.params,
    drafter_dir.load(source).params,
  )


def test_what_cannot_be_written(target, target_folder, tmp_path):
  out = tmp_path / 'out'
  for trained, message in (
    (tiny.trained(target, 'medusa'), 'of MedusaHeads, speculators is'),
    (tiny.published(target, 'peagle'), 'of PEagleLayers, speculators is'),
    (_layer(target, taps=(2, 4, 8)), r'\(2, 4, 8\) of its target, this'),
    (
      _layer(target, **LAYERS['whole vocabulary'], has_lm_head=False),
      "uses the target's LM head",
    ),
    (_layer(target, taps=()), "the target's last state alone"),
    (_layer(target, own=dict(width=20)), 'of width 20, this one has 16$'),
    (_layer(target, own=dict(biases='qkv')), "model_type: got 'qwen2'"),
  ):
    refused(message, speculators.save, trained, out, target_folder)
  plain = _layer(target)
  nowhere = tmp_path / 'nowhere'
  refused('no such folder', speculators.save, plain, out, nowhere)
  for form, to in (('speculators', ''), ('orbax', 'x')):
    args = target_folder, out, form, None, None, to
    refused(f'^target: got {to!r} with the format', convert.convert, *args)
  assert not out.exists()
