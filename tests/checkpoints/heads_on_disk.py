"""Published drafters of random weights as folders, and what they draft."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specsamp.drafting import TokenTree
from specsamp.drafting.drafter import after_prompts
from specsamp.drafting.trained import trained_drafter
from specsamp.errors import UserError
from specsamp.sampling import draw
from specsamp.sampling.transforms import SamplingParams

VOCAB, WIDTH, DRAFT_VOCAB = 11, 16, 7
# A layer of another shape than the target's.
HEADS, KV_HEADS, HEAD_DIM, MLP = 4, 2, 6, 12
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
  rms_norm_eps=1e-5,
  rope_theta=100.0,
)
_QWEN3 = LLAMA | dict(model_type='qwen3', num_hidden_layers=2)
_EAGLE3 = LLAMA | dict(
  architectures=['LlamaForCausalLMEagle3'], draft_vocab_size=DRAFT_VOCAB
)
_SPECULATORS = dict(
  speculators_model_type='eagle3',
  architectures=['Eagle3Speculator'],
  transformer_layer_config=LLAMA | dict(model_type='llama'),
  draft_vocab_size=DRAFT_VOCAB,
  norm_before_residual=False,
)
IDS = 'eagle_aux_hidden_state_layer_ids'
# The tokens that EAGLE-3 can draft.
_DRAFTED = np.array([0, 2, 3, 5, 6, 9, 10])

# Two nodes of one level have children, and are not neighbours.
SHAPES = {
  'chain': (TokenTree.chain(4), 'iid'),
  'tree': (TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 6)), 'without_replacement'),
  'three': (TokenTree.chain(3), 'iid'),
}
_LENGTHS = np.array([11, 6, 2, 9], np.int32)


def _layer(name, reads=WIDTH, d=WIDTH, norms=()):
  """Returns tensor -> shape of a layer whose attention reads a width."""
  attention, mlp = name + 'self_attn.', name + 'mlp.'
  return {
    f'{attention}q_proj.weight': (HEADS * HEAD_DIM, reads),
    f'{attention}k_proj.weight': (KV_HEADS * HEAD_DIM, reads),
    f'{attention}v_proj.weight': (KV_HEADS * HEAD_DIM, reads),
    f'{attention}o_proj.weight': (d, HEADS * HEAD_DIM),
    f'{mlp}gate_proj.weight': (MLP, d),
    f'{mlp}up_proj.weight': (MLP, d),
    f'{mlp}down_proj.weight': (d, MLP),
    f'{name}post_attention_layernorm.weight': (d,),
    **{
      f'{name}{norm}.weight': (HEAD_DIM if 'self_attn' in norm else d,)
      for norm in norms
    },
  }


_QWEN3_NORMS = ('input_layernorm', 'self_attn.q_norm', 'self_attn.k_norm')


def _eagle3(
  first='midlayer.', d=WIDTH, without=(), norms=(), more=None, seed=0
):
  """Returns random tensors of EAGLE-3's.

  The first layer's have the prefix `first`, and `norms` are further ones of it;
  d is the drafter's width, and `more` has further tensors' shapes.
  """
  norms = ('hidden_norm', 'input_layernorm', *norms)
  shapes = _layer(first, 2 * d, d, norms) | {
    'norm.weight': (d,),
    'fc.weight': (d, 3 * WIDTH),
    'lm_head.weight': (DRAFT_VOCAB, d),
  }
  shapes |= more or {}
  tables = {
    'd2t': _DRAFTED - np.arange(DRAFT_VOCAB),
    't2d': np.isin(np.arange(VOCAB), _DRAFTED),
  }
  tensors = random_tensors(shapes, seed) | tables
  return {name: x for name, x in tensors.items() if name not in without}


def _medusa():
  shapes = {}
  for i in range(4):
    for block in range(2):
      shapes[f'medusa_head.{i}.{block}.linear.weight'] = WIDTH, WIDTH
      shapes[f'medusa_head.{i}.{block}.linear.bias'] = (WIDTH,)
    shapes[f'medusa_head.{i}.2.weight'] = VOCAB, WIDTH
  return dict(medusa_num_heads=4, medusa_num_layers=2), random_tensors(shapes)


def _eagle(has_bias=True, **changed):
  shapes = _layer('layers.0.') | {
    'embed_tokens.weight': (VOCAB, WIDTH),  # noise: the target's is used
    'fc.weight': (WIDTH, 2 * WIDTH),
  }
  if has_bias:
    shapes['fc.bias'] = (WIDTH,)
  return LLAMA | changed, random_tensors(shapes)


def _mtp(architecture, prefix, norms, fuse, more=None):
  """A module inside a target of seven layers, whose tensors are left out."""
  names = (*norms, 'input_layernorm')
  shapes = _layer(prefix, norms=names) | {f'{prefix}{fuse}': (WIDTH, 2 * WIDTH)}
  values = LLAMA | dict(
    architectures=[f'{architecture}ForCausalLM'],
    model_type=architecture.lower(),
    num_hidden_layers=7,
    num_nextn_predict_layers=1,
  )
  return values, random_tensors(shapes | (more or {}), seed=6)


def mimo():
  prefix = 'model.mtp_layers.0.'
  biases = dict(q=HEADS, k=KV_HEADS, v=KV_HEADS)
  return _mtp(
    'MiMo',
    prefix,
    ('token_layernorm', 'hidden_layernorm', 'final_layernorm'),
    'input_proj.weight',
    {
      f'{prefix}self_attn.{which}_proj.bias': (heads * HEAD_DIM,)
      for which, heads in biases.items()
    },
  )


def deepseek():
  """DeepSeek-V3's names, on a layer of LLaMA."""
  prefix, copied = 'model.layers.7.', {}
  norms = ('enorm', 'hnorm', 'shared_head.norm')
  values, tensors = _mtp('Llama', prefix, norms, 'eh_proj.weight')
  for original, copy in (
    ('model.embed_tokens.weight', 'embed_tokens.weight'),
    ('lm_head.weight', 'shared_head.head.weight'),
  ):
    copied[original] = random_tensors({original: (VOCAB, WIDTH)})[original]
    copied[prefix + copy] = copied[original].copy()
  return values, tensors | copied


