"""Messages between the shards of a program, read from its compiled text."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from testing import tiny

from specsamp import SamplingParams
from specsamp.decoding.request import Request
from specsamp.decoding.state import with_axes
from specsamp.drafting import (
  DynamicTree,
  TokenTree,
  lookahead_drafter,
  model_drafter,
  ngram_drafter,
)
from specsamp.drafting.trained import trained_drafter
from specsamp.planning.compile import messages
from specsamp.sharding import mesh as meshes
from specsamp.sharding import rules
from specsamp.training import pretrain

pytestmark = pytest.mark.extended

# All sizes differ, so that a shape identifies its array.
_VOCAB, _WIDTH, _HEAD = 16384, 40, 24
_SHAPE = dict(
  num_heads=8, num_kv_heads=8, width=_WIDTH, head_dim=_HEAD, mlp_width=56
)
_TREE = TokenTree.branching((2, 2))
_ROWS = 4

# One batch has every kind of row: top-k, top-p, greedy, plain.
_SAMPLING = SamplingParams(
  temperature=[1.0, 0.0, 0.7, 1.0],
  top_k=[5, 0, 3, 0],
  top_p=[1.0, 1.0, 0.9, 0.5],
)


def _sent(text: str) -> list[tuple[str, tuple[int, ...]]]:
  """Returns (kind, shape) of every result of a collective."""
  return [(kind, dims) for kind, arrays in messages(text) for _, dims in arrays]


def _num_sums(sent) -> collections.Counter:
  """Counts all-reduces of activations [rows, tokens, width], by tokens."""
  return collections.Counter(
    shape[1]
    for kind, shape in sent
    if kind == 'all-reduce' and len(shape) == 3 and shape[2] == _WIDTH
  )


def _assert_small(sent, shape):
  """Nothing as large as a vocabulary, and no part of a cache, is sent."""
  assert sent
  for kind, dims in sent:
    # A draw sends sums of blocks, the square root of the vocabulary.
    assert math.prod(dims) < _VOCAB // shape[1], (kind, dims)
    assert _HEAD not in dims, (kind, dims)


def _drafter(target, method):
  """Returns a drafter and a verifier for it."""
  draft, law = tiny.first_layer(target), 'without_replacement'
  branches = TokenTree.branching((3, 1, 1))
  match method:
    case 'chain':
      return model_drafter(draft, 2), 'token'
    case 'coupled':
      return model_drafter(draft, 2, 'deterministic', True), 'gumbel'
    case 'tree':
      return model_drafter(draft, _TREE, law), 'traversal'
    case 'ngram':
      return ngram_drafter(branches), 'naive'
    case 'lookahead':
      return lookahead_drafter(branches, 4), 'naive'
    case 'dynamic':
      trained, tree = tiny.trained(target, 'eagle'), DynamicTree.of(8, 3, 3)
      return trained_drafter(trained, target, tree, 'deterministic'), 'naive'
  trained = tiny.trained(target, method)
  return trained_drafter(trained, target, _TREE, law), 'multi_candidate'


def _request(shape, method):
  target = tiny.model(_VOCAB, 0, **_SHAPE).on(meshes.make(*shape))
  return Request.make(
    target,
    [[1, 2, 3]] * _ROWS,
    *_drafter(target, method),
    sampling=_SAMPLING,
    max_new_tokens=16,
    stop_tokens=[],
  )


def _abstract(shapes, shardings):
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    shardings,
  )


def _sent_in_a_step(request):
  mesh = request.model.mesh
  with meshes.use(mesh):
    state = request.programs.prefill.eval_shape(request.inputs, request.prompts)
    state = _abstract(state, with_axes(state, rules.sharding(mesh)))
    lowered = request.programs.decode.lower(request.inputs, state, np.int32(9))
    return _sent(lowered.compile().as_text())


@pytest.mark.parametrize(
  ('shape', 'method'),
  [
    ((2, 4), 'tree'),
    ((2, 4), 'coupled'),
    pytest.param((1, 8), 'chain', marks=pytest.mark.slow),
  ],
  ids=str,
)
def test_a_step_sends_activations_and_little_else(shape, method):
  request = _request(shape, method)
  sent = _sent_in_a_step(request)
  # Each pass has two sums per layer and one for the embedding. The draft model
  # has one layer and a first pass over two tokens, then over one each or over a
  # level. The target has two layers and a pass over the draft.
  tree = request.inputs.drafter.tree
  expected = collections.Counter({2: 3})
  if tree.is_chain:
    expected[1] += 3
  for depth in range(1, 1 if tree.is_chain else tree.depth):
    expected[tree.depths.count(depth)] += 3
  expected[tree.size] += 5
  assert _num_sums(sent) == expected
  _assert_small([s for s in sent if s[1][2:] != (_WIDTH,)], shape)


@pytest.mark.parametrize(
  'method',
  [
    'eagle',
    'lookahead',
    'dynamic',
    *(
      pytest.param(method, marks=pytest.mark.slow)
      for method in ('eagle_parallel', 'hydra', 'medusa', 'ngram')
    ),
  ],
)
def test_other_drafters_send_nothing_of_a_vocabulary(method):
  sent = _sent_in_a_step(_request((2, 4), method))
  _assert_small([s for s in sent if _WIDTH not in s[1][-1:]], (2, 4))


def test_a_prefill_sends_activations_alone():
  request = _request((2, 4), 'chain')
  with meshes.use(request.model.mesh):
    lowered = request.programs.prefill.lower(request.inputs, request.prompts)
    sent = _sent(lowered.compile().as_text())
  # The last layers of target and draft compute keys and values only.
  length = request.prompts.tokens.shape[1]
  assert _num_sums(sent) == {length: 3 + 1}
  # One more number is the number of passes.
  assert [shape for _, shape in sent if not shape] == [()] and len(sent) == 5


def test_a_step_of_training_gathers_no_vocabulary():
  mesh = meshes.make(2, 4)
  model = tiny.model(_VOCAB, 0, **_SHAPE)
  loss = pretrain.make_loss(model.transformer, model, 0.5)
  tx = optax.adamw(1e-3)
  state = (model.params, jax.eval_shape(tx.init, model.params))
  shardings = rules.param_shardings(state, mesh)
  length = 16
  tokens = jax.ShapeDtypeStruct(
    (_ROWS, length + 1),
    jnp.int32,
    sharding=NamedSharding(mesh, PartitionSpec(rules.DATA)),
  )

  def step(state, teacher, tokens):
    params, optimizer = state
    grads, metrics = jax.grad(loss, has_aux=True)(
      params, teacher, {'tokens': tokens}
    )
    updates, optimizer = tx.update(grads, optimizer, params)
    return (optax.apply_updates(params, updates), optimizer), metrics

  with meshes.use(mesh), jax.numpy_dtype_promotion('standard'):
    lowered = jax.jit(step, out_shardings=(shardings, None)).lower(
      _abstract(state, shardings),
      _abstract(model.params, shardings[0]),
      tokens,
    )
    sent = _sent(lowered.compile().as_text())
  assert {kind for kind, _ in sent} == {'all-reduce'}
  rows = _ROWS // 2
  # The forward passes of the model and its teacher have 5 sums each. The
  # backward pass has three per layer, where q and kv are summed separately, and
  # one for the logits.
  assert sent.count(('all-reduce', (rows, length, _WIDTH))) == 2 * 5 + 2 * 3 + 1
  # Gradients are summed over the data. Logits and p are never sent.
  for _, dims in sent:
    assert _VOCAB not in dims
    if _VOCAB // 4 in dims:
      assert sorted(dims) == [_WIDTH, _VOCAB // 4]


def test_these_tests_would_see_a_gather():
  mesh = meshes.make(2, 4)
  logits = jax.ShapeDtypeStruct((_ROWS, 3, _VOCAB), jnp.float32)
  split = rules.sharding(mesh)(logits, 'batch', None, 'vocab')
  program = jax.jit(lambda x: jax.lax.top_k(x, 2)).lower(
    _abstract(logits, split)
  )
  sent = _sent(program.compile().as_text())
  assert ('all-gather', (_ROWS // 2, 3, _VOCAB)) in sent
  with pytest.raises(AssertionError):
    _assert_small(sent, (2, 4))
