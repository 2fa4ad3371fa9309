"""EAGLE-3's layers exported for speculators, read by torch and specsamp."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from heads_in_torch import Torch
from heads_on_disk import VOCAB, WIDTH, check, refused
from testing import tiny

from specsamp.checkpoints import convert, drafter_dir, tensor_files
from specsamp.checkpoints.huggingface import families
from specsamp.checkpoints.huggingface.heads import speculators
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
@pytest.mark.parametrize('name', LAYERS)
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
    'speculators_config': {
      'algorithm': 'eagle3',
      'default_proposal_method': 'greedy',
      'proposal_methods': [
        {
          'proposal_type': 'greedy',
          'speculative_tokens': 5,
          'verifier_accept_k': 1,
          'accept_tolerance': 0.0,
        }
      ],
      'verifier': {
        'name_or_path': str(target_folder),
        'architectures': ['LlamaForCausalLM'],
      },
    },
  }
  assert layers['model_type'] == 'llama'
  assert (layers['vocab_size'], layers['hidden_size']) == (VOCAB, WIDTH)
  tensors = tensor_files.in_folder(tmp_path)
  types = [tensors[name].dtype for name in ('fc.weight', 'd2t', 't2d')]
  assert types == ['BF16', 'I64', 'BOOL']


def test_convert_writes_it_again(target, target_folder, tmp_path, capsys):
  trained = _layer(target)
  source, out = tmp_path / 'source', tmp_path / 'out'
  speculators.save(trained, source, target_folder)
  for _ in range(2):
    convert.convert(source, out, 'speculators', target=str(target_folder))
  assert 'M parameters' in capsys.readouterr().out
  jax.tree.map(
    np.testing.assert_array_equal,
    drafter_dir.load(out).params,
    drafter_dir.load(source).params,
  )


def test_what_cannot_be_written(target, target_folder, tmp_path):
  save = speculators.save
  out = tmp_path / 'out'
  heads = tiny.trained(target, 'medusa')
  refused('of MedusaHeads, speculators is', save, heads, out, target_folder)
  masked = tiny.published(target, 'peagle')
  refused('of PEagleLayers, speculators is', save, masked, out, target_folder)
  deep = _layer(target, taps=(2, 4, 8))
  refused(r'\(2, 4, 8\) of its target, this', save, deep, out, target_folder)
  shared = _layer(target, **LAYERS['whole vocabulary'], has_lm_head=False)
  refused("uses the target's LM head", save, shared, out, target_folder)
  last = _layer(target, taps=())
  refused("the target's last state alone", save, last, out, target_folder)
  wide = _layer(target, own=dict(width=20))
  refused('of width 20, this one has 16$', save, wide, out, target_folder)
  biased = _layer(target, own=dict(biases='qkv'))
  refused("model_type: got 'qwen2'", save, biased, out, target_folder)
  plain = _layer(target)
  refused('no such folder', save, plain, out, tmp_path / 'nowhere')
  refused('config.json: No such file', save, plain, out, tmp_path)
  for form, to in (('speculators', ''), ('orbax', 'x')):
    args = target_folder, out, form, None, None, to
    refused(f'^target: got {to!r} with the format', convert.convert, *args)
  assert not out.exists()