def _authors(tensors=None, **changed):
  return _EAGLE3 | changed, tensors or _eagle3()


def _nested(tensors=None, **nested):
  return _authors(tensors, eagle_config=nested)


def _speculators(tensors=None, **changed):
  return _SPECULATORS | changed, tensors or _eagle3('layers.0.')


def _wider():
  """Wider than the target, so it has an embedding."""
  tensors = _eagle3(d=20, more={'embed_tokens.weight': (VOCAB, 20)})
  return _authors(tensors, hidden_size=20, target_hidden_size=WIDTH)


def _borrowed():
  """Without an LM head, with null for absent values."""
  values, _ = _authors(
    draft_vocab_size=None,
    rope_parameters={'rope_theta': 100.0},
    eagle_config={IDS: None, 'use_aux_hidden_state': None},
    norm_before_residual=None,
    fc_norm=None,
    **{IDS: None},
  )
  del values['rope_theta']
  return values, _eagle3(without=('lm_head.weight', 'd2t', 't2d'))


def _two_layers_of_qwen3():
  more = _layer('layers.1.', norms=_QWEN3_NORMS)
  tensors = _eagle3('layers.0.', norms=_QWEN3_NORMS[1:], more=more)
  return _speculators(tensors, transformer_layer_config=_QWEN3)


def _peagle(by_authors=False):
  """Three layers of LLaMA; all but the first have width D."""
  fused = (1, 3 * WIDTH) if by_authors else (1, 1, 3 * WIDTH)
  more = {'mask_hidden': fused}
  for i in (1, 2):
    more |= _layer(f'layers.{i}.', norms=('input_layernorm',))
  if by_authors:
    return _authors(
      _eagle3(more=more),
      parallel_drafting=True,
      ptd_token_id=8,
      num_hidden_layers=3,
    )
  return _speculators(
    _eagle3('layers.0.', more=more),
    speculators_model_type='peagle',
    transformer_layer_config=LLAMA
    | dict(model_type='llama', num_hidden_layers=3),
    mask_token_id=4,
    norm_before_residual=True,
  )


