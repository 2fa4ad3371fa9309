"""Heads in their authors' formats, against their mathematics in torch."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiny
from heads_in_torch import EPSILON, HEADS, KV_HEADS, THETA, Torch

from specsamp.checkpoints import drafter_dir
from specsamp.drafting import TokenTree
from specsamp.drafting.trained import trained_drafter
from specsamp.errors import UserError
from specsamp.jobs import loading
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams

VOCAB, WIDTH, DRAFT_VOCAB = 11, 16, 7
# A layer of another shape than the target's.
HEAD_DIM, MLP = 6, 12
LLAMA = dict(
  architectures=['LlamaForCausalLM'],
  vocab_size=VOCAB,
  hidden_size=WIDTH,
  num_hidden_layers=1,
  num_attention_heads=HEADS,
  num_key_value_heads=KV_HEADS,
  head_dim=HEAD_DIM,
  intermediate_size=MLP,
  max_position_embeddings=32,
  hidden_act='silu',
  rms_norm_eps=EPSILON,
  rope_theta=THETA,
)
CONFIGS = {
  'medusa': dict(medusa_num_heads=4, medusa_num_layers=2),
  'eagle': LLAMA,
  'eagle3': LLAMA
  | dict(
    architectures=['LlamaForCausalLMEagle3'], draft_vocab_size=DRAFT_VOCAB
  ),
}
# The tokens that EAGLE-3 can draft.
SAID = np.array([0, 2, 3, 5, 6, 9, 10])
kinds = pytest.mark.parametrize('kind', CONFIGS)


def _shapes(kind):
  """Tensor -> its shape, of each format."""
  d = WIDTH
  if kind == 'medusa':
    shapes = {}
    for i in range(4):
      for block in range(2):
        shapes[f'{i}.{block}.linear.weight'] = d, d
        shapes[f'{i}.{block}.linear.bias'] = (d,)
      shapes[f'{i}.2.weight'] = VOCAB, d
    return shapes
  layer = 'midlayer.' if kind == 'eagle3' else 'layers.0.'
  reads = 2 * d if kind == 'eagle3' else d
  attention, mlp = layer + 'self_attn.', layer + 'mlp.'
  shapes = {
    f'{attention}q_proj.weight': (HEADS * HEAD_DIM, reads),
    f'{attention}k_proj.weight': (KV_HEADS * HEAD_DIM, reads),
    f'{attention}v_proj.weight': (KV_HEADS * HEAD_DIM, reads),
    f'{attention}o_proj.weight': (d, HEADS * HEAD_DIM),
    f'{mlp}gate_proj.weight': (MLP, d),
    f'{mlp}up_proj.weight': (MLP, d),
    f'{mlp}down_proj.weight': (d, MLP),
    f'{layer}post_attention_layernorm.weight': (d,),
  }
  if kind == 'eagle':
    return shapes | {
      'embed_tokens.weight': (VOCAB, d),  # noise: the target's is read
      'fc.weight': (d, 2 * d),
      'fc.bias': (d,),
    }
  return shapes | {
    f'{layer}hidden_norm.weight': (d,),
    f'{layer}input_layernorm.weight': (d,),
    'norm.weight': (d,),
    'fc.weight': (d, 3 * d),
    'lm_head.weight': (DRAFT_VOCAB, d),
  }


def _tensors(kind, seed=0):
  rng = np.random.default_rng(seed)
  tensors = {
    name: (0.25 * rng.normal(size=shape)).astype(np.float32)
    for name, shape in _shapes(kind).items()
  }
  for name in tensors:
    if 'norm' in name:
      tensors[name] += 1
    if re.search(r'lm_head|\.2\.weight', name):
      tensors[name] *= 4
  if kind == 'eagle3':
    tensors['d2t'] = SAID - np.arange(DRAFT_VOCAB)
    tensors['t2d'] = np.isin(np.arange(VOCAB), SAID)
  return tensors


def _write(folder, kind, tensors, config=None, name='model.safetensors'):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(config or CONFIGS[kind]))
  (folder / name).write_bytes(safetensors.numpy.save(tensors))
  return folder


@pytest.fixture(scope='module')
def target():
  """Seven layers, so that EAGLE-3 reads three of them; logits near 0."""
  model = tiny.model(VOCAB, 3, num_layers=7)
  head = np.float32(0.25) * model.params['head']
  return dataclasses.replace(model, params=model.params | {'head': head})


# What is drafted.

# Two nodes of a level with children, which do not stand side by side.
SHAPES = {
  'chain': (TokenTree.chain(4), 'iid'),
  'tree': (TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 6)), 'without_replacement'),
}
LENGTHS = np.array([3, 6, 2, 9], np.int32)


@jax.jit
def _first_draft(drafter, tokens_bs, features_bsd, seeds_b):
  state = drafter.init(
    tokens_bs, LENGTHS, features_bsd, tokens_bs.shape[1] + 16
  )
  sampling = SamplingParams().broadcast(4)
  keys = draw.row_keys(seeds_b)
  return drafter.propose(state, tokens_bs, LENGTHS, sampling, keys)[0]


def _check(target, folder, kind, tensors, shape):
  """Every q of a draft is torch's, of ragged rows."""
  tree, law = SHAPES[shape]
  drafter = trained_drafter(drafter_dir.load(folder), target, tree, law)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 12), np.int32)
  tapped = target.transformer.clone(taps=drafter.taps)
  features = jax.jit(tapped.apply)({'params': target.params}, tokens).features
  draft = _first_draft(drafter, tokens, features, jnp.arange(4))
  torch = Torch(target, tensors)
  seen = set()
  for row, length in enumerate(LENGTHS):
    for at, node in enumerate(tree.internal):
      nodes = tree.paths[node][1 : tree.depths[node] + 1]
      path = np.asarray(draft.tokens)[row, nodes].tolist()
      logits = getattr(torch, kind)(tokens[row, :length].tolist(), path)
      expected = logits.log_softmax(-1).numpy()
      got = np.asarray(draft.q, np.float64)[row, at]
      can_say = np.isfinite(expected)
      assert (got[~can_say] == 0).all()
      np.testing.assert_allclose(
        np.log(got[can_say]), expected[can_say], atol=1e-4
      )
      seen.add(int(got.argmax()))
  assert len(seen) > 2


