"""Heads in their authors' formats, against their mathematics in torch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heads_on_disk import (
  CONFIGS,
  DRAFT_VOCAB,
  LLAMA,
  VOCAB,
  WIDTH,
  check_folder,
  first_draft,
  keys,
  refused,
  shape,
  table,
  tensors_of,
  without,
  write,
)
from testing import tiny

from specsamp.checkpoints import drafter_dir
from specsamp.drafting.trained import trained_drafter
from specsamp.experiments import loading

kinds = pytest.mark.parametrize('kind', CONFIGS)


@pytest.mark.parity
@kinds
@pytest.mark.parametrize(
  'shape',
  # Chains are tested below, of a file in another form.
  [pytest.param('chain', marks=pytest.mark.slow), 'tree'],
)
def test_every_step_is_torchs(target, tmp_path, kind, shape):
  tensors = tensors_of(kind)
  if kind == 'medusa' and shape == 'tree':  # as some files have it
    named = {f'medusa_head.{name}': value for name, value in tensors.items()}
    write(tmp_path, CONFIGS[kind], named, name='medusa_lm_head.safetensors')
  else:
    write(tmp_path, CONFIGS[kind], tensors)
  check_folder(tmp_path, target, kind, CONFIGS[kind], tensors, shape)


@pytest.mark.parity
def test_an_eagle_layer_without_bias(target, tmp_path):
  tensors = tensors_of('eagle')
  del tensors['fc.bias']
  write(tmp_path, LLAMA | dict(bias=False), tensors)
  check_folder(tmp_path, target, 'eagle', LLAMA, tensors)


@pytest.mark.parity
def test_an_embedding_of_its_own(target, tmp_path):
  """And the name that the authors' own EAGLE-3 heads have."""
  tensors = tensors_of('eagle3')
  rng = np.random.default_rng(5)
  embedding = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
  tensors['embed_tokens.weight'] = embedding
  config = LLAMA | dict(draft_vocab_size=DRAFT_VOCAB)
  write(tmp_path, config, tensors)
  check_folder(tmp_path, target, 'eagle3', config, tensors)


@kinds
def test_a_folder_is_a_drafters_name(target, tmp_path, kind):
  folder = str(write(tmp_path, CONFIGS[kind], tensors_of(kind)))
  models = loading.Models(target, lambda: target, {})
  assert models.drafter(folder, 3, 'iid').tree.depth == 3
  assert models.deepest(folder) == (4 if kind == 'medusa' else math.inf)


# What is refused.


@pytest.mark.parametrize(
  ('kind', 'damage', 'message'),
  [
    ('medusa', without('1.0.linear.bias'), '1 missing: 1.0.linear.bias$'),
    ('medusa', without('0.2.weight'), '0.2.weight: got None, expected the LM'),
    ('medusa', shape('4.2.weight', 11, 16), '1 not used: 4.2.weight$'),
    ('medusa', shape('3.2.weight', 9, 16), r'3.2.weight \[9, 16\] instead of'),
    ('medusa', keys(medusa_num_heads=0), 'medusa_num_heads: got 0, expected'),
    ('medusa', keys(medusa_num_layers='1'), "medusa_num_layers: got '1', exp"),
    ('eagle', without('fc.bias'), '1 missing: fc.bias$'),
    ('eagle', keys(bias=False), '1 not used: fc.bias$'),
    ('eagle', shape('norm.weight', 16), '1 not used: norm.weight$'),
    ('eagle', shape('fc.weight', 16, 16), r'fc.weight \[16, 16\] instead of'),
    (
      'eagle',
      shape('embed_tokens.weight', 12, 16),
      r'embed_tokens.weight: got \(12, 16\), expected \(11, 16\)$',
    ),
    (
      'eagle',
      keys(num_hidden_layers=2),
      'num_hidden_layers: got 2, expected the 1 of a drafter$',
    ),
    (
      'eagle',
      keys(architectures=['GPT2LMHeadModel']),
      "got 'GPT2LMHeadModel', ",
    ),
    ('eagle', keys(hidden_size=None), 'no hidden_size$'),
    ('eagle3', without('midlayer.hidden_norm.weight'), '1 missing: midlayer'),
    ('eagle3', shape('norm.bias', 16), '1 not used: norm.bias$'),
    ('eagle3', shape('lm_head.weight', 11, 16), r'\[11, 16\] instead of \[7,'),
    ('eagle3', without('d2t'), 'd2t: got None, expected 7 integers$'),
    ('eagle3', shape('d2t', 7), "d2t: got ..F32', "),
    ('eagle3', table('d2t', lambda t: t[1:]), r'got \(.I64., \(6,\)\), exp'),
    (
      'eagle3',
      table('d2t', lambda t: t + 1),
      'tokens from 1 to 11, expected 0',
    ),
    ('eagle3', table('d2t', lambda t: t - 1), 'tokens from -1 to 9, expected'),
    (
      'eagle3',
      table('d2t', lambda t: 5 - np.arange(7)),
      'got . tokens for 7 rows',
    ),
    ('eagle3', table('t2d', lambda t: ~t), 't2d: got other tokens than'),
    ('eagle3', keys(draft_vocab_size='7'), "draft_vocab_size: got '7', "),
    ('eagle3', keys(draft_vocab_size=None), 'd2t: got .*, expected 11 integ'),
    ('eagle3', keys(eagle_config={'a': 1}), "got 'a': 1, a key that is not"),
  ],
)
def test_damage_is_named_in_one_line(tmp_path, kind, damage, message):
  tensors, config = tensors_of(kind), dict(CONFIGS[kind])
  damage(tensors, config)
  write(tmp_path, config, tensors)
  refused(message, drafter_dir.load, tmp_path)


@kinds
@pytest.mark.parametrize('name', ['pytorch_model.bin', 'medusa_lm_head.pt'])
def test_pickles_are_refused(tmp_path, kind, name):
  write(tmp_path, CONFIGS[kind], {}, name=name)
  refused(f'{name}: pickles run code', drafter_dir.load, tmp_path)


@kinds
def test_another_target_is_refused(target, tmp_path, kind):
  trained = drafter_dir.load(write(tmp_path, CONFIGS[kind], tensors_of(kind)))
  assert trained.target == ''
  deep = dict(num_layers=7)
  for other, message in (
    (tiny.model(VOCAB, 0, width=8, **deep), 'width 16, this one has 8$'),
    (tiny.model(VOCAB + 1, 0, **deep), 'vocab_size 11, this one has 12$'),
  ):
    refused(message, trained_drafter, trained, other, 3)
  refused('cannot be saved', drafter_dir.save, trained, tmp_path / 'again')


@pytest.mark.parametrize(
  'kind', ['medusa', pytest.param('eagle', marks=pytest.mark.slow), 'eagle3']
)
def test_rows_that_are_no_tokens(target, tmp_path, kind):
  """A target may have been given some, to divide into the shards of a mesh."""
  padded = tiny.model(VOCAB + 5, 3, num_layers=7, padding=5)
  trained = drafter_dir.load(write(tmp_path, CONFIGS[kind], tensors_of(kind)))
  drafter = trained_drafter(trained, padded, 4)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 12), np.int32)
  tapped = padded.transformer.clone(taps=drafter.taps)
  features = jax.jit(tapped.apply)({'params': padded.params}, tokens).features
  draft = first_draft(drafter, tokens, features, jnp.arange(4))
  assert draft.q.shape == (4, 4, VOCAB + 5)
  assert (np.asarray(draft.q)[:, :, VOCAB:] == 0).all()
  np.testing.assert_allclose(draft.q.sum(-1), 1, atol=1e-5)