INSIDE = dict(target_layer_ids=[1, 3, 5], mask_token_id=10)


def _dflash():
  shapes = {
    **_layer('layers.0.', norms=_QWEN3_NORMS),
    **_layer('layers.1.', norms=_QWEN3_NORMS),
    'fc.weight': (WIDTH, 3 * WIDTH),
    'hidden_norm.weight': (WIDTH,),
    'norm.weight': (WIDTH,),
    # Noise: the target's matrices are used.
    'embed_tokens.weight': (VOCAB, WIDTH),
    'lm_head.weight': (VOCAB, WIDTH),
  }
  return random_tensors(shapes, seed=5)


def _dflash_of_authors(**changed):
  about = dict(architectures=['DFlashDraftModel'], dflash_config=INSIDE)
  return _QWEN3 | about | dict(block_size=6) | changed, _dflash()


def _dflash_of_speculators(layers=None, **changed):
  return dict(
    speculators_model_type='dflash',
    transformer_layer_config=_QWEN3 | (layers or {}),
    draft_vocab_size=VOCAB,
    block_size=6,
    mask_token_id=0,
    aux_hidden_state_layer_ids=[2, 4, 7],
  ) | changed, _dflash()


# A layer that slides, and one that sees the whole text.
SLIDING = dict(
  layer_types=['sliding_attention', 'full_attention'],
  use_sliding_window=True,
  sliding_window=4,
)
_ALL_SLIDE = SLIDING | dict(layer_types=['sliding_attention'] * 2)
_MARKOV = dict(
  markov_rank=3,
  markov_head_type='vanilla',
  enable_confidence_head=True,
  confidence_head_with_markov=True,
)


def _with_markov(folder, draft_vocab=VOCAB):
  values, tensors = folder
  shapes = {
    'markov_head.markov_w1.weight': (VOCAB, 3),
    'markov_head.markov_w2.weight': (draft_vocab, 3),
    'confidence_head.proj.weight': (1, WIDTH + 3),
    'confidence_head.proj.bias': (1,),
  }
  markov = {name: 4 * x for name, x in random_tensors(shapes, seed=2).items()}
  return values | _MARKOV, tensors | markov


def _with_part(folder):
  """Drafts a part of the tokens."""
  values, tensors = folder
  more = _eagle3(seed=4)
  part = {name: more[name] for name in ('lm_head.weight', 'd2t', 't2d')}
  return values | dict(draft_vocab_size=DRAFT_VOCAB), tensors | part


def _dspark():
  """DeepSpec's: no nested config, and the embedding may be tapped."""
  values, tensors = _with_markov(_dflash_of_authors(block_size=4))
  del values['dflash_config']
  about = dict(architectures=['Qwen3DSparkModel'], num_anchors=512)
  return values | about | INSIDE | dict(target_layer_ids=[-1, 3, 5]), tensors