@kinds
@pytest.mark.parametrize(
  'shape',
  # Chains are tested below, of a file in another form.
  [pytest.param('chain', marks=pytest.mark.slow), 'tree'],
)
def test_every_step_is_torchs(target, tmp_path, kind, shape):
  tensors = _tensors(kind)
  if kind == 'medusa' and shape == 'tree':  # as some files have it
    named = {f'medusa_head.{name}': value for name, value in tensors.items()}
    _write(tmp_path, kind, named, name='medusa_lm_head.safetensors')
  else:
    _write(tmp_path, kind, tensors)
  _check(target, tmp_path, kind, tensors, shape)


def test_an_eagle_layer_without_bias(target, tmp_path):
  tensors = _tensors('eagle')
  del tensors['fc.bias']
  _write(tmp_path, 'eagle', tensors, LLAMA | dict(bias=False))
  _check(target, tmp_path, 'eagle', tensors, 'chain')


def test_an_embedding_of_its_own(target, tmp_path):
  """And the name that the authors' own EAGLE-3 heads have."""
  tensors = _tensors('eagle3')
  rng = np.random.default_rng(5)
  embedding = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
  tensors['embed_tokens.weight'] = embedding
  config = LLAMA | dict(draft_vocab_size=DRAFT_VOCAB)
  _write(tmp_path, 'eagle3', tensors, config)
  _check(target, tmp_path, 'eagle3', tensors, 'chain')


@kinds
def test_a_folder_is_a_drafters_name(target, tmp_path, kind):
  folder = str(_write(tmp_path, kind, _tensors(kind)))
  models = loading.Models(target, draft=target, trained={})
  assert models.drafter(folder, 3, 'iid').tree.depth == 3
  assert models.deepest(folder) == (4 if kind == 'medusa' else math.inf)


# What is refused.


def _without(name):
  return lambda tensors, config: tensors.pop(name)


def _with(**values):
  return lambda tensors, config: config.update(values)


def _shape(name, *shape):
  return lambda tensors, config: tensors.update(
    {name: np.zeros(shape, np.float32)}
  )


