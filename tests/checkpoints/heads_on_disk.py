"""Published drafters of random weights as folders, and what they draft."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from heads_in_torch import Torch

from specsamp.checkpoints import drafter_dir
from specsamp.drafting import TokenTree
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

# Two nodes of a level with children, which do not stand side by side.
SHAPES = {
  'chain': (TokenTree.chain(4), 'iid'),
  'tree': (TokenTree((-1, 0, 0, 0, 1, 1, 3, 4, 6)), 'without_replacement'),
}
LENGTHS = np.array([3, 6, 2, 9], np.int32)


def layer_shapes(name, reads, d=WIDTH):
  """Tensor -> its shape, of a layer whose attention reads a width."""
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
  }


def eagle3_shapes(first='midlayer.', d=WIDTH, fused=3 * WIDTH):
  """Tensor -> its shape, of EAGLE-3's; how its names begin, its widths."""
  return layer_shapes(first, 2 * d, d) | {
    f'{first}hidden_norm.weight': (d,),
    f'{first}input_layernorm.weight': (d,),
    'norm.weight': (d,),
    'fc.weight': (d, fused),
    'lm_head.weight': (DRAFT_VOCAB, d),
  }


def qwen3_shapes(num_layers, d=WIDTH):
  """Of what these layers have beside those of LLaMA's attention and MLP."""
  shapes = {}
  for i in range(num_layers):
    for name in ('q_norm', 'k_norm'):
      shapes[f'layers.{i}.self_attn.{name}.weight'] = (HEAD_DIM,)
    shapes[f'layers.{i}.input_layernorm.weight'] = (d,)
  return shapes


def shapes_of(kind):
  """Tensor -> its shape, of each of the authors' formats."""
  d = WIDTH
  if kind == 'eagle3':
    return eagle3_shapes()
  if kind == 'eagle':
    return layer_shapes('layers.0.', d) | {
      'embed_tokens.weight': (VOCAB, d),  # noise: the target's is read
      'fc.weight': (d, 2 * d),
      'fc.bias': (d,),
    }
  shapes = {}
  for i in range(4):
    for block in range(2):
      shapes[f'{i}.{block}.linear.weight'] = d, d
      shapes[f'{i}.{block}.linear.bias'] = (d,)
    shapes[f'{i}.2.weight'] = VOCAB, d
  return shapes


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


def with_tables(tensors):
  """And those of the tokens that it can draft."""
  return tensors | {
    'd2t': SAID - np.arange(DRAFT_VOCAB),
    't2d': np.isin(np.arange(VOCAB), SAID),
  }


def tensors_of(kind):
  tensors = random_tensors(shapes_of(kind))
  return with_tables(tensors) if kind == 'eagle3' else tensors


def write(folder, values, tensors, name='model.safetensors'):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  (folder / name).write_bytes(safetensors.numpy.save(tensors))
  return folder


@jax.jit
def first_draft(drafter, tokens_bs, features_bsd, seeds_b):
  state = drafter.init(
    tokens_bs, LENGTHS, features_bsd, tokens_bs.shape[1] + 16
  )
  sampling = SamplingParams().broadcast(4)
  keys = draw.row_keys(seeds_b)
  return drafter.propose(state, tokens_bs, LENGTHS, sampling, keys)[0]


def check(trained, target, in_torch, shape='chain'):
  """Every q of a draft is torch's, of ragged rows.

  Args:
    trained: what was read.
    target: seven layers.
    in_torch: (text, path) -> logits.
    shape: one of `SHAPES`.
  """
  tree, law = SHAPES[shape]
  drafter = trained_drafter(trained, target, tree, law)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (4, 12), np.int32)
  tapped = target.transformer.clone(taps=drafter.taps)
  features = jax.jit(tapped.apply)({'params': target.params}, tokens).features
  draft = first_draft(drafter, tokens, features, jnp.arange(4))
  seen = set()
  for row, length in enumerate(LENGTHS):
    for at, node in enumerate(tree.internal):
      nodes = tree.paths[node][1 : tree.depths[node] + 1]
      path = np.asarray(draft.tokens)[row, nodes].tolist()
      logits = in_torch(tokens[row, :length].tolist(), path)
      expected = logits.log_softmax(-1).numpy()
      got = np.asarray(draft.q, np.float64)[row, at]
      can_say = np.isfinite(expected)
      assert (got[~can_say] == 0).all()
      np.testing.assert_allclose(
        np.log(got[can_say]), expected[can_say], atol=1e-4
      )
      seen.add(int(got.argmax()))
  assert len(seen) > 2


def check_folder(folder, target, method, values, tensors, shape='chain'):
  """What is read of a folder is what torch computes of its tensors."""
  in_torch = getattr(Torch(target, tensors, values), method)
  check(drafter_dir.load(folder), target, in_torch, shape)


# What is done to a folder before it is refused.


def without(name):
  return lambda tensors, values: tensors.pop(name)


def keys(**changed):
  return lambda tensors, values: values.update(changed)


def shape(name, *shape):
  return lambda tensors, values: tensors.update(
    {name: np.zeros(shape, np.float32)}
  )


def table(name, change):
  return lambda tensors, values: tensors.update({name: change(tensors[name])})


def refused(message, call, *args):
  """In one line."""
  with pytest.raises(UserError, match=message) as error:
    call(*args)
  assert '\n' not in str(error.value)