# Kind of folder -> function that returns its config.json and its tensors.
FOLDERS = {
  'medusa': _medusa,
  'eagle': _eagle,
  'eagle, no bias': lambda: _eagle(has_bias=False, bias=False),
  'mtp, MiMo': mimo,
  'mtp, DeepSeek': deepseek,
  'eagle3': _authors,
  'eagle3, outputs': lambda: _nested(**{IDS: [1, 4, 6]}),
  'eagle3, inputs': lambda: _nested(
    **{IDS: [2, 4, 6], 'next_layer_regular': True}
  ),
  'eagle3, last state': lambda: _nested(
    _eagle3(without=('fc.weight',), seed=3),
    **{IDS: [], 'use_aux_hidden_state': False},
  ),
  'eagle3, wider': _wider,
  "eagle3, target's head": _borrowed,
  'eagle3, YaRN': lambda: _authors(
    rope_scaling=dict(
      rope_type='yarn',
      factor=16.0,
      original_max_position_embeddings=64,
      beta_fast=8.0,
      beta_slow=1.0,
    )
  ),
  'P-EAGLE': lambda: _peagle(by_authors=True),
  'speculators': lambda: _speculators(norm_before_residual=True),
  'speculators, taps': lambda: _speculators(
    _eagle3('layers.0.', more={'input_norm.weight': (3 * WIDTH,)}),
    norm_before_fc=True,
    **{IDS: [3, 5, 7]},
  ),
  'speculators, EAGLE-3.1': lambda: _speculators(
    _eagle3(
      'layers.0.', more={f'fc_norm.{i}.weight': (WIDTH,) for i in range(3)}
    ),
    fc_norm=True,
    norm_output=True,
  ),
  'speculators, Qwen3': _two_layers_of_qwen3,
  'speculators, P-EAGLE': _peagle,
  'dflash': _dflash_of_authors,
  'speculators, dflash': _dflash_of_speculators,
  'dflash, windows': lambda: _dflash_of_authors(block_size=4, **SLIDING),
  'speculators, dflash, windows': lambda: _dflash_of_speculators(
    SLIDING, block_size=4
  ),
  'speculators, dflash, free windows': lambda: _with_part(
    _dflash_of_speculators(
      _ALL_SLIDE,
      block_size=4,
      sliding_window_non_causal=True,
      sample_from_anchor=True,
    )
  ),
  'dspark': _dspark,
  'speculators, dspark': lambda: _with_markov(
    _dflash_of_speculators(
      speculators_model_type='dspark', sample_from_anchor=False
    )
  ),
  'speculators, dspark, windows': lambda: _with_markov(
    _with_part(
      _dflash_of_speculators(
        SLIDING,
        speculators_model_type='dspark',
        sample_from_anchor=True,
        block_size=4,
      )
    ),
    DRAFT_VOCAB,
  ),
}


def random_tensors(shapes, seed=0):
  rng = np.random.default_rng(seed)
  tensors = {
    name: (0.25 * rng.normal(size=shape)).astype(np.float32)
    for name, shape in shapes.items()
  }
  for name in tensors:
    if 'norm' in name:
      tensors[name] += 1
    if re.search(r'lm_head|\.2\.weight|embed', name):
      tensors[name] *= 4
  return tensors


def write(folder, values, tensors, name='model.safetensors'):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  (folder / name).write_bytes(safetensors.numpy.save(tensors))
  return folder


@jax.jit
def _first_draft(drafter, tokens_bs, features_bsd, seeds_b):
  state = after_prompts(
    drafter, tokens_bs, _LENGTHS, features_bsd, tokens_bs.shape[1] + 16
  )
  sampling = SamplingParams().broadcast(4)
  keys = draw.row_keys(seeds_b)
  return drafter.propose(state, tokens_bs, _LENGTHS, sampling, keys)[0]


def draft_after(trained, target, shape='chain'):
  """Returns tokens [B, S], the tree, and the draft after prompts of them."""
  tree, law = SHAPES[shape]
  drafter = trained_drafter(trained, target, tree, law)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 12), np.int32)
  tapped = target.transformer.clone(taps=drafter.taps)
  features = jax.jit(tapped.apply)({'params': target.params}, tokens).features
  draft = _first_draft(drafter, tokens, features, jnp.arange(4))
  return tokens, tree, draft


def check(trained, target, in_torch, shape='chain'):
  """Checks every q of a draft against torch, for prompts of four lengths.

  `in_torch` maps a prompt and a path to logits.
  """
  tokens, tree, draft = draft_after(trained, target, shape)
  seen = set()
  for row, length in enumerate(_LENGTHS):
    for at, node in enumerate(tree.internal):
      nodes = tree.paths[node][1 : tree.depths[node] + 1]
      path = np.asarray(draft.tokens)[row, nodes].tolist()
      logits = in_torch(tokens[row, :length].tolist(), path)
      expected = logits.log_softmax(-1).numpy()
      got = np.asarray(draft.q, np.float64)[row, at]
      can_draft = np.isfinite(expected)
      assert (got[~can_draft] == 0).all()
      np.testing.assert_allclose(
        np.log(got[can_draft]), expected[can_draft], atol=1e-4
      )
      seen.add(int(got.argmax()))
  assert len(seen) > 2


def refused(message, call, *args):
  """Checks for an error of one line."""
  with pytest.raises(UserError, match=message) as error:
    call(*args)
  assert '\n' not in str(error.value)