def _table(name, change):
  return lambda tensors, config: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
  ('kind', 'damage', 'message'),
  [
    ('medusa', _without('1.0.linear.bias'), '1 missing: 1.0.linear.bias$'),
    ('medusa', _without('0.2.weight'), '0.2.weight: got None, expected the LM'),
    ('medusa', _shape('4.2.weight', 11, 16), '1 not used: 4.2.weight$'),
    ('medusa', _shape('3.2.weight', 9, 16), r'3.2.weight \[9, 16\] instead of'),
    ('medusa', _with(medusa_num_heads=0), 'medusa_num_heads: got 0, expected'),
    ('medusa', _with(medusa_num_layers='1'), "medusa_num_layers: got '1', exp"),
    ('eagle', _without('fc.bias'), '1 missing: fc.bias$'),
    ('eagle', _with(bias=False), '1 not used: fc.bias$'),
    ('eagle', _shape('norm.weight', 16), '1 not used: norm.weight$'),
    ('eagle', _shape('fc.weight', 16, 16), r'fc.weight \[16, 16\] instead of'),
    (
      'eagle',
      _shape('embed_tokens.weight', 12, 16),
      r'embed_tokens.weight: got \(12, 16\), expected \(11, 16\)$',
    ),
    (
      'eagle',
      _with(num_hidden_layers=2),
      'num_hidden_layers: got 2, expected the 1 of a drafter$',
    ),
    (
      'eagle',
      _with(architectures=['GPT2LMHeadModel']),
      "got 'GPT2LMHeadModel', ",
    ),
    ('eagle', _with(hidden_size=None), 'no hidden_size$'),
    ('eagle3', _without('midlayer.hidden_norm.weight'), '1 missing: midlayer'),
    ('eagle3', _shape('norm.bias', 16), '1 not used: norm.bias$'),
    ('eagle3', _shape('lm_head.weight', 11, 16), r'\[11, 16\] instead of \[7,'),
    ('eagle3', _without('d2t'), r"d2t: got None, expected \('I64', \(7,\)\)$"),
    ('eagle3', _shape('d2t', 7), "d2t: got ..F32', "),
    ('eagle3', _table('d2t', lambda t: t[1:]), r'got \(.I64., \(6,\)\), exp'),
    (
      'eagle3',
      _table('d2t', lambda t: t + 1),
      'tokens from 1 to 11, expected 0',
    ),
    ('eagle3', _table('d2t', lambda t: t - 1), 'tokens from -1 to 9, expected'),
    (
      'eagle3',
      _table('d2t', lambda t: 5 - np.arange(7)),
      'got . tokens for 7 rows',
    ),
    ('eagle3', _table('t2d', lambda t: ~t), 't2d: got other tokens than'),
    ('eagle3', _with(draft_vocab_size=None), 'draft_vocab_size: got None, '),
    ('eagle3', _with(eagle_config={'a': 1}), r"eagle_config: got \{'a': 1\}, "),
  ],
)
def test_damage_is_named_in_one_line(tmp_path, kind, damage, message):
  tensors, config = _tensors(kind), dict(CONFIGS[kind])
  damage(tensors, config)
  _write(tmp_path, kind, tensors, config)
  _refused(message, drafter_dir.load, tmp_path)


def _refused(message, call, *args):
  with pytest.raises(UserError, match=message) as error:
    call(*args)
  assert '\n' not in str(error.value)


@kinds
@pytest.mark.parametrize('name', ['pytorch_model.bin', 'medusa_lm_head.pt'])
def test_pickles_are_refused(tmp_path, kind, name):
  _write(tmp_path, kind, {}, name=name)
  _refused(f'{name}: pickles run code', drafter_dir.load, tmp_path)


@kinds
def test_another_target_is_refused(target, tmp_path, kind):
  trained = drafter_dir.load(_write(tmp_path, kind, _tensors(kind)))
  assert trained.target == ''
  deep = dict(num_layers=7)
  for other, message in (
    (tiny.model(VOCAB, 0, width=8, **deep), 'width 16, this one has 8$'),
    (tiny.model(VOCAB + 1, 0, **deep), 'vocab_size 11, this one has 12$'),
  ):
    _refused(message, trained_drafter, trained, other, 3)
  _refused('cannot be saved', drafter_dir.save, trained, tmp_path / 'again')


@pytest.mark.parametrize(
  'kind', ['medusa', pytest.param('eagle', marks=pytest.mark.slow), 'eagle3']
)
def test_rows_that_are_no_tokens(target, tmp_path, kind):
  """A target may have been given some, to divide into the shards of a mesh."""
  padded = tiny.model(VOCAB + 5, 3, num_layers=7, padding=5)
  trained = drafter_dir.load(_write(tmp_path, kind, _tensors(kind)))
  drafter = trained_drafter(trained, padded, 4)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 12), np.int32)
  tapped = padded.transformer.clone(taps=drafter.taps)
  features = jax.jit(tapped.apply)({'params': padded.params}, tokens).features
  draft = _first_draft(drafter, tokens, features, jnp.arange(4))
  assert draft.q.shape == (4, 4, VOCAB + 5)
  assert (np.asarray(draft.q)[:, :, VOCAB:] == 0).all()
  np.testing.assert_allclose(draft.q.sum(-1), 1, atol=1e-5)
